#include "sherd/core/sharding/sharded_op_registry.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <typeindex>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"

namespace sherd::internal {
namespace {

// The name of a class as its author wrote it, but for our own namespace.
std::string ClassName(std::type_index type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  if (status != 0) return type.name();
  return std::string(absl::StripPrefix(absl::string_view(text.get()),
                                       absl::string_view("sherd::")));
}

// The classes from which one is derived directly and publicly, in the order of
// their declaration.
//
// Source. "Itanium C++ ABI", §2.9.5: what dynamic_cast reads.
std::vector<const std::type_info*> PublicBases(const std::type_info& type) {
  if (const auto* one = dynamic_cast<const abi::__si_class_type_info*>(&type)) {
    return {one->__base_type};
  }
  std::vector<const std::type_info*> bases;
  if (const auto* several =
          dynamic_cast<const abi::__vmi_class_type_info*>(&type)) {
    for (unsigned i = 0; i < several->__base_count; ++i) {
      const abi::__base_class_type_info& base = several->__base_info[i];
      if (base.__is_public_p()) bases.push_back(base.__base_type);
    }
  }
  return bases;
}

// `type` and all its bases, the nearest first.
std::vector<const std::type_info*> Ancestry(const std::type_info& type) {
  std::vector<const std::type_info*> ancestry = {&type};
  for (size_t i = 0; i < ancestry.size(); ++i) {
    for (const std::type_info* base : PublicBases(*ancestry[i])) {
      ancestry.push_back(base);
    }
  }
  return ancestry;
}

class Registry {
 public:
  void Store(std::type_index op, std::type_index spec, SpecTest test,
             ErasedImplementation implementation) {
    absl::MutexLock lock(&mutex_);
    ops_[op].insert_or_assign(spec, Entry{test, std::move(implementation)});
  }

  // Null if no implementation is registered.
  ErasedImplementation Find(std::type_index op,
                            const ShardingSpec& spec) const {
    absl::ReaderMutexLock lock(&mutex_);
    const auto entries = ops_.find(op);
    if (entries == ops_.end()) return nullptr;
    for (const std::type_info* type : Ancestry(typeid(spec))) {
      const auto entry = entries->second.find(*type);
      // A class that is a base more than once is an ambiguous base.
      if (entry != entries->second.end() && entry->second.test(spec)) {
        return entry->second.implementation;
      }
    }
    return nullptr;
  }

  bool Remove(std::type_index op, std::type_index spec) {
    absl::MutexLock lock(&mutex_);
    const auto entries = ops_.find(op);
    return entries != ops_.end() && entries->second.erase(spec) > 0;
  }

  std::vector<std::string> Specs(std::type_index op) const {
    std::vector<std::string> names;
    absl::ReaderMutexLock lock(&mutex_);
    const auto entries = ops_.find(op);
    if (entries == ops_.end()) return names;
    for (const auto& [spec, entry] : entries->second) {
      names.push_back(ClassName(spec));
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  struct Entry {
    SpecTest test;
    ErasedImplementation implementation;
  };

  mutable absl::Mutex mutex_;
  std::map<std::type_index, std::map<std::type_index, Entry>> ops_
      ABSL_GUARDED_BY(mutex_);
};

// Lives forever: operations are registered and called while the program starts
// and ends.
Registry& TheRegistry() {
  static Registry& registry = *new Registry();
  return registry;
}

}  // namespace

void OpArguments::AddTensor(const ShardedTensor& tensor) {
  if (!tensor.defined()) {
    ++count_;
    undefined_ = true;
    return;
  }
  if (spec_ == nullptr) spec_ = tensor.spec();
  AddGroup(tensor.group().get());
}

void OpArguments::AddPartial(const PartialTensor& tensor) {
  if (!tensor.defined()) {
    ++count_;
    undefined_ = true;
    return;
  }
  AddGroup(tensor.group().get());
}

void OpArguments::AddGroup(const ProcessGroup* group) {
  if (count_++ == 0) group_ = group;
  if (group != group_) several_groups_ = true;
}

absl::StatusOr<ShardingSpecPtr> OpArguments::Check(absl::string_view op) const {
  if (undefined_) {
    return absl::FailedPreconditionError(
        absl::StrCat(op, ": a distributed tensor was not created"));
  }
  if (several_groups_) {
    return absl::FailedPreconditionError(absl::StrCat(
        op, ": All distributed tensors should use the same ProcessGroup"));
  }
  if (spec_ == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(op,
                     " was called without any distributed tensor: no "
                     "ShardedTensor whose spec selects the implementation"));
  }
  return spec_;
}

void StoreShardedOp(const std::type_info& op, const std::type_info& spec,
                    SpecTest test, ErasedImplementation implementation) {
  TheRegistry().Store(op, spec, test, std::move(implementation));
}

absl::StatusOr<ErasedImplementation> FindShardedOp(const std::type_info& op,
                                                   absl::string_view name,
                                                   const ShardingSpec& spec) {
  ErasedImplementation found = TheRegistry().Find(op, spec);
  if (found != nullptr) return found;
  const std::vector<std::string> specs = SpecsOfShardedOp(op);
  return absl::FailedPreconditionError(absl::StrCat(
      name, " with ", ClassName(typeid(spec)), " (registered for: ",
      specs.empty() ? "no spec" : absl::StrJoin(specs, ", "),
      ") is not supported for ShardedTensor!"));
}

bool RemoveShardedOp(const std::type_info& op, const std::type_info& spec) {
  return TheRegistry().Remove(op, spec);
}

std::vector<std::string> SpecsOfShardedOp(const std::type_info& op) {
  return TheRegistry().Specs(op);
}

}  // namespace sherd::internal
