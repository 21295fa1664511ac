#ifndef SHERD_CORE_SHARDING_SHARDED_COMPARISON_H_
#define SHERD_CORE_SHARDING_SHARDED_COMPARISON_H_

#include <optional>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/core/sharding/sharded_tensor.h"

namespace sherd {

// Properties in which two tensors may differ and still be equal.
enum class CompareLayouts {
  // None: size, properties, shards and their placements are compared too.
  kStrictly,
  // Layout and requires_grad, pin_memory: elements are compared where their
  // index in the global tensor is the same. If layouts differ, the elements of
  // `b` move into memory as large as the local shards of `a`.
  kNotAtAll,
};

struct EqualOptions {
  CompareLayouts layouts = CompareLayouts::kStrictly;
  // Unset: the group's.
  std::optional<absl::Duration> timeout;
};

struct AllCloseOptions {
  // As for Tensor::AllClose.
  double rtol = 1e-5;
  double atol = 1e-8;
  bool equal_nan = false;
  CompareLayouts layouts = CompareLayouts::kStrictly;
  std::optional<absl::Duration> timeout;
};

// Whether two sharded tensors are the same: every element as by Tensor::Equal,
// or Tensor::AllClose, and also the metadata.
//
// Collective over the group of the tensors, with the same tensors and options
// on every rank. Every rank gets the same answer, over any backend. Without a
// group ("all shards here") nothing is sent; on a rank that is in neither
// tensor's group the answer is true.
//
// Errors. The same on every rank of the group, which stays usable; even if one
// of the two tensors was not created on a rank, since the other has the group.
//   kFailedPrecondition  A tensor was not created, or a shard has no data; "All
//                        distributed tensors should use the same ProcessGroup".
//   kInvalidArgument     A tolerance is negative or NaN; ranks pass different
//                        tensors or options.
// Different sizes, dtypes or layouts are not an error: the answer is false.
//
// Cost. One round of agreement, which carries the result. Every shard is read
// once, replicas too; device shards are copied to host memory, at most 32 MiB
// at once, and the host waits for the copies.
absl::StatusOr<bool> Equal(const ShardedTensor& a, const ShardedTensor& b,
                           const EqualOptions& options = {});
absl::StatusOr<bool> AllClose(const ShardedTensor& a, const ShardedTensor& b,
                              const AllCloseOptions& options = {});

}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_SHARDED_COMPARISON_H_
