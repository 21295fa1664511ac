#ifndef SHERD_CORE_NN_UPDATE_UPDATE_MODEL_H_
#define SHERD_CORE_NN_UPDATE_UPDATE_MODEL_H_

#include "absl/types/span.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/update.h"
#include "sherd/core/tensor/tensor.h"

// What Update computes, for tests: written as the definition reads, on one
// rank, with whole tables.
namespace sherd::testing {

// What all ranks look up in a table, in one of the lookups that have it: entry
// r is rank r's.
struct ModelLookUps {
  absl::Span<const Bags> bags;
  absl::Span<const Tensor> gradients;
  BagOptions options;
};

// Changes the table, and the accumulator, which has the size of the table or
// one column; for SGD it is not used.
void ModelUpdate(Tensor& table, Tensor& accumulator,
                 absl::Span<const ModelLookUps> lookups,
                 const UpdateOptions& options);

// Zeros of the accumulator's size and dtype.
Tensor ModelAccumulator(const Tensor& table, SparseRule rule);

}  // namespace sherd::testing

#endif  // SHERD_CORE_NN_UPDATE_UPDATE_MODEL_H_
