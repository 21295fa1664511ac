#include "sherd/core/nn/plan/plan_tree.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/module_tree.h"
#include "sherd/core/nn/tree/module_access.h"

namespace sherd::internal {
namespace {

// Acts on the child of a name, which is expected at a position of the parent's
// list: no walk through thousands of children.
class ChildVisitor : public ModuleVisitor {
 public:
  ChildVisitor(absl::string_view name, size_t position,
               absl::FunctionRef<void(ChildSlot&)> act)
      : name_(name), position_(position), act_(act) {}

 private:
  void OnChild(absl::string_view name, ChildSlot& slot) override {
    if (name == name_) act_(slot);
  }
  void OnChildren(std::vector<NamedModule>& members) override {
    auto at = members.begin() +
              static_cast<std::ptrdiff_t>(std::min(position_, members.size()));
    if (at == members.end() || at->name != name_) {
      at = std::find_if(
          members.begin(), members.end(),
          [this](const NamedModule& child) { return child.name == name_; });
    }
    if (at == members.end()) return;
    ChildSlot slot(at->module);
    act_(slot);
  }

  const absl::string_view name_;
  const size_t position_;
  const absl::FunctionRef<void(ChildSlot&)> act_;
};

// `act` lives as long as the visit.
void VisitChild(Module& parent, absl::string_view name, size_t position,
                absl::FunctionRef<void(ChildSlot&)> act) {
  ChildVisitor visitor(name, position, act);
  ModuleAccess::Visit(parent, visitor);
}

std::vector<absl::string_view> PathsWithSpecs(const ShardingPlan& plan) {
  std::vector<absl::string_view> paths;
  for (const PlanEntry& entry : plan.plan) {
    if (std::holds_alternative<ShardingSpecPtr>(entry.method)) {
      paths.push_back(entry.path);
    }
  }
  return paths;
}

absl::Status DifferentTies(absl::string_view a, absl::string_view b,
                           bool here) {
  return absl::InvalidArgumentError(absl::StrCat(
      "`", PrintableLine(a), "` and `", PrintableLine(b), "` are one tensor ",
      here ? "here, but not on the source" : "on the source, but not here",
      ": expected the same ties on every rank, or tensors without elements"));
}

// A line per tensor: its places, each a position and a path.
absl::StatusOr<std::vector<std::pair<std::string, size_t>>> ParsePlaces(
    absl::string_view line) {
  std::vector<std::pair<std::string, size_t>> places;
  for (const absl::string_view text : absl::StrSplit(line, '\t')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(text, absl::MaxSplits(' ', 1));
    auto& [path, position] = places.emplace_back();
    if (!absl::SimpleAtoi(parts.first, &position) ||
        !absl::CUnescape(parts.second, &path)) {
      return absl::DataLossError(
          absl::StrCat("the source sent `", absl::CEscape(text),
                       "`, expected the place of a tensor"));
    }
  }
  return places;
}

}  // namespace

absl::StatusOr<PlanTree> PlanTree::Of(Module& root) {
  PlanTree tree(root);
  SHERD_RETURN_IF_ERROR(
      ForEachModule(root, [&](const std::string& prefix, Module& module,
                              const ModuleContents& contents) {
        for (const NamedMember& member : contents.members) {
          NamedMember& added = tree.members_[absl::StrCat(prefix, member.name)];
          added = member;
          added.path = absl::StrCat(prefix, member.name);
          tree.Add(added);
        }
        for (size_t i = 0; i < contents.children.size(); ++i) {
          const NamedModule& child = contents.children[i];
          tree.children_[absl::StrCat(prefix, child.name)] = {&module,
                                                              child.module, i};
        }
        return absl::OkStatus();
      }));
  return tree;
}

void PlanTree::Add(const NamedMember& member) {
  const ValueKind kind = member.value.kind();
  const bool whole = kind != ValueKind::kList && kind != ValueKind::kMap;
  Value value = member.value;
  size_t next = 0;
  (void)ForEachTensor(value, [&](Value& tensor) {
    const size_t position = next++;
    const size_t held = HeldAt(member, tensor, position);
    if (held == held_.size()) return absl::OkStatus();
    held_[held].holders.push_back(
        {member.module, member.kind, member.path, position, whole});
    places_.emplace(TensorPlace(member.path, position), held);
    return absl::OkStatus();
  });
}

size_t PlanTree::HeldAt(const NamedMember& member, const Value& tensor,
                        size_t position) {
  const size_t next = held_.size();
  const std::optional<ValueIdentity> identity = IdentityOf(tensor);
  const auto* const plain = tensor.get_if<Tensor>();
  if (!identity && (plain == nullptr || !plain->defined())) return next;
  const size_t at =
      identity
          ? by_elements_.emplace(*identity, next).first->second
          : without_elements_
                .emplace(std::tuple(member.module, member.name, position), next)
                .first->second;
  if (at < next) return at;
  TensorWithHolders& held = held_.emplace_back();
  held.has_elements = identity.has_value();
  if (plain != nullptr) {
    held.dtype = plain->dtype();
    held.sizes.assign(plain->sizes().begin(), plain->sizes().end());
  }
  return at;
}

absl::StatusOr<NamedMember> PlanTree::MemberAt(absl::string_view path) const {
  const auto found = members_.find(path);
  // Its error names what is missing.
  if (found == members_.end()) return internal::MemberAt(*root_, path);
  return found->second;
}

absl::StatusOr<Module*> PlanTree::Find(absl::string_view path) const {
  const auto found = children_.find(path);
  if (found == children_.end()) return sherd::Find(*root_, path);
  return found->second.module.get();
}

absl::StatusOr<std::shared_ptr<Module>> PlanTree::ChildAt(
    absl::string_view path) const {
  const absl::string_view name = SplitPath(path).second;
  const auto found = children_.find(path);
  if (found == children_.end()) return NoAttribute(*root_, path, name);
  const ChildPlace& child = found->second;
  std::shared_ptr<Module> held;
  VisitChild(*child.parent, name, child.position,
             [&](ChildSlot& slot) { held = slot.module(); });
  if (held == nullptr) return NoAttribute(*child.parent, path, name);
  return held;
}

absl::Status PlanTree::ReplaceChild(absl::string_view path,
                                    std::shared_ptr<Module> child) const {
  const ChildPlace& place = children_.at(path);
  absl::Status status;
  VisitChild(*place.parent, SplitPath(path).second, place.position,
             [&](ChildSlot& slot) { status = slot.Set(child); });
  return status;
}

absl::Span<const TensorHolder> PlanTree::HoldersOf(
    absl::string_view path) const {
  const auto place = places_.find(TensorPlace(path, 0));
  if (place == places_.end()) return {};
  return held_[place->second].holders;
}

bool PlanTree::NeedsTies(const ShardingPlan& plan) const {
  for (const absl::string_view path : PathsWithSpecs(plan)) {
    const auto place = places_.find(TensorPlace(path, 0));
    if (place == places_.end()) continue;
    const TensorWithHolders& held = held_[place->second];
    if (!held.has_elements || held.holders.size() > 1) return true;
  }
  return false;
}

std::string PlanTree::TiesOf(const ShardingPlan& plan) const {
  std::string text;
  absl::flat_hash_set<const TensorHolder*> written;
  for (const absl::string_view path : PathsWithSpecs(plan)) {
    const absl::Span<const TensorHolder> holders = HoldersOf(path);
    if (holders.size() < 2 || !written.insert(holders.data()).second) continue;
    absl::StrAppend(
        &text,
        absl::StrJoin(holders, "\t",
                      [](std::string* out, const TensorHolder& holder) {
                        absl::StrAppend(out, holder.position, " ",
                                        absl::CEscape(holder.path));
                      }),
        "\n");
  }
  return text;
}

absl::Status PlanTree::Tie(absl::Span<const TensorPlace> places) {
  std::vector<size_t> tied;
  for (const TensorPlace& place : places) {
    const auto found = places_.find(place);
    if (found == places_.end()) {
      return DifferentTies(places[0].first, place.first, /*here=*/false);
    }
    if (std::find(tied.begin(), tied.end(), found->second) == tied.end()) {
      tied.push_back(found->second);
    }
  }
  // The one with elements first, if there is one.
  std::stable_partition(tied.begin(), tied.end(),
                        [this](size_t i) { return held_[i].has_elements; });
  std::vector<TensorHolder> holders;
  for (const size_t i : tied) {
    const TensorWithHolders& held = held_[i];
    const TensorWithHolders& first = held_[tied[0]];
    if (i != tied[0] && (held.has_elements || held.dtype != first.dtype ||
                         held.sizes != first.sizes)) {
      return DifferentTies(first.holders[0].path, held.holders[0].path,
                           /*here=*/false);
    }
    holders.insert(holders.end(), held.holders.begin(), held.holders.end());
  }
  for (const TensorHolder& holder : holders) {
    const TensorPlace place(holder.path, holder.position);
    if (std::find(places.begin(), places.end(), place) == places.end()) {
      return DifferentTies(places[0].first, holder.path, /*here=*/true);
    }
  }
  for (const TensorPlace& place : places) places_[place] = tied[0];
  held_[tied[0]].holders = std::move(holders);
  held_[tied[0]].is_tied = true;
  return absl::OkStatus();
}

absl::Status PlanTree::TieAs(absl::string_view ties, const ShardingPlan& plan) {
  for (const absl::string_view line :
       absl::StrSplit(ties, '\n', absl::SkipEmpty())) {
    SHERD_ASSIGN_OR_RETURN(const std::vector<TensorPlace> places,
                           ParsePlaces(line));
    SHERD_RETURN_IF_ERROR(Tie(places));
  }
  for (const absl::string_view path : PathsWithSpecs(plan)) {
    const absl::Span<const TensorHolder> holders = HoldersOf(path);
    if (holders.size() < 2 || held_[places_.at(TensorPlace(path, 0))].is_tied) {
      continue;
    }
    return DifferentTies(holders[0].path, holders[1].path, /*here=*/true);
  }
  return absl::OkStatus();
}

void PlanTree::TieWhatFits(absl::string_view ties) {
  for (const absl::string_view line :
       absl::StrSplit(ties, '\n', absl::SkipEmpty())) {
    const auto places = ParsePlaces(line);
    if (places.ok()) Tie(*places).IgnoreError();
  }
}

absl::Status PlanTree::CheckTies(const PlanTree& now) const {
  for (const TensorWithHolders& held : held_) {
    if (held.holders.size() == 1) continue;
    const NamedMember* first = nullptr;
    for (const TensorHolder& holder : held.holders) {
      const auto member = now.members_.find(holder.path);
      if (!holder.whole || member == now.members_.end()) continue;
      if (first == nullptr) first = &member->second;
      // Or, without elements here, tied as on the source.
      if (IdentityOf(first->value) == IdentityOf(member->second.value) ||
          now.HoldersOf(first->path).data() ==
              now.HoldersOf(holder.path).data()) {
        continue;
      }
      return absl::FailedPreconditionError(absl::StrCat(
          "`", first->path, "` and `", holder.path,
          "` were one tensor and are two: expected both to be sharded, or "
          "none"));
    }
  }
  return absl::OkStatus();
}

void TensorReplacements::Add(absl::Span<const TensorHolder> holders,
                             const Value& value) {
  for (const TensorHolder& holder : holders) {
    modules_[holder.module][SplitPath(holder.path).second].emplace_back(
        holder.position, value);
  }
}

void TensorReplacements::Apply() {
  for (auto& [module, members] : modules_) {
    VisitMembers(*module, [&, &of_module = members](
                              MemberKind, absl::string_view name, Value& held) {
      const auto found = of_module.find(name);
      if (found == of_module.end()) return;
      size_t next = 0;
      (void)ForEachTensor(held, [&](Value& tensor) {
        const size_t position = next++;
        for (const auto& [at, value] : found->second) {
          if (at == position) tensor = value;
        }
        return absl::OkStatus();
      });
    });
  }
  modules_.clear();
}

}  // namespace sherd::internal
