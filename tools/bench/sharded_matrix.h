#ifndef SHERD_TOOLS_BENCH_SHARDED_MATRIX_H_
#define SHERD_TOOLS_BENCH_SHARDED_MATRIX_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/tools/bench/matrix_layout.h"

namespace sherd {

// A tensor for `matrix`, spread over `group` as `layout` says, without
// contents.
absl::StatusOr<ShardedTensor> MakeShardedMatrix(
    const Matrix& matrix, const MatrixLayout& layout,
    const std::shared_ptr<ProcessGroup>& group);

// FillBox, SpoilBox and CheckBox on this rank's shards.
void FillShards(const Matrix& matrix, const ShardedTensor& tensor);
void SpoilShards(const Matrix& matrix, const ShardedTensor& tensor);
absl::Status CheckShards(const Matrix& matrix, const ShardedTensor& tensor);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_SHARDED_MATRIX_H_
