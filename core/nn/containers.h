#ifndef SHERD_CORE_NN_CONTAINERS_H_
#define SHERD_CORE_NN_CONTAINERS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/value.h"

namespace sherd {

// Modules by names, in the order in which they were added. Its paths are
// `parent.NAME`.
//
// A container of modules, not a computation: Call returns kUnimplemented.
//
// Threads. Like a standard container.
class ModuleDict : public Module {
 public:
  ModuleDict() = default;

  // Adds a module, or replaces the one of this name, which keeps its place.
  //   kInvalidArgument  The name is empty or has a dot, or the module is null.
  absl::Status Insert(absl::string_view name, std::shared_ptr<Module> module);
  // Whether there was such a module.
  bool Erase(absl::string_view name);

  // Null if there is none. Another module may replace it: see ShardModule.
  std::shared_ptr<Module> Find(absl::string_view name) const;
  absl::Span<const NamedModule> modules() const { return modules_; }
  int64_t size() const { return static_cast<int64_t>(modules_.size()); }

  std::shared_ptr<Module> Clone() const override { return CloneOf(*this); }
  absl::string_view type_name() const override { return "ModuleDict"; }

 protected:
  absl::StatusOr<Value> Forward(absl::Span<const Value> inputs) override;
  void Visit(ModuleVisitor& v) override { v.Children(modules_); }

 private:
  std::vector<NamedModule> modules_;
};

// Modules by positions: paths are `parent.0`, `parent.1`, ….
//
// Call passes its inputs to the first module, the output of each to the next,
// and returns that of the last; kFailedPrecondition if there is none.
//
// Threads. Like a standard container.
class ModuleList : public Module {
 public:
  ModuleList() = default;

  //   kInvalidArgument  The module is null.
  absl::Status Append(std::shared_ptr<Module> module);

  // Null if there is none.
  std::shared_ptr<Module> At(int64_t position) const;
  absl::Span<const NamedModule> modules() const { return modules_; }
  int64_t size() const { return static_cast<int64_t>(modules_.size()); }

  std::shared_ptr<Module> Clone() const override { return CloneOf(*this); }
  absl::string_view type_name() const override { return "ModuleList"; }

 protected:
  absl::StatusOr<Value> Forward(absl::Span<const Value> inputs) override;
  void Visit(ModuleVisitor& v) override { v.Children(modules_); }

 private:
  std::vector<NamedModule> modules_;
};

}  // namespace sherd

#endif  // SHERD_CORE_NN_CONTAINERS_H_
