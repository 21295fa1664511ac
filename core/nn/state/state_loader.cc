#include "sherd/core/nn/state/state_loader.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/tree/module_access.h"
#include "sherd/core/nn/tree/module_contents.h"
#include "sherd/core/nn/tree/value_identity.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::internal {
namespace {

// A state's tensor as a member's value; none for other kinds.
Value TensorOf(const StateValue& source) {
  if (const auto* tensor = source.get_if<Tensor>()) return *tensor;
  if (const auto* sharded = source.get_if<ShardedTensor>()) return *sharded;
  return Value();
}

// A list or map without values yet for the one of a state, or the tensor.
Value RoomFor(const StateValue& source) {
  if (const auto* items = source.get_if<StateList>()) {
    return ValueList(items->size());
  }
  const auto* entries = source.get_if<StateDict>();
  if (entries == nullptr) return TensorOf(source);
  ValueMap map;
  for (const StateEntry& entry : *entries) map.emplace(entry.name, Value());
  return map;
}

struct Form {
  absl::Span<const int64_t> size;
  DType dtype;
  ProcessGroup* group = nullptr;
};

Form FormOf(const Value& value) {
  if (const auto* sharded = value.get_if<ShardedTensor>()) {
    return {sharded->size(), sharded->dtype(), sharded->group().get()};
  }
  const auto* tensor = value.get_if<Tensor>();
  return {tensor->sizes(), tensor->dtype()};
}

// Why a tensor cannot be copied into another, or "".
std::string WhyNotCopied(const Value& source, const Value& target) {
  const Form from = FormOf(source);
  const Form to = FormOf(target);
  if (from.size != to.size || from.dtype != to.dtype) {
    return absl::StrCat("a ", Name(from.dtype), " tensor of size ",
                        FormatDims(from.size), " does not fit a ",
                        Name(to.dtype), " one of size ", FormatDims(to.size));
  }
  const bool both = from.group != nullptr && to.group != nullptr;
  if (both && from.group != to.group) {
    return absl::StrCat("the state's tensor is spread over the group '",
                        from.group->name(), "', the member over the group '",
                        to.group->name(), "'; see TransferBetweenGroups");
  }
  if (source.kind() == ValueKind::kShardedTensor && from.group == nullptr) {
    return "the state's sharded tensor has no group to move it";
  }
  if (const auto* tensor = target.get_if<Tensor>();
      tensor != nullptr && !tensor->writable()) {
    return "the member may not be written to, or is on meta";
  }
  return "";
}

bool SameShards(const ShardedTensor& a, const ShardedTensor& b) {
  const std::vector<ShardMetadata>& left = a.metadata().shards;
  const std::vector<ShardMetadata>& right = b.metadata().shards;
  if (left.size() != right.size()) return false;
  for (size_t i = 0; i < left.size(); ++i) {
    if (!SameShard(left[i], right[i])) return false;
  }
  return true;
}

absl::Status CopyTensor(const Value& source, Value& target) {
  const auto* from = source.get_if<ShardedTensor>();
  if (auto* to = target.get_if<ShardedTensor>()) {
    if (from == nullptr) {
      const Tensor& whole = *source.get_if<Tensor>();
      for (const Shard& shard : to->local_shards()) {
        Tensor tensor = shard.tensor;
        SHERD_ASSIGN_OR_RETURN(
            const Tensor part,
            whole.Narrow(shard.metadata.offsets, shard.metadata.sizes));
        SHERD_RETURN_IF_ERROR(tensor.CopyFrom(part));
      }
      return absl::OkStatus();
    }
    // With the same layout the two may share memory.
    if (SameShards(*from, *to)) return to->CopyFrom(*from);
    return from->ReshardInto(*to);
  }
  Tensor to = *target.get_if<Tensor>();
  if (from != nullptr) return from->AllGather(to).status();
  return to.CopyFrom(*source.get_if<Tensor>());
}

std::string Section(absl::string_view title,
                    const std::vector<std::string>& names) {
  if (names.empty()) return "";
  return absl::StrCat("; ", title, ": ", absl::StrJoin(names, ", "));
}

}  // namespace

std::string StatePrefix(absl::string_view prefix) {
  std::string result;
  for (const absl::string_view name :
       absl::StrSplit(prefix, '.', absl::SkipEmpty())) {
    absl::StrAppend(&result, StateDict::EscapeKey(name), ".");
  }
  return result;
}

StateLoader::StateLoader(Module& root, const StateDict& state)
    : root_(root), state_(state) {
  groups_.AddMembers(root, /*with_attributes=*/false);
  for (const auto& [name, tensor] : state.sharded_tensors()) {
    groups_.Add(tensor);
  }
}

absl::Status StateLoader::Match() {
  SHERD_RETURN_IF_ERROR(ForEachModule(
      root_,
      [this](const std::string& prefix, Module& module, const ModuleContents&) {
        return MatchModule(module, StatePrefix(prefix));
      }));
  FindUnexpected();
  return absl::OkStatus();
}

absl::Status StateLoader::MatchModule(Module& module,
                                      const std::string& prefix) {
  std::vector<std::string> taken;
  for (const LoadHook& hook : ModuleAccess::HooksOf(module).load) {
    SHERD_RETURN_IF_ERROR(hook(module, prefix, state_, taken));
  }
  for (std::string& name : taken) taken_.insert(std::move(name));
  // As the hooks left it.
  SHERD_ASSIGN_OR_RETURN(ModuleContents contents, ContentsOf(module));
  for (NamedMember& member : contents.members) {
    if (member.kind == MemberKind::kAttribute) continue;
    const std::string name =
        absl::StrCat(prefix, StateDict::EscapeKey(member.name));
    const absl::StatusOr<const StateValue*> source = state_.Find(name);
    filled_ = false;
    if (source.ok()) {
      Match(name, member.value, **source);
    } else if (!member.value.is_none()) {
      report_.missing.push_back(name);
    }
    if (filled_) {
      SHERD_RETURN_IF_ERROR(
          ReplaceMember(module, member.name, std::move(member.value)));
    }
  }
  return absl::OkStatus();
}

void StateLoader::Match(const std::string& name, Value& target,
                        const StateValue& source) {
  if (target.is_none()) {
    target = RoomFor(source);
    filled_ = !target.is_none() || filled_;
    if (target.is_none() && !source.is_none()) {
      return Mismatch(name,
                      absl::StrCat(source.ToString(), " is not a tensor"));
    }
    if (target.kind() != ValueKind::kList && target.kind() != ValueKind::kMap) {
      taken_.insert(name);
      return;
    }
  }
  if (auto* list = target.get_if<ValueList>()) {
    const auto* items = source.get_if<StateList>();
    if (items == nullptr || items->size() != list->size()) {
      return Mismatch(
          name, absl::StrCat(source.ToString(), " does not fit a list of ",
                             list->size()));
    }
    taken_.insert(name);
    for (size_t i = 0; i < list->size(); ++i) {
      Match(absl::StrCat(name, "[", i, "]"), (*list)[i], (*items)[i]);
    }
    return;
  }
  if (auto* map = target.get_if<ValueMap>()) {
    const auto* entries = source.get_if<StateDict>();
    if (entries == nullptr) {
      return Mismatch(name,
                      absl::StrCat(source.ToString(), " does not fit a map"));
    }
    // Only an empty one has an entry of its own.
    if (entries->empty()) taken_.insert(name);
    for (auto& [key, item] : *map) {
      const std::string escaped = StateDict::EscapeKey(key);
      const absl::StatusOr<const StateValue*> entry = entries->Find(escaped);
      const std::string entry_name = absl::StrCat(name, ".", escaped);
      if (entry.ok()) {
        Match(entry_name, item, **entry);
      } else {
        report_.missing.push_back(entry_name);
      }
    }
    return;
  }
  const Value value = TensorOf(source);
  if (value.is_none()) {
    return Mismatch(name, absl::StrCat(source.ToString(), " is not a tensor"));
  }
  MatchTensor(name, target, value);
}

void StateLoader::MatchTensor(const std::string& name, const Value& target,
                              const Value& source) {
  if (target.kind() == ValueKind::kPartialTensor) {
    return Mismatch(name, "a PartialTensor cannot be loaded");
  }
  if (const std::string why = WhyNotCopied(source, target); !why.empty()) {
    return Mismatch(name, why);
  }
  taken_.insert(name);
  if (IdentityOf(source) == IdentityOf(target) && IdentityOf(source)) return;
  // A process outside the group has no shards to fill.
  const auto* sharded = target.get_if<ShardedTensor>();
  if (sharded != nullptr && sharded->group() != nullptr &&
      !sharded->group()->is_member()) {
    return;
  }
  moves_.push_back({name, target, source});
}

void StateLoader::Mismatch(const std::string& name, absl::string_view why) {
  taken_.insert(name);
  report_.mismatched.push_back(absl::StrCat(name, ": ", why));
}

void StateLoader::FindUnexpected() {
  for (const StateEntry& entry : state_.Flatten()) {
    absl::string_view name = entry.name;
    bool taken = taken_.contains(name);
    // A name within a list or map that was taken as a whole.
    while (!taken) {
      const size_t end = name.find_last_of(".[");
      if (end == absl::string_view::npos) break;
      name = name.substr(0, end);
      taken = taken_.contains(name);
    }
    if (!taken) report_.unexpected.push_back(entry.name);
  }
}

absl::Status StateLoader::CheckComplete() const {
  const std::string text =
      absl::StrCat(Section("missing keys", report_.missing),
                   Section("unexpected keys", report_.unexpected),
                   Section("mismatched", report_.mismatched));
  if (text.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the state does not fit the module", text,
                   "; load what fits with strict = false"));
}

absl::Status StateLoader::Agree(absl::string_view operation,
                                absl::Status local) const {
  const auto describe = [this] {
    std::string text;
    for (const Move& move : moves_) {
      // Each rank copies plain tensors by itself.
      if (move.source.kind() != ValueKind::kShardedTensor) continue;
      absl::StrAppend(&text, move.name, " from a ", Name(move.source.kind()),
                      " into a ", Name(move.target.kind()), "\n");
    }
    return text;
  };
  return groups_.Agree(operation, std::move(local),
                       {Fingerprint().Add(describe()).value(), describe});
}

absl::Status StateLoader::Copy() {
  absl::Status status;
  for (Move& move : moves_) {
    absl::Status moved = CopyTensor(move.source, move.target);
    status.Update(Annotate(std::move(moved), move.name));
  }
  return status;
}

}  // namespace sherd::internal
