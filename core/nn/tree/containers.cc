#include "sherd/core/nn/containers.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

absl::Status NullModule(absl::string_view type_name) {
  return absl::InvalidArgumentError(
      absl::StrCat("Expected a module for the ", type_name, ", but got null"));
}

}  // namespace

absl::Status ModuleDict::Insert(absl::string_view name,
                                std::shared_ptr<Module> module) {
  if (name.empty() || name.find('.') != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ModuleDict cannot have a module named `", name,
                     "`: expected a name that is not empty and has no dot"));
  }
  if (module == nullptr) return NullModule(type_name());
  for (NamedModule& entry : modules_) {
    if (entry.name != name) continue;
    entry.module = std::move(module);
    return absl::OkStatus();
  }
  modules_.push_back({std::string(name), std::move(module)});
  return absl::OkStatus();
}

bool ModuleDict::Erase(absl::string_view name) {
  return std::erase_if(modules_, [&](const NamedModule& entry) {
           return entry.name == name;
         }) > 0;
}

std::shared_ptr<Module> ModuleDict::Find(absl::string_view name) const {
  for (const NamedModule& entry : modules_) {
    if (entry.name == name) return entry.module;
  }
  return nullptr;
}

absl::StatusOr<Value> ModuleDict::Forward(absl::Span<const Value> /*inputs*/) {
  return absl::UnimplementedError(
      "a ModuleDict computes nothing: call one of its modules");
}

absl::Status ModuleList::Append(std::shared_ptr<Module> module) {
  if (module == nullptr) return NullModule(type_name());
  modules_.push_back({absl::StrCat(modules_.size()), std::move(module)});
  return absl::OkStatus();
}

std::shared_ptr<Module> ModuleList::At(int64_t position) const {
  if (position < 0 || position >= size()) return nullptr;
  return modules_[static_cast<size_t>(position)].module;
}

absl::StatusOr<Value> ModuleList::Forward(absl::Span<const Value> inputs) {
  if (modules_.empty()) {
    return absl::FailedPreconditionError(
        "a ModuleList without modules has no output");
  }
  SHERD_ASSIGN_OR_RETURN(Value output, modules_[0].module->Call(inputs));
  for (size_t i = 1; i < modules_.size(); ++i) {
    SHERD_ASSIGN_OR_RETURN(output, modules_[i].module->Call({output}));
  }
  return output;
}

}  // namespace sherd
