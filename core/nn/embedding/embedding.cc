#include "sherd/core/nn/embedding.h"

#include <array>
#include <typeinfo>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/operation_label.h"
#include "sherd/core/nn/tree/group_agreement.h"
#include "sherd/core/nn/tree/module_access.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/tensor/random.h"

namespace sherd {
namespace {

absl::StatusOr<Tensor> DrawWeight(int64_t rows, int64_t columns,
                                  const BagOptions& options, DType dtype) {
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

// Visits the weight, and its accumulator, which it has in any memory.
void VisitWeight(ModuleVisitor& v, Value& weight) {
  const absl::StatusOr<EmbeddingTable> before = TableOf(weight, "");
  Value accumulator = before.ok() ? GetAccumulator(*before) : Value();
  const bool had_one = !accumulator.is_none();
  v.Parameter("weight", weight);
  v.Buffer("accumulator", accumulator);
  const absl::StatusOr<EmbeddingTable> after = TableOf(weight, "");
  // None before and after: a weight that the visitor put there keeps its own.
  if (!after.ok() || (!had_one && accumulator.is_none())) return;
  SetAccumulator(*after, std::move(accumulator));
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
  const auto* const map = inputs[0].get_if<ValueMap>();
  for (size_t i = 0; i < children.size(); ++i) {
    if (map == nullptr) {
      result[i] = inputs[0];
      continue;
    }
    const auto input = map->find(children[i].name);
    if (input == map->end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected an input for each table, got none for \"",
                       children[i].name, "\""));
    }
    result[i] = input->second;
  }
  if (map == nullptr || map->size() == children.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "got inputs for ", map->size(), " tables, expected ", children.size(),
      ": no others than those of the collection"));
}

// The bag, if it can take part in a common lookup.
const EmbeddingBag* PlainBag(Module& child) {
  if (typeid(child) != typeid(EmbeddingBag) ||
      !internal::ModuleAccess::HooksOf(child).output.empty()) {
    return nullptr;
  }
  return static_cast<const EmbeddingBag*>(&child);
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
  std::vector<Value> given;
  absl::Status local = Distribute(inputs, children, given);
  std::vector<TableLookUp> lookups;
  std::vector<size_t> positions;
  bool shared = false;
  for (size_t i = 0; i < children.size(); ++i) {
    const EmbeddingBag* const bag = PlainBag(*children[i].module);
    if (bag == nullptr) continue;
    TableLookUp& lookup = lookups.emplace_back();
    positions.push_back(i);
    lookup.options = bag->options();
    absl::StatusOr<EmbeddingTable> table =
        TableOf(bag->weight(), children[i].name);
    // Even without it: the other ranks wait for this one in their lookup.
    if (table.ok()) lookup.table = *std::move(table);
    shared = shared || IsShared(lookup.table);
    if (local.ok()) local = table.status();
    if (local.ok()) {
      local = Annotate(SetBags(ListOf(given[i]), 3, lookup.bags),
                       absl::StrCat("\"", children[i].name, "\""));
    }
  }
  // Where the lookup has no group, the weights of the others may have one.
  internal::GroupAgreement groups;
  if (!shared || lookups.size() < children.size()) groups.AddMembers(*this);
  std::vector<Tensor> outputs(lookups.size());
  local =
      internal::LookUpAfter(local, lookups, absl::MakeSpan(outputs), positions);
  if (!shared) local = groups.Agree(LookUpOp::kName, std::move(local));
  SHERD_RETURN_IF_ERROR(InOperation(LookUpOp::kName, std::move(local)));
  ValueMap result;
  size_t next = 0;
  for (size_t i = 0; i < children.size(); ++i) {
    if (next < positions.size() && positions[next] == i) {
      result.emplace(children[i].name, std::move(outputs[next++]));
      continue;
    }
    absl::StatusOr<Value> output = children[i].module->Call(ListOf(given[i]));
    // The next one may be collective.
    SHERD_RETURN_IF_ERROR(groups.Agree(
        LookUpOp::kName,
        Annotate(output.status(), absl::StrCat("\"", children[i].name, "\""))));
    result.emplace(children[i].name, *std::move(output));
  }
  return Value(std::move(result));
}

}  // namespace sherd
