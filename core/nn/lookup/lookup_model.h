#ifndef SHERD_CORE_NN_LOOKUP_LOOKUP_MODEL_H_
#define SHERD_CORE_NN_LOOKUP_LOOKUP_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/tensor.h"

// What LookUp computes, for tests: written as the definition reads, on one
// rank, with whole tables.
namespace sherd::testing {

// The numbers of a tensor of integers; none of an undefined one.
std::vector<int64_t> ModelNumbers(const Tensor& tensor);
// Where the bags begin, and the end of the last.
std::vector<int64_t> ModelBounds(const Bags& bags, const BagOptions& options);

// Scales the rows of `table` that the ids of `bags` (of all ranks) name.
void ModelRenormalize(Tensor& table, absl::Span<const Bags> bags,
                      const BagOptions& options);

// The result. `bound`, if given: by how much the elements of a result from
// messages may differ, as float64 of the same size; see LookUp.
Tensor ModelLookUp(const Tensor& table, const Bags& bags,
                   const BagOptions& options, Tensor* bound = nullptr);

// The shards of `whole`, on every rank from its own copy.
ShardedTensor ShardsOf(const Tensor& whole, const ShardingSpecPtr& spec,
                       std::shared_ptr<ProcessGroup> group = nullptr);

}  // namespace sherd::testing

#endif  // SHERD_CORE_NN_LOOKUP_LOOKUP_MODEL_H_
