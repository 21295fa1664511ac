#ifndef SHERD_CORE_NN_MODULE_H_
#define SHERD_CORE_NN_MODULE_H_

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/nn/value.h"
#include "sherd/core/sharding/state_dict.h"

namespace sherd {

class Module;
class ModuleVisitor;

namespace internal {
class ModuleAccess;
}  // namespace internal

// Changes an output; see Module::AddOutputHook.
using OutputHook = std::function<absl::StatusOr<Value>(Value output)>;

// Adds entries to the state of `module`, whose names begin with `prefix`: "" or
// "a.b.". See Module::AddStateHook.
using StateHook = std::function<absl::Status(
    Module& module, absl::string_view prefix, StateDict& state)>;

// Takes what is its own out of a state that is being loaded, and appends the
// names of what it took, with their prefix, to `taken`. See
// Module::AddLoadHook.
using LoadHook = std::function<absl::Status(
    Module& module, absl::string_view prefix, const StateDict& state,
    std::vector<std::string>& taken)>;

// A part of a model: it has members (parameters, buffers, attributes and child
// modules) and computes outputs from inputs.
//
//     class Scaled : public Module {
//      public:
//       explicit Scaled(Tensor scale) : scale_(std::move(scale)) {}
//       std::shared_ptr<Module> Clone() const override {
//         return CloneOf(*this);
//       }
//       absl::string_view type_name() const override { return "Scaled"; }
//
//      private:
//       absl::StatusOr<Value> Forward(absl::Span<const Value> inputs) override;
//       void Visit(ModuleVisitor& v) override {
//         v.Parameter("scale", scale_);
//         v.Child("inner", inner_);
//       }
//       Value scale_;
//       std::shared_ptr<Module> inner_;
//     };
//
// Tree. A module names its members in Visit. Their paths, Find, Get,
// NamedParameters, To (module_tree.h), State, LoadState (module_state.h) and
// ShardModule (sharding_plan.h) follow from that. Names are not empty, have no
// dots, and differ within a module. A module may be a member of several, but
// not of itself.
//
// Hooks. A module's hooks run in the order in which they were added. Copies of
// a module, as Clone makes them, have the same hooks.
//
// Threads. Like a standard container. Where members are sharded, calls are
// collective: the ranks make the same calls in the same order.
class Module {
 public:
  virtual ~Module() = default;

  // Runs Forward, and then the output hooks, each on the result of the one
  // before.
  //
  // Errors. Those of Forward and of the hooks.
  absl::StatusOr<Value> Call(absl::Span<const Value> inputs);

  // Returns a module of the same class with elements and children of its own.
  // Most classes return CloneOf(*this). Null, which every caller checks, and an
  // error in the log, if there is no memory or the module is in itself. Members
  // that share elements or modules share them in the clone. Not collective.
  virtual std::shared_ptr<Module> Clone() const = 0;

  // The name of the class, for messages: "Linear".
  virtual absl::string_view type_name() const = 0;

  // Runs `hook` on each output of Call. Null is ignored, as below.
  void AddOutputHook(OutputHook hook);
  // Runs `hook` in State, after the entries of this module and its children.
  void AddStateHook(StateHook hook);
  // Runs `hook` in LoadState, before the members of this module are filled.
  void AddLoadHook(LoadHook hook);

 protected:
  Module() = default;
  // Copies share elements and children: for Clone.
  Module(const Module&) = default;
  Module& operator=(const Module&) = delete;

  virtual absl::StatusOr<Value> Forward(absl::Span<const Value> inputs) = 0;

  // Passes every member to `v`, always in the same order. `v` may replace what
  // a member holds, but keeps no reference to it.
  virtual void Visit(ModuleVisitor& v) = 0;

 private:
  friend class internal::ModuleAccess;

  struct Hooks {
    std::vector<OutputHook> output;
    std::vector<StateHook> state;
    std::vector<LoadHook> load;
  };

  Hooks hooks_;
};

// A child of a module whose children are not fixed.
struct NamedModule {
  std::string name;
  std::shared_ptr<Module> module;
};

// A member that holds a child module, as a visitor sees it.
class ChildSlot {
 public:
  template <std::derived_from<Module> M>
  explicit ChildSlot(std::shared_ptr<M>& member)
      : member_(&member), module_(member), assign_(&Assign<M>) {}

  // May be null.
  const std::shared_ptr<Module>& module() const { return module_; }

  // Replaces the child.
  //   kInvalidArgument  The member is of a class from which the new child is
  //                     not derived.
  absl::Status Set(std::shared_ptr<Module> module);

 private:
  template <typename M>
  static bool Assign(void* member, const std::shared_ptr<Module>& module) {
    std::shared_ptr<M> typed = std::dynamic_pointer_cast<M>(module);
    if (module != nullptr && typed == nullptr) return false;
    *static_cast<std::shared_ptr<M>*>(member) = std::move(typed);
    return true;
  }

  void* member_;
  std::shared_ptr<Module> module_;
  bool (*assign_)(void* member, const std::shared_ptr<Module>& module);
};

// What a member is. State and LoadState see parameters and buffers; plans shard
// parameters, buffers and attributes.
enum class MemberKind : int32_t {
  // What is learned.
  kParameter,
  // What belongs to the state but is not learned.
  kBuffer,
  // What belongs to the state only by hooks; see AddShardedAttributeHooks.
  kAttribute,
};

// Sees the members of a module; see Module::Visit. Module::Visit calls the
// functions at the top, tools that walk trees implement those at the bottom.
class ModuleVisitor {
 public:
  virtual ~ModuleVisitor() = default;

  void Parameter(absl::string_view name, Value& member) {
    OnMember(MemberKind::kParameter, name, member);
  }
  void Buffer(absl::string_view name, Value& member) {
    OnMember(MemberKind::kBuffer, name, member);
  }
  void Attribute(absl::string_view name, Value& member) {
    OnMember(MemberKind::kAttribute, name, member);
  }
  // A child that the module expects to be an M, such as Module, which a plan
  // can replace by any module. Null: there is none.
  template <std::derived_from<Module> M>
  void Child(absl::string_view name, std::shared_ptr<M>& member) {
    ChildSlot slot(member);
    OnChild(name, slot);
  }
  // Children of any number.
  void Children(std::vector<NamedModule>& members) { OnChildren(members); }

 private:
  virtual void OnMember(MemberKind /*kind*/, absl::string_view /*name*/,
                        Value& /*member*/) {}
  virtual void OnChild(absl::string_view /*name*/, ChildSlot& /*slot*/) {}
  // By default calls OnChild for each of them.
  virtual void OnChildren(std::vector<NamedModule>& members);
};

namespace internal {

// Gives every tensor among the members elements of its own, and replaces the
// children by their clones. Returns false, after an error in the log, if there
// is no memory or the module is in itself.
bool CloneMembers(Module& module);

}  // namespace internal

// A clone of a module whose members are all named by Visit or cheap to copy:
// the body of Module::Clone. M has a copy constructor that it may call.
template <std::derived_from<Module> M>
std::shared_ptr<M> CloneOf(const M& module) {
  auto clone = std::make_shared<M>(module);
  return internal::CloneMembers(*clone) ? clone : nullptr;
}

}  // namespace sherd

#endif  // SHERD_CORE_NN_MODULE_H_
