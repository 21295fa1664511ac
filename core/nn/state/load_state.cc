#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/module_state.h"
#include "sherd/core/nn/tree/group_agreement.h"
#include "sherd/core/nn/tree/module_access.h"
#include "sherd/core/nn/tree/module_contents.h"
#include "sherd/core/nn/tree/tree_snapshot.h"
#include "sherd/core/nn/tree/value_identity.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

using internal::IdentityOf;
using internal::ModuleContents;
using internal::NamedMember;
using internal::ValueIdentity;

constexpr char kOperation[] = "load_state";

// The path of a member as a name of a state, where parts are escaped.
std::string StateName(absl::string_view path) {
  return absl::StrJoin(absl::StrSplit(path, '.'), ".",
                       [](std::string* out, absl::string_view name) {
                         absl::StrAppend(out, StateDict::EscapeKey(name));
                       });
}

// A state's tensor as a member's value, or a list or map of its size without
// values yet; none for other kinds.
Value RoomFor(const StateValue& source) {
  if (const auto* tensor = source.get_if<Tensor>()) return *tensor;
  if (const auto* sharded = source.get_if<ShardedTensor>()) return *sharded;
  if (const auto* items = source.get_if<StateList>()) {
    return ValueList(items->size());
  }
  const auto* entries = source.get_if<StateDict>();
  if (entries == nullptr) return Value();
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
  const auto* const tensor = target.get_if<Tensor>();
  if (tensor != nullptr && from.group != nullptr && !from.group->is_member()) {
    return absl::StrCat("this process is not in the group '",
                        from.group->name(),
                        "', over which the state's tensor is spread, and so "
                        "cannot get the whole");
  }
  if (tensor != nullptr && !tensor->writable()) {
    return "the member may not be written to, or is on meta";
  }
  return "";
}

bool SameShards(const ShardedTensor& a, const ShardedTensor& b) {
  const std::vector<ShardMetadata>& left = a.metadata().shards;
  const std::vector<ShardMetadata>& right = b.metadata().shards;
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    SameShard);
}

absl::Status CopyTensor(const Value& source, Value& target) {
  const auto* from = source.get_if<ShardedTensor>();
  if (auto* to = target.get_if<ShardedTensor>()) {
    // A process outside the group has no shards to fill.
    if (to->group() != nullptr && !to->group()->is_member()) {
      return absl::OkStatus();
    }
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
  return absl::StrCat(
      "; ", title, ": ",
      absl::StrJoin(names, ", ", [](std::string* out, const auto& name) {
        absl::StrAppend(out, PrintableLine(name));
      }));
}

// One LoadState: Match, Agree, Copy, in this order.
class StateLoader {
 public:
  // Finds the groups, also those of a tree that is not valid: a rank with an
  // error meets the others in Agree. The references outlive it.
  StateLoader(Module& root, const StateDict& state,
              const LoadStateOptions& options)
      : root_(root),
        state_(state),
        strict_(options.strict),
        groups_(options.group) {
    groups_.AddMembers(root, /*with_attributes=*/false);
    for (const auto& [name, tensor] : state.sharded_tensors()) {
      groups_.Add(tensor);
    }
    if (groups_.empty()) groups_.AddMembers(root);
  }

  // Finds the value of each member, and fills the members that are none. Runs
  // load hooks.
  //   kFailedPrecondition  With `strict`: the report is not empty.
  absl::Status Match() {
    SHERD_RETURN_IF_ERROR(internal::ForEachModule(
        root_,
        [this](const std::string& prefix, Module& module,
               const ModuleContents&) { return MatchModule(module, prefix); }));
    FindUnexpected();
    const std::string text =
        absl::StrCat(Section("missing keys", report_.missing),
                     Section("unexpected keys", report_.unexpected),
                     Section("mismatched", report_.mismatched));
    if (!strict_ || text.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("the state does not fit the module", text,
                     "; load what fits with strict = false"));
  }

  // Makes an error of one rank that of all ranks of the groups, and compares
  // what they are about to move.
  absl::Status Agree(absl::Status local) const {
    const auto describe = [this] {
      std::string text;
      for (const Move& move : moves_) {
        // Each rank copies plain tensors by itself.
        if (move.source.kind() != ValueKind::kShardedTensor) continue;
        absl::StrAppend(&text, PrintableLine(move.name), " from a ",
                        Name(move.source.kind()), " into a ",
                        Name(move.target.kind()), "\n");
      }
      return text;
    };
    return groups_.Agree(kOperation, std::move(local),
                         {Fingerprint().Add(describe()).value(), describe});
  }

  // Copies the elements. Continues after an error, as the other ranks do, and
  // returns the first.
  absl::Status Copy() {
    absl::Status status;
    for (Move& move : moves_) {
      absl::Status moved = CopyTensor(move.source, move.target);
      status.Update(Annotate(std::move(moved), PrintableLine(move.name)));
    }
    return status;
  }

  LoadStateReport report() && { return std::move(report_); }

 private:
  // Elements that move. Both are a Tensor or a ShardedTensor.
  struct Move {
    std::string name;
    Value target;
    Value source;
  };

  absl::Status MatchModule(Module& module, const std::string& prefix);
  // Matches a value with that of the state; replaces what is none, also in
  // lists and maps. Returns whether it did.
  bool Match(const std::string& name, Value& target, const StateValue& source);
  bool MatchList(const std::string& name, ValueList& list,
                 const StateValue& source);
  bool MatchMap(const std::string& name, ValueMap& map,
                const StateValue& source);
  void MatchTensor(const std::string& name, const Value& target,
                   const Value& source);
  // Whether `value` is none, or was until this call filled it by another path.
  bool IsToBeFilled(const Value& value) const {
    if (value.is_none()) return true;
    const auto identity = IdentityOf(value);
    return identity && filled_.contains(*identity);
  }
  bool Mismatch(const std::string& name, absl::string_view why) {
    taken_.insert(name);
    report_.mismatched.push_back(absl::StrCat(PrintableLine(name), ": ", why));
    return false;
  }
  void FindUnexpected();

  Module& root_;
  const StateDict& state_;
  const bool strict_;
  LoadStateReport report_;
  std::vector<Move> moves_;
  internal::GroupAgreement groups_;
  // Tensors of the state that members have become handles of. They are the
  // caller's: a module with several paths must not copy into them.
  absl::flat_hash_set<ValueIdentity> filled_;
  // The source of the last move to each target: tied members are copied once.
  absl::flat_hash_map<ValueIdentity, ValueIdentity> last_sources_;
  // Names of the state that members and hooks took.
  absl::flat_hash_set<std::string> taken_;
};

absl::Status StateLoader::MatchModule(Module& module,
                                      const std::string& prefix) {
  const std::string state_prefix = StateName(prefix);
  std::vector<std::string> taken;
  for (const LoadHook& hook : internal::ModuleAccess::HooksOf(module).load) {
    SHERD_RETURN_IF_ERROR(hook(module, state_prefix, state_, taken));
  }
  taken_.insert(taken.begin(), taken.end());
  // As the hooks left it.
  SHERD_ASSIGN_OR_RETURN(ModuleContents contents, internal::ContentsOf(module));
  for (NamedMember& member : contents.members) {
    if (member.kind == MemberKind::kAttribute) continue;
    const std::string name =
        absl::StrCat(state_prefix, StateDict::EscapeKey(member.name));
    const absl::StatusOr<const StateValue*> source = state_.Find(name);
    if (source.ok()) {
      if (Match(name, member.value, **source)) {
        internal::ReplaceMember(module, member.name, std::move(member.value));
      }
    } else if (!member.value.is_none()) {
      report_.missing.push_back(name);
    }
  }
  return absl::OkStatus();
}

bool StateLoader::Match(const std::string& name, Value& target,
                        const StateValue& source) {
  const bool filled = IsToBeFilled(target);
  if (filled) {
    Value room = RoomFor(source);
    if (room.is_none() && !source.is_none()) {
      return Mismatch(name,
                      absl::StrCat(source.ToString(), " is not a tensor"));
    }
    target = std::move(room);
    if (const auto identity = IdentityOf(target)) filled_.insert(*identity);
  }
  if (auto* list = target.get_if<ValueList>()) {
    return MatchList(name, *list, source) || filled;
  }
  if (auto* map = target.get_if<ValueMap>()) {
    return MatchMap(name, *map, source) || filled;
  }
  if (filled) {
    taken_.insert(name);
    return true;
  }
  const Value value = RoomFor(source);
  if (value.kind() != ValueKind::kTensor &&
      value.kind() != ValueKind::kShardedTensor) {
    return Mismatch(name, absl::StrCat(source.ToString(), " is not a tensor"));
  }
  MatchTensor(name, target, value);
  return false;
}

bool StateLoader::MatchList(const std::string& name, ValueList& list,
                            const StateValue& source) {
  const auto* items = source.get_if<StateList>();
  if (items == nullptr || items->size() != list.size()) {
    return Mismatch(name,
                    absl::StrCat(source.ToString(), " does not fit a list of ",
                                 list.size()));
  }
  taken_.insert(name);
  bool filled = false;
  for (size_t i = 0; i < list.size(); ++i) {
    filled |= Match(absl::StrCat(name, "[", i, "]"), list[i], (*items)[i]);
  }
  return filled;
}

bool StateLoader::MatchMap(const std::string& name, ValueMap& map,
                           const StateValue& source) {
  const auto* entries = source.get_if<StateDict>();
  if (entries == nullptr) {
    return Mismatch(name,
                    absl::StrCat(source.ToString(), " does not fit a map"));
  }
  // Only an empty one has an entry of its own.
  if (entries->empty()) taken_.insert(name);
  bool filled = false;
  for (auto& [key, item] : map) {
    const std::string escaped = StateDict::EscapeKey(key);
    const absl::StatusOr<const StateValue*> entry = entries->Find(escaped);
    const std::string entry_name = absl::StrCat(name, ".", escaped);
    if (entry.ok()) {
      filled |= Match(entry_name, item, **entry);
    } else {
      report_.missing.push_back(entry_name);
    }
  }
  return filled;
}

void StateLoader::MatchTensor(const std::string& name, const Value& target,
                              const Value& source) {
  if (target.kind() == ValueKind::kPartialTensor) {
    Mismatch(name, "a PartialTensor cannot be loaded");
    return;
  }
  if (const std::string why = WhyNotCopied(source, target); !why.empty()) {
    Mismatch(name, why);
    return;
  }
  taken_.insert(name);
  const auto from = IdentityOf(source);
  const auto to = IdentityOf(target);
  if (from && to) {
    if (*from == *to) return;
    const auto [last, is_first] = last_sources_.emplace(*to, *from);
    if (!is_first && last->second == *from) return;
    last->second = *from;
  }
  moves_.push_back({name, target, source});
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

// Calls `visit` for the attributes in the tree of `root`, with their names in a
// state.
absl::Status ForEachAttribute(
    Module& root, absl::string_view prefix,
    absl::FunctionRef<absl::Status(std::string name, NamedMember& member)>
        visit) {
  SHERD_ASSIGN_OR_RETURN(std::vector<NamedMember> members,
                         internal::MembersOf(root));
  for (NamedMember& member : members) {
    if (member.kind != MemberKind::kAttribute) continue;
    SHERD_RETURN_IF_ERROR(
        visit(absl::StrCat(prefix, StateName(member.path)), member));
  }
  return absl::OkStatus();
}

absl::Status SaveAttributes(Module& root, absl::string_view prefix,
                            StateDict& state) {
  return ForEachAttribute(
      root, prefix, [&](const std::string& name, NamedMember& member) {
        const auto* tensor = member.value.get_if<ShardedTensor>();
        return tensor == nullptr ? absl::OkStatus() : state.Set(name, *tensor);
      });
}

absl::Status LoadAttributes(Module& root, absl::string_view prefix,
                            const StateDict& state,
                            std::vector<std::string>& taken) {
  return ForEachAttribute(
      root, prefix, [&](std::string name, NamedMember& member) {
        absl::StatusOr<ShardedTensor> tensor = state.Get<ShardedTensor>(name);
        if (tensor.ok()) {
          internal::ReplaceMember(*member.module, member.name,
                                  *std::move(tensor));
          taken.push_back(std::move(name));
        }
        return absl::OkStatus();
      });
}

}  // namespace

absl::StatusOr<LoadStateReport> LoadState(Module& root, const StateDict& state,
                                          const LoadStateOptions& options) {
  absl::StatusOr<internal::TreeSnapshot> before =
      internal::TreeSnapshot::Take(root);
  StateLoader loader(root, state, options);
  absl::Status status = before.status();
  if (status.ok()) status = loader.Match();
  status = loader.Agree(std::move(status));
  if (!status.ok()) {
    if (before.ok()) before->Restore();
    return status;
  }
  SHERD_RETURN_IF_ERROR(loader.Copy());
  return std::move(loader).report();
}

void AddShardedAttributeHooks(Module& root) {
  root.AddStateHook(SaveAttributes);
  root.AddLoadHook(LoadAttributes);
}

}  // namespace sherd
