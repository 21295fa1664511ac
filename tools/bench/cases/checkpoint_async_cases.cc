#include "sherd/tools/bench/cases/checkpoint_async_cases.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint_async.h"
#include "sherd/tools/bench/cases/checkpoint_reference.h"
#include "sherd/tools/bench/cases/settle_disk.h"
#include "sherd/tools/bench/harness/proportional_memory.h"
#include "sherd/tools/bench/peers/box_layout.h"

namespace sherd {
namespace {

// How long a program that saves has to wait until it may change its tensors.
// The writing is over before the next call begins.
class AsyncSave final : public RankWork {
 public:
  static absl::StatusOr<std::unique_ptr<RankWork>> Make(RankContext& context) {
    SHERD_ASSIGN_OR_RETURN(auto reference, CheckpointReference::Get(context));
    return std::make_unique<AsyncSave>(context, std::move(reference));
  }

  AsyncSave(RankContext& context, CheckpointReferencePtr reference)
      : rank_(context.rank()),
        reference_(std::move(reference)),
        path_(JoinPath(context.directory(), "async")) {}

  absl::Status Prepare() override {
    return saves_ > 0 && rank_ == 0 ? SettleDisk(path_) : absl::OkStatus();
  }

  absl::Status Run() override {
    SHERD_ASSIGN_OR_RETURN(
        saved_,
        SaveCheckpointAsync(
            path_, {{CheckpointReference::kTensorName, reference_->tensor()}},
            reference_->tensor().group()));
    return saved_.Copied();
  }

  absl::Status Check() override {
    SHERD_RETURN_IF_ERROR(saved_.Durable());
    SHERD_RETURN_IF_ERROR(reference_->CheckSaved(path_, rank_));
    memory_ = ProportionalMemory();
    if (++saves_ == 2) memory_of_two_ = memory_;
    return absl::OkStatus();
  }

  std::optional<WorkFigures> Figures() const override {
    if (saves_ < 2) return std::nullopt;
    return WorkFigures{
        .way = absl::StrFormat(
            "save %d took %.1f MiB more memory than save 2", saves_,
            static_cast<double>(memory_ - memory_of_two_) / (1 << 20))};
  }

 private:
  const int rank_;
  const CheckpointReferencePtr reference_;
  const std::string path_;
  SaveHandle saved_;
  int saves_ = 0;
  int64_t memory_ = 0;
  int64_t memory_of_two_ = 0;
};

// The same bytes, copied by this thread into memory that was used before.
class CopyRows final : public RankWork {
 public:
  static absl::StatusOr<std::unique_ptr<RankWork>> Make(RankContext& context) {
    SHERD_ASSIGN_OR_RETURN(auto reference, CheckpointReference::Get(context));
    const WordBox rows = reference->RowsOf(context.rank());
    SHERD_ASSIGN_OR_RETURN(auto copy, Storage::Allocate(rows.bytes()));
    return std::make_unique<CopyRows>(std::move(reference), rows,
                                      std::move(copy));
  }

  CopyRows(CheckpointReferencePtr reference, const WordBox& rows,
           std::shared_ptr<Storage> copy)
      : reference_(std::move(reference)), rows_(rows), copy_(std::move(copy)) {}

  absl::Status Prepare() override {
    Spoil(reference_->matrix(), {stored()});
    return absl::OkStatus();
  }

  absl::Status Run() override {
    for (const Shard& shard : reference_->tensor().local_shards()) {
      std::memcpy(copy_->data(), shard.tensor.data(),
                  static_cast<size_t>(shard.tensor.nbytes()));
    }
    return absl::OkStatus();
  }

  absl::Status Check() override {
    return sherd::Check(reference_->matrix(), {stored()});
  }

 private:
  StoredBox stored() const {
    return DenseBox(rows_, static_cast<uint32_t*>(copy_->data()));
  }

  const CheckpointReferencePtr reference_;
  const WordBox rows_;
  const std::shared_ptr<Storage> copy_;
};

}  // namespace

std::vector<BenchCase> CheckpointAsyncCases() {
  return {{.name = "checkpoint_async_stall",
           .help = "until tensors may change while their rows are saved",
           .peers = {{.name = "sherd",
                      .help = "SaveCheckpointAsync and Copied()",
                      .make = AsyncSave::Make},
                     {.name = "memcpy",
                      .help = "one copy of the same rows",
                      .make = CopyRows::Make}},
           .check = CheckCheckpointSpace}};
}

}  // namespace sherd
