#ifndef SHERD_TOOLS_BENCH_EMBEDDING_EMBEDDING_WORK_H_
#define SHERD_TOOLS_BENCH_EMBEDDING_EMBEDDING_WORK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/tools/bench/harness/bench_case.h"
#include "sherd/tools/bench/harness/rank_context.h"

namespace sherd {

enum class TableCut { kRows, kColumns, kTables };

// Lookups of bags in tables of float32, by every rank: sums of rows. A step
// then also updates the tables, by row-wise Adagrad.
struct EmbeddingShape {
  // Of each table.
  std::vector<int64_t> rows;
  TableCut cut = TableCut::kRows;
  // Few rows have most of the ids: a row that is k-th about 1 / k of them.
  bool zipf = false;
  bool step = false;

  static constexpr int64_t kWidth = 64;
  static constexpr int64_t kBags = 512;
  static constexpr int64_t kIdsPerBag = 20;
  static constexpr int64_t kIds = kBags * kIdsPerBag;
  static constexpr float kLearningRate = 0.0625f;
  static constexpr float kEps = 1e-10f;

  int64_t tables() const { return static_cast<int64_t>(rows.size()); }
  int64_t total_rows() const;
  int64_t table_bytes() const {
    return total_rows() * kWidth * static_cast<int64_t>(sizeof(float));
  }
};

// Sets the box of `tensor` that begins at (row, column) of a table to its
// elements at the beginning.
void FillEmbeddingTable(Tensor tensor, int64_t table, int64_t row,
                        int64_t column);
float EmbeddingElement(int64_t table, int64_t row, int64_t column);

// What results have to be, whatever does the work.
class EmbeddingModel;

// What a rank looks up in each table, kBags x kIdsPerBag of int64, and for a
// step the gradient of the result, kBags x kWidth. The same in each call, so
// that steps change the tables further and further.
struct EmbeddingBatch {
  EmbeddingShape shape;
  std::vector<Tensor> ids;
  std::vector<Tensor> gradients;
  std::shared_ptr<const EmbeddingModel> model;
};

// Puts a batch into the common() of the context, for all peers.
void ShareEmbeddingBatch(RankContext& context, const EmbeddingShape& shape);

// What all peers have: the shared batch, and outputs with their check.
class EmbeddingWork : public RankWork {
 public:
  explicit EmbeddingWork(RankContext& context);

  absl::Status Prepare() final;
  absl::Status Run() final;
  // After a step also looks up what it has changed.
  absl::Status Check() final;

 protected:
  virtual absl::Status LookUp() = 0;
  virtual absl::Status Update() = 0;

  const EmbeddingShape& shape() const { return batch_->shape; }
  RankContext& context() const { return context_; }
  const std::vector<Tensor>& ids() const { return batch_->ids; }
  const std::vector<Tensor>& gradients() const { return batch_->gradients; }
  std::vector<Tensor>& outputs() { return outputs_; }

 private:
  absl::Status CheckOutputs() const;

  RankContext& context_;
  const std::shared_ptr<const EmbeddingBatch> batch_;
  std::vector<Tensor> outputs_;
  int updates_ = 0;
};

// LookUpInto and Update over `backend`; "": each rank has whole tables.
// Collective.
absl::StatusOr<std::unique_ptr<RankWork>> MakeSherdEmbedding(
    RankContext& context, const std::string& backend);

// Plain loops over tables in shared memory, of which there are
// LimitEmbeddingBytes. Ranks update rows of all tables, whatever their cut.
absl::StatusOr<std::unique_ptr<RankWork>> MakeLimitEmbedding(
    RankContext& context);
int64_t LimitEmbeddingBytes(const EmbeddingShape& shape, int world);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_EMBEDDING_EMBEDDING_WORK_H_
