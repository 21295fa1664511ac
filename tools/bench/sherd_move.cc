#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/tools/bench/move.h"
#include "sherd/tools/bench/sharded_matrix.h"

namespace sherd {
namespace {

class SherdReshard final : public RankWork {
 public:
  SherdReshard(const Matrix& matrix, ShardedTensor source,
               ShardedTensor destination)
      : matrix_(matrix),
        source_(std::move(source)),
        destination_(std::move(destination)) {
    FillShards(matrix_, source_);
  }

  absl::Status Prepare() override {
    SpoilShards(matrix_, destination_);
    return absl::OkStatus();
  }
  absl::Status Run() override { return source_.ReshardInto(destination_); }
  absl::Status Check() override { return CheckShards(matrix_, destination_); }

 private:
  const Matrix matrix_;
  const ShardedTensor source_;
  ShardedTensor destination_;
};

class SherdGather final : public RankWork {
 public:
  // `destination` is undefined on all ranks but 0.
  SherdGather(const Matrix& matrix, ShardedTensor source, Tensor destination)
      : matrix_(matrix),
        whole_{0, 0, matrix.rows, matrix.cols},
        source_(std::move(source)),
        destination_(std::move(destination)) {
    FillShards(matrix_, source_);
  }

  absl::Status Prepare() override {
    if (destination_.defined()) {
      SpoilBox(matrix_, whole_, destination_.mutable_data_as<uint32_t>());
    }
    return absl::OkStatus();
  }

  absl::Status Run() override {
    return source_.Gather(/*dst_rank=*/0, destination_).status();
  }

  absl::Status Check() override {
    if (!destination_.defined()) return absl::OkStatus();
    return CheckBox(matrix_, whole_, destination_.data_as<uint32_t>());
  }

 private:
  const Matrix matrix_;
  const MatrixBox whole_;
  const ShardedTensor source_;
  Tensor destination_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankWork>> MakeSherdReshard(RankContext& context,
                                                           const Move& move) {
  SHERD_ASSIGN_OR_RETURN(const auto group, context.Group());
  SHERD_ASSIGN_OR_RETURN(ShardedTensor source,
                         MakeShardedMatrix(move.matrix, move.from, group));
  SHERD_ASSIGN_OR_RETURN(ShardedTensor destination,
                         MakeShardedMatrix(move.matrix, move.to, group));
  return std::make_unique<SherdReshard>(move.matrix, std::move(source),
                                        std::move(destination));
}

absl::StatusOr<std::unique_ptr<RankWork>> MakeSherdGather(RankContext& context,
                                                          const Move& move) {
  SHERD_ASSIGN_OR_RETURN(const auto group, context.Group());
  SHERD_ASSIGN_OR_RETURN(ShardedTensor source,
                         MakeShardedMatrix(move.matrix, move.from, group));
  Tensor destination;
  if (context.rank() == 0) {
    SHERD_ASSIGN_OR_RETURN(destination,
                           Tensor::Empty({move.matrix.rows, move.matrix.cols},
                                         {.dtype = kUInt32}));
  }
  return std::make_unique<SherdGather>(move.matrix, std::move(source),
                                       std::move(destination));
}

}  // namespace sherd
