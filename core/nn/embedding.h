#ifndef SHERD_CORE_NN_EMBEDDING_H_
#define SHERD_CORE_NN_EMBEDDING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/nn/containers.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/nn/value.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd {

// Modules that look up rows of tables: the parameter `weight`, a tensor or,
// once a plan has sharded it, a sharded tensor of any layout. Inputs, results
// and errors are those of LookUp; where a weight is sharded, Call is collective
// and a wrong input of one rank is the error of all. A rank whose weight is not
// a tensor knows no group: its error is its own, and the others wait for it
// until their deadline.
//
// Updates. What Update keeps with the weight (GetAccumulator) is the buffer
// `accumulator`: none before the first Update with Adagrad. It goes with the
// weight into State, LoadState, Clone and plans; in another layout than the
// weight's, or from a weight that was not sharded, the next Update moves it. A
// weight that replaces another has its own, or without one, and of the same
// size, begins with a copy of the other's. A checkpoint is loaded into what is
// there, and leaves the rest out (LoadReport::unexpected): a model that has
// taken no step yet makes its accumulators first.
//
//     SHERD_RETURN_IF_ERROR(
//         MakeAccumulators(*model, SparseRule::kRowWiseAdagrad));
//     SHERD_ASSIGN_OR_RETURN(StateDict state, State(*model));
//     SHERD_RETURN_IF_ERROR(LoadCheckpointInto("ckpt", state));

// A row for each id.
//
//     SHERD_ASSIGN_OR_RETURN(auto words, Embedding::Create(50257, 768));
//     SHERD_ASSIGN_OR_RETURN(Value rows, words->Call({ids}));
class Embedding : public Module {
 public:
  // Of the options, max_norm, norm_type and padding_idx are used.
  explicit Embedding(Value weight, BagOptions options = {});

  // With a weight from a normal distribution of mean 0 and deviation 1, drawn
  // as by Randn; the row of padding is 0.
  //   kInvalidArgument    A size is negative, the weight has 2^63 bytes or
  //                       more, the dtype is not a floating-point one, or
  //                       padding is not a row.
  //   kResourceExhausted  There is no memory.
  static absl::StatusOr<std::shared_ptr<Embedding>> Create(
      int64_t rows, int64_t columns, BagOptions options = {},
      DType dtype = kFloat32);

  std::shared_ptr<Module> Clone() const override { return CloneOf(*this); }
  absl::string_view type_name() const override { return "Embedding"; }
  const Value& weight() const { return weight_; }
  const BagOptions& options() const { return options_; }

 protected:
  // Inputs: ids. Output: a Tensor.
  absl::StatusOr<Value> Forward(absl::Span<const Value> inputs) override;
  void Visit(ModuleVisitor& v) override;

 private:
  Value weight_;
  BagOptions options_;
};

// A row for each bag.
//
//     SHERD_ASSIGN_OR_RETURN(
//         auto bag, EmbeddingBag::Create(1000, 64, {.mode = BagMode::kSum}));
//     SHERD_ASSIGN_OR_RETURN(Value rows, bag->Call({ids, offsets}));
class EmbeddingBag : public Module {
 public:
  explicit EmbeddingBag(Value weight, BagOptions options = {});

  // As Embedding::Create.
  static absl::StatusOr<std::shared_ptr<EmbeddingBag>> Create(
      int64_t rows, int64_t columns, BagOptions options = {},
      DType dtype = kFloat32);

  std::shared_ptr<Module> Clone() const override { return CloneOf(*this); }
  absl::string_view type_name() const override { return "EmbeddingBag"; }
  const Value& weight() const { return weight_; }
  const BagOptions& options() const { return options_; }

 protected:
  // Inputs: ids, then offsets and per_sample_weights, each of which may be none
  // or left out. Output: a Tensor.
  absl::StatusOr<Value> Forward(absl::Span<const Value> inputs) override;
  void Visit(ModuleVisitor& v) override;

 private:
  Value weight_;
  BagOptions options_;
};

// Tables by name, looked up in one LookUp.
//
//     EmbeddingBagCollection tables;
//     SHERD_RETURN_IF_ERROR(tables.Insert("user", users));
//     SHERD_RETURN_IF_ERROR(tables.Insert("item", items));
//     SHERD_ASSIGN_OR_RETURN(
//         Value rows, tables.Call({ValueMap{{"user", ids0},
//                                           {"item", ValueList{ids1, o1}}}}));
//
// Tree. Paths of the weights are `embedding_bags.NAME.weight`. A child that a
// plan has replaced by a module of another class, or that has output hooks, is
// called after the LookUp of the others, in the order of the children. "table
// 3" in errors of that LookUp is the child at position 3.
//
// Errors. Where any weight below is sharded, an error of one rank, in its
// inputs, in a child that is called or in a hook of one, is that of all ranks
// of its group: "look_up: rank 1: "user": …"; also of a rank whose weight is
// not a tensor, if another one below is sharded. The weights have one group, or
// it is kUnimplemented.
//
// Cost. Beside the LookUp an agreement after each child that is called.
class EmbeddingBagCollection : public Module {
 public:
  EmbeddingBagCollection() : embedding_bags_(std::make_shared<ModuleDict>()) {}

  // As ModuleDict::Insert.
  absl::Status Insert(absl::string_view name,
                      std::shared_ptr<EmbeddingBag> bag) {
    return embedding_bags_->Insert(name, std::move(bag));
  }
  const ModuleDict& embedding_bags() const { return *embedding_bags_; }

  // Update for all tables in one call: `inputs` are those of Call, `gradients`
  // is a map like its output, with a Tensor for each child.
  //
  //     SHERD_RETURN_IF_ERROR(tables.Update({inputs}, gradients,
  //                                         {.learning_rate = 0.1}));
  //
  // Collective as Update, also where a rank's inputs or gradients are wrong.
  //   kInvalidArgument  As Call and Update; the map has other names than the
  //                     collection, or something else than Tensors.
  //   kUnimplemented    A child that LookUp leaves out, as above: what Call
  //                     does to its output has no gradient here.
  absl::Status Update(absl::Span<const Value> inputs, const Value& gradients,
                      const UpdateOptions& options = {});

  std::shared_ptr<Module> Clone() const override { return CloneOf(*this); }
  absl::string_view type_name() const override {
    return "EmbeddingBagCollection";
  }

 protected:
  // Input: a map with the input of each child, which is ids or a list of the
  // inputs of EmbeddingBag; or one such input for all children. Output: a map
  // with the output of each child.
  //   kInvalidArgument  The map has other names than the collection.
  absl::StatusOr<Value> Forward(absl::Span<const Value> inputs) override;
  void Visit(ModuleVisitor& v) override {
    v.Child("embedding_bags", embedding_bags_);
  }

 private:
  std::shared_ptr<ModuleDict> embedding_bags_;
};

// MakeAccumulator for the weight of each Embedding and EmbeddingBag in the tree
// of `root`, also of those in classes derived from them.
//
// Not collective; on all ranks alike.
//
// Errors. Begin with the path of the weight. Those before it may have an
// accumulator now; the values are as before.
//   kInvalidArgument  The tree is not valid: see module_tree.h; or a weight is
//                     neither a Tensor nor a ShardedTensor.
//   other             Of MakeAccumulator.
absl::Status MakeAccumulators(Module& root, SparseRule rule);

}  // namespace sherd

#endif  // SHERD_CORE_NN_EMBEDDING_H_
