#include "sherd/core/nn/embedding.h"

#include <array>
#include <string>
#include <typeinfo>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/operation_label.h"
#include "sherd/core/nn/tree/group_agreement.h"
#include "sherd/core/nn/tree/module_access.h"
#include "sherd/core/nn/tree/module_contents.h"
#include "sherd/core/nn/tree/value_identity.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/nn/update/accumulators.h"
#include "sherd/core/tensor/random.h"

namespace sherd {
namespace {

absl::StatusOr<Tensor> DrawWeight(int64_t rows, int64_t columns,
                                  const BagOptions& options, DType dtype) {
  if (!IsFloatingPoint(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Expected a floating-point dtype, but found ", Name(dtype)));
  }
  SHERD_ASSIGN_OR_RETURN(Tensor weight,
                         Randn({rows, columns}, {.dtype = dtype}));
  if (!options.padding_idx) return weight;
  const int64_t row =
      *options.padding_idx + (*options.padding_idx < 0 ? rows : 0);
  if (row < 0 || row >= rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("padding_idx must be within the number of embeddings, ",
                     rows, ", got ", *options.padding_idx));
  }
  SHERD_ASSIGN_OR_RETURN(Tensor padding, weight.Select(0, row));
  SHERD_RETURN_IF_ERROR(padding.Fill(0));
  return weight;
}

//   kInvalidArgument  It holds neither a tensor nor a sharded one.
absl::StatusOr<EmbeddingTable> TableOf(const Value& weight,
                                       absl::string_view name) {
  if (const auto* const tensor = weight.get_if<Tensor>()) return *tensor;
  if (const auto* const sharded = weight.get_if<ShardedTensor>()) {
    return *sharded;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("Expected ", name, ".weight to be a Tensor, but found ",
                   Name(weight.kind())));
}

// Null for a module without a table of its own.
const Value* WeightOf(const Module& module) {
  if (const auto* const words = dynamic_cast<const Embedding*>(&module)) {
    return &words->weight();
  }
  const auto* const bag = dynamic_cast<const EmbeddingBag*>(&module);
  return bag == nullptr ? nullptr : &bag->weight();
}

// Visits the weight, and its accumulator, which it has in any memory.
void VisitWeight(ModuleVisitor& v, Value& weight) {
  const absl::StatusOr<EmbeddingTable> before = TableOf(weight, "");
  Value accumulator = before.ok() ? GetAccumulator(*before) : Value();
  const ValueKind kind = accumulator.kind();
  const auto identity = internal::IdentityOf(accumulator);
  v.Parameter("weight", weight);
  v.Buffer("accumulator", accumulator);
  const absl::StatusOr<EmbeddingTable> after = TableOf(weight, "");
  if (!after.ok()) return;
  if (accumulator.kind() != kind ||
      internal::IdentityOf(accumulator) != identity) {
    SetAccumulator(*after, std::move(accumulator));
  } else if (before.ok()) {
    // A weight that the visitor put there keeps its own.
    internal::InheritAccumulator(*before, *after);
  }
}

// Ids, and what may follow them.
absl::Status SetBags(absl::Span<const Value> inputs, size_t most, Bags& bags) {
  if (inputs.empty() || inputs.size() > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected ids", most == 1 ? "" : ", offsets and per_sample_weights",
        " as inputs, got ", inputs.size(), " inputs"));
  }
  const std::array<Tensor*, 3> members = {&bags.ids, &bags.offsets,
                                          &bags.per_sample_weights};
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].is_none()) continue;
    const auto* const tensor = inputs[i].get_if<Tensor>();
    if (tensor == nullptr) {
      constexpr absl::string_view kNames[] = {"input", "offsets",
                                              "per_sample_weights"};
      return absl::InvalidArgumentError(
          absl::StrCat(kNames[i], " need to be torch.Tensor, but found ",
                       Name(inputs[i].kind())));
    }
    *members[i] = *tensor;
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> LookUpOne(const Value& weight, absl::string_view name,
                                const BagOptions& options,
                                absl::Span<const Value> inputs, size_t most) {
  TableLookUp lookup;
  SHERD_ASSIGN_OR_RETURN(lookup.table, TableOf(weight, name));
  lookup.options = options;
  const absl::Status local = SetBags(inputs, most, lookup.bags);
  Tensor output;
  SHERD_RETURN_IF_ERROR(
      InOperation(LookUpOp::kName,
                  internal::LookUpAfter(local, absl::MakeConstSpan(&lookup, 1),
                                        absl::MakeSpan(&output, 1))));
  return Value(std::move(output));
}

bool IsShared(const EmbeddingTable& table) {
  const auto* const sharded = std::get_if<ShardedTensor>(&table);
  return sharded != nullptr && sharded->group() != nullptr;
}

// The inputs of a child.
absl::Span<const Value> ListOf(const Value& input) {
  if (const auto* const list = input.get_if<ValueList>()) return *list;
  return absl::MakeConstSpan(&input, 1);
}

// The entry of each child in a map by their names. `what`: "input".
absl::Status ByChild(const ValueMap& map, absl::string_view what,
                     absl::Span<const NamedModule> children,
                     std::vector<Value>& result) {
  for (size_t i = 0; i < children.size(); ++i) {
    const auto entry = map.find(children[i].name);
    if (entry == map.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected ", what == "input" ? "an " : "a ", what,
          " for each table, got none for ", Quoted(children[i].name)));
    }
    result[i] = entry->second;
  }
  if (map.size() == children.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "got ", what, "s for ", map.size(), " tables, expected ", children.size(),
      ": no others than those of the collection"));
}

// The input of each child.
absl::Status Distribute(absl::Span<const Value> inputs,
                        absl::Span<const NamedModule> children,
                        std::vector<Value>& result) {
  result.assign(children.size(), Value());
  if (inputs.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected one input, a map with that of each table or one "
                     "for all, got ",
                     inputs.size()));
  }
  if (const auto* const map = inputs[0].get_if<ValueMap>()) {
    return ByChild(*map, "input", children, result);
  }
  result.assign(children.size(), inputs[0]);
  return absl::OkStatus();
}

// The bag, if it can take part in a common lookup.
const EmbeddingBag* PlainBag(Module& child) {
  if (typeid(child) != typeid(EmbeddingBag) ||
      !internal::ModuleAccess::HooksOf(child).output.empty()) {
    return nullptr;
  }
  return static_cast<const EmbeddingBag*>(&child);
}

// The common lookup of the children that can take part in it.
struct CommonLookUp {
  std::vector<TableLookUp> lookups;
  // Of the children that take part, ascending.
  std::vector<size_t> positions;
  // The input of each child.
  std::vector<Value> inputs;
  // A table has a group.
  bool shared = false;
  // What is wrong on this rank.
  absl::Status local;
};

CommonLookUp LookUpOf(absl::Span<const Value> inputs,
                      absl::Span<const NamedModule> children) {
  CommonLookUp common;
  common.local = Distribute(inputs, children, common.inputs);
  for (size_t i = 0; i < children.size(); ++i) {
    const EmbeddingBag* const bag = PlainBag(*children[i].module);
    if (bag == nullptr) continue;
    TableLookUp& lookup = common.lookups.emplace_back();
    common.positions.push_back(i);
    lookup.options = bag->options();
    absl::StatusOr<EmbeddingTable> table =
        TableOf(bag->weight(), children[i].name);
    // Even without it: the other ranks wait for this one in their lookup.
    if (table.ok()) lookup.table = std::move(*table);
    common.shared = common.shared || IsShared(lookup.table);
    if (common.local.ok()) common.local = table.status();
    if (common.local.ok()) {
      common.local = Annotate(SetBags(ListOf(common.inputs[i]), 3, lookup.bags),
                              Quoted(children[i].name));
    }
  }
  return common;
}

// The gradient of each child, which all take part in the lookup.
absl::Status SetGradients(const Value& gradients,
                          absl::Span<const NamedModule> children,
                          absl::Span<Tensor> result) {
  for (size_t i = 0; i < children.size(); ++i) {
    if (PlainBag(*children[i].module) != nullptr) continue;
    return absl::UnimplementedError(absl::StrCat(
        Quoted(children[i].name), " is of class ",
        children[i].module->type_name(),
        ", or has output hooks: expected an EmbeddingBag, whose output is that "
        "of the lookup; call Update with the others and this one's own"));
  }
  const auto* const map = gradients.get_if<ValueMap>();
  if (map == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a map with the gradient of each table, got ",
                     Name(gradients.kind())));
  }
  std::vector<Value> values(children.size());
  SHERD_RETURN_IF_ERROR(ByChild(*map, "gradient", children, values));
  for (size_t i = 0; i < children.size(); ++i) {
    const auto* const tensor = values[i].get_if<Tensor>();
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected the gradient of ", Quoted(children[i].name),
                       " to be a Tensor, got ", Name(values[i].kind())));
    }
    result[i] = *tensor;
  }
  return absl::OkStatus();
}

}  // namespace

Embedding::Embedding(Value weight, BagOptions options)
    : weight_(std::move(weight)), options_(options) {
  options_.mode = BagMode::kNone;
  options_.include_last_offset = false;
}

absl::StatusOr<std::shared_ptr<Embedding>> Embedding::Create(int64_t rows,
                                                             int64_t columns,
                                                             BagOptions options,
                                                             DType dtype) {
  SHERD_ASSIGN_OR_RETURN(Tensor weight,
                         DrawWeight(rows, columns, options, dtype));
  return std::make_shared<Embedding>(std::move(weight), options);
}

absl::StatusOr<Value> Embedding::Forward(absl::Span<const Value> inputs) {
  return LookUpOne(weight_, type_name(), options_, inputs, 1);
}

void Embedding::Visit(ModuleVisitor& v) { VisitWeight(v, weight_); }

EmbeddingBag::EmbeddingBag(Value weight, BagOptions options)
    : weight_(std::move(weight)), options_(options) {}

absl::StatusOr<std::shared_ptr<EmbeddingBag>> EmbeddingBag::Create(
    int64_t rows, int64_t columns, BagOptions options, DType dtype) {
  SHERD_ASSIGN_OR_RETURN(Tensor weight,
                         DrawWeight(rows, columns, options, dtype));
  return std::make_shared<EmbeddingBag>(std::move(weight), options);
}

absl::StatusOr<Value> EmbeddingBag::Forward(absl::Span<const Value> inputs) {
  return LookUpOne(weight_, type_name(), options_, inputs, 3);
}

void EmbeddingBag::Visit(ModuleVisitor& v) { VisitWeight(v, weight_); }

absl::StatusOr<Value> EmbeddingBagCollection::Forward(
    absl::Span<const Value> inputs) {
  const absl::Span<const NamedModule> children = embedding_bags_->modules();
  CommonLookUp common = LookUpOf(inputs, children);
  // Where the lookup has no group, the weights of the others may have one.
  internal::GroupAgreement groups;
  if (!common.shared || common.lookups.size() < children.size()) {
    groups.AddMembers(*this);
  }
  std::vector<Tensor> outputs(common.lookups.size());
  absl::Status local = internal::LookUpAfter(
      common.local, common.lookups, absl::MakeSpan(outputs), common.positions);
  if (!common.shared) local = groups.Agree(LookUpOp::kName, std::move(local));
  SHERD_RETURN_IF_ERROR(InOperation(LookUpOp::kName, std::move(local)));
  ValueMap result;
  size_t next = 0;
  for (size_t i = 0; i < children.size(); ++i) {
    if (next < common.positions.size() && common.positions[next] == i) {
      result.emplace(children[i].name, std::move(outputs[next++]));
      continue;
    }
    absl::StatusOr<Value> output =
        children[i].module->Call(ListOf(common.inputs[i]));
    // The next one may be collective.
    SHERD_RETURN_IF_ERROR(groups.Agree(
        LookUpOp::kName, Annotate(output.status(), Quoted(children[i].name))));
    result.emplace(children[i].name, *std::move(output));
  }
  return Value(std::move(result));
}

absl::Status EmbeddingBagCollection::Update(absl::Span<const Value> inputs,
                                            const Value& gradients,
                                            const UpdateOptions& options) {
  const absl::Span<const NamedModule> children = embedding_bags_->modules();
  CommonLookUp common = LookUpOf(inputs, children);
  std::vector<Tensor> of_lookups(common.lookups.size());
  if (common.local.ok()) {
    common.local =
        SetGradients(gradients, children, absl::MakeSpan(of_lookups));
  }
  absl::Status status =
      internal::UpdateAfter(common.local, common.lookups, of_lookups, options);
  if (common.shared) return status;
  // Its children may have a group where the lookup has none.
  internal::GroupAgreement groups;
  groups.AddMembers(*this);
  return groups.Agree("update", std::move(status));
}

absl::Status MakeAccumulators(Module& root, SparseRule rule) {
  return internal::ForEachModule(
      root,
      [rule](const std::string& prefix, Module& module,
             const internal::ModuleContents& /*contents*/) -> absl::Status {
        const Value* const weight = WeightOf(module);
        if (weight == nullptr) return absl::OkStatus();
        const auto make = [&]() -> absl::Status {
          SHERD_ASSIGN_OR_RETURN(const EmbeddingTable table,
                                 TableOf(*weight, module.type_name()));
          return MakeAccumulator(table, rule);
        };
        return Annotate(make(), Quoted(prefix + "weight"));
      });
}

}  // namespace sherd
