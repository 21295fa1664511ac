#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/init.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/kept_plans.h"
#include "sherd/serialization/checkpoint/replica_check.h"
#include "sherd/serialization/checkpoint/save_directory.h"
#include "sherd/serialization/checkpoint/shard_writer.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/safetensors/tensor_fingerprint.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace {

constexpr char kOperation[] = "save_checkpoint";
// Up to here the ranks' parts of all fingerprints travel with their reports.
constexpr size_t kMaxGatheredSums = size_t{64} << 10;

// What rank 0 must know about the file of a rank. All 0: it has none.
struct FileReport {
  int64_t size = 0;
  int64_t data_begin = 0;
  int64_t chunks = 0;
  uint32_t crc32c = 0;
  uint32_t reserved = 0;
};

// The disk is given data in pieces of this size while the next is written.
constexpr int64_t kWritebackBytes = int64_t{8} << 20;

// One rank's part of one save.
class Saver {
 public:
  Saver(const std::string& path,
        const std::map<std::string, ShardedTensor>& tensors,
        std::shared_ptr<ProcessGroup> group, const SaveOptions& options)
      : path_(path),
        label_(absl::StrCat("save \"", PrintableLine(path), "\"")),
        operation_(kOperation, label_),
        tensors_(tensors),
        shared_group_(std::move(group)),
        group_(*shared_group_),
        files_(options.files != nullptr ? *options.files : FileSystem::Posix()),
        options_(options),
        directory_(files_, path, options.sync,
                   [this] { return step_->MadeProgress(); }) {
    for (const auto& [name, tensor] : tensors) {
      named_.push_back({&name, &tensor});
    }
  }

  absl::Status Run() {
    BeginStep();
    // First this, since it makes the plan.
    const absl::Status prepared = Prepare();
    const uint64_t fingerprint = Fingerprint()
                                     .Add(path_)
                                     .Add(options_.sync)
                                     .Add(options_.check_replicas)
                                     .Add(agreed_)
                                     .value();
    // Rank 0 brings the number of the save, the others nothing.
    SHERD_ASSIGN_OR_RETURN(
        const uint64_t id,
        step_->AgreeOnMaximum(prepared,
                              {fingerprint, [this] { return DescribeCall(); }},
                              group_.rank() == 0 ? own_id_ : 0));
    directory_.SetSaveId(id);
    const absl::Status status = WriteAndCommit();
    // All ranks are here, so none is writing any more.
    if (!status.ok() && group_.rank() == 0 && group_.health().ok()) {
      directory_.RemoveOwnFiles();
    }
    return status;
  }

  // After Run() returned OK.
  int64_t tensor_bytes() const { return plan_->tensor_bytes; }
  int64_t file_bytes() const { return file_bytes_; }
  const OperationLabel& operation() const { return operation_; }

 private:
  // Ranks wait in the agreement that ends the step as long as the others make
  // progress.
  void BeginStep(size_t note_bytes = 0) {
    step_.emplace(
        group_, operation_,
        LongStepOptions{.timeout = options_.timeout, .note_bytes = note_bytes});
  }

  // Everything that can go wrong before anything is written. `sync` is agreed
  // on since with it ranks remove files of the old checkpoint without a sync of
  // their own, as rank 0 has made the switch durable.
  absl::Status Prepare() {
    for (const auto& [name, tensor] : tensors_) {
      SHERD_RETURN_IF_ERROR(CheckTensor(name, tensor, group_));
    }
    SHERD_ASSIGN_OR_RETURN(plan_,
                           KeptPlans::Get().PlanFor(shared_group_, tensors_,
                                                    options_.check_replicas));
    agreed_ = static_cast<int64_t>(plan_->fingerprint);
    sums_.resize(tensors_.size());
    if (group_.rank() != 0) return absl::OkStatus();
    SHERD_ASSIGN_OR_RETURN(
        own_id_, directory_.Take(options_.lease_duration, plan_->tensor_bytes));
    return absl::OkStatus();
  }

  // As AgreedValue::describe has it. Ranks that differ have not saved yet, and
  // may take the time.
  std::string DescribeCall() const {
    std::string text =
        absl::StrCat("path ", PrintableLine(path_), "\nsync ",
                     options_.sync ? "true" : "false", "\ncheck_replicas ",
                     options_.check_replicas ? "true" : "false", "\n");
    std::vector<TensorToSave> layouts;
    for (const auto& [name, tensor] : tensors_) {
      auto layout = DescribeTensor(name, tensor, group_);
      if (layout.ok()) layouts.push_back(*std::move(layout));
    }
    return absl::StrCat(
        text, DescribeForAgreement(layouts, /*with_properties=*/true));
  }

  absl::Status WriteAndCommit() {
    absl::Status ready;
    if (options_.check_replicas) {
      BeginStep();
      const absl::StatusOr<ReplicaCrcs> crcs =
          ReadReplicas(group_.size(), named_, plan_->replicas,
                       [this] { return step_->MadeProgress(); });
      SHERD_RETURN_IF_ERROR(step_->Agree(crcs.status()));
      ready = CompareReplicas(group_, operation_, named_, plan_->replicas,
                              *crcs, {.timeout = options_.timeout});
      // Otherwise the others learn of it when the step ends.
      if (!ready.ok() && !group_.health().ok()) return ready;
    }
    BeginStep(NoteBytes());
    directory_.ListReplaced(group_.rank(), group_.size());
    SHERD_RETURN_IF_ERROR(Report(ready.ok() ? WriteFile() : ready));
    SHERD_RETURN_IF_ERROR(SumFingerprints());
    BeginStep();
    absl::Status committed;
    if (group_.rank() == 0) {
      committed = Commit();
      // Before any rank returns: it may be the first of the next save.
      directory_.Release();
    }
    SHERD_RETURN_IF_ERROR(step_->Agree(committed));
    directory_.RemoveReplaced();
    return absl::OkStatus();
  }

  absl::Status WriteFile() {
    if (plan_->shards.empty()) return absl::OkStatus();
    DataFileContents contents = plan_->contents;
    contents.save_id = directory_.save_id();
    SHERD_ASSIGN_OR_RETURN(const std::string header,
                           EncodeDataFileHeader(contents));
    report_.data_begin = static_cast<int64_t>(header.size());
    report_.chunks = plan_->chunks;
    const PlannedShard& last = plan_->shards.back();
    report_.size = report_.data_begin + last.data_offset + BytesOf(last) +
                   CrcTableBytes(plan_->chunks);
    SHERD_ASSIGN_OR_RETURN(
        std::unique_ptr<File> file,
        files_.Create(JoinPath(path_, DataFileName(group_.rank(), group_.size(),
                                                   directory_.save_id()))));
    SHERD_RETURN_IF_ERROR(file->Reserve(report_.size));
    int64_t started = 0;
    int64_t synced = 0;
    SequentialWriter writer(*file, [&](int64_t written) -> absl::Status {
      // Otherwise the data would wait in memory for the sync.
      if (options_.sync && written - started >= kWritebackBytes) {
        SHERD_RETURN_IF_ERROR(file->StartWriteback(started, written - started));
        started = written;
      }
      if (options_.sync && written - synced >= options_.max_unsynced_bytes) {
        SHERD_RETURN_IF_ERROR(file->Sync());
        synced = written;
      }
      return step_->MadeProgress();
    });
    SHERD_RETURN_IF_ERROR(AppendAll(writer, header));
    SHERD_CHECK(writer.position() == report_.size);
    SHERD_RETURN_IF_ERROR(writer.Flush());
    if (options_.sync) SHERD_RETURN_IF_ERROR(file->Sync());
    SHERD_RETURN_IF_ERROR(file->Close());
    return directory_.SyncNames();
  }

  int64_t BytesOf(const PlannedShard& shard) const {
    const ShardedTensor& tensor =
        *named_[static_cast<size_t>(shard.tensor)].tensor;
    return Volume(shard.box) * static_cast<int64_t>(SizeOf(tensor.dtype()));
  }

  // The header, the shards, and the CRCs of both.
  absl::Status AppendAll(SequentialWriter& writer, const std::string& header) {
    std::vector<uint32_t> crcs(static_cast<size_t>(1 + plan_->chunks));
    crcs[0] = Crc32c(AsBytes(header));
    SHERD_RETURN_IF_ERROR(writer.Append(AsBytes(header)));
    for (const PlannedShard& shard : plan_->shards) {
      SHERD_CHECK(writer.position() == report_.data_begin + shard.data_offset);
      const NamedTensor& named = named_[static_cast<size_t>(shard.tensor)];
      SHERD_ASSIGN_OR_RETURN(const Tensor part,
                             LocalPart(*named.tensor, shard.held, shard.box));
      const absl::StatusOr<uint32_t> sum = AppendTensor(
          writer, part, kChunkBytes,
          absl::MakeSpan(crcs).subspan(static_cast<size_t>(shard.first_chunk),
                                       static_cast<size_t>(shard.chunks)),
          BoxFingerprint(named.tensor->size(), shard.box, part.element_size()));
      if (!sum.ok()) {
        return Annotate(sum.status(),
                        absl::StrCat("tensor ", Quoted(*named.name)));
      }
      sums_[static_cast<size_t>(shard.tensor)] ^= *sum;
    }
    const std::string table = EncodeCrcTable(crcs);
    report_.crc32c = Crc32c(AsBytes(table));
    return writer.Append(AsBytes(table));
  }

  bool SumsTravelWithReports() const {
    return tensors_.size() * sizeof(uint32_t) *
               static_cast<size_t>(group_.size()) <=
           kMaxGatheredSums;
  }

  size_t NoteBytes() const {
    return sizeof(FileReport) +
           (SumsTravelWithReports() ? sums_.size() * sizeof(uint32_t) : 0);
  }

  // Ends the writing on all ranks, and brings the reports of all to all.
  absl::Status Report(const absl::Status& written) {
    std::vector<std::byte> note(NoteBytes());
    if (written.ok()) {
      std::memcpy(note.data(), &report_, sizeof(FileReport));
      if (note.size() > sizeof(FileReport)) {
        std::memcpy(&note[sizeof(FileReport)], sums_.data(),
                    note.size() - sizeof(FileReport));
      }
    }
    std::vector<std::byte> notes(note.size() *
                                 static_cast<size_t>(group_.size()));
    SHERD_RETURN_IF_ERROR(
        step_->AgreeAndGather(written, {}, note, absl::MakeSpan(notes)));
    reports_.resize(static_cast<size_t>(group_.size()));
    if (SumsTravelWithReports()) std::fill(sums_.begin(), sums_.end(), 0);
    for (size_t r = 0; r < reports_.size(); ++r) {
      const std::byte* const from = &notes[r * note.size()];
      std::memcpy(&reports_[r], from, sizeof(FileReport));
      file_bytes_ += reports_[r].size;
      for (size_t t = 0; SumsTravelWithReports() && t < sums_.size(); ++t) {
        uint32_t sum = 0;
        std::memcpy(&sum, from + sizeof(FileReport) + t * sizeof(sum),
                    sizeof(sum));
        sums_[t] ^= sum;
      }
    }
    return absl::OkStatus();
  }

  // Brings the sums of all ranks to rank 0, if Report() has not.
  absl::Status SumFingerprints() {
    if (SumsTravelWithReports()) return absl::OkStatus();
    const ConstBytes own(reinterpret_cast<const std::byte*>(sums_.data()),
                         sums_.size() * sizeof(uint32_t));
    MutableBytes sum;
    if (group_.rank() == 0) {
      sum =
          MutableBytes(reinterpret_cast<std::byte*>(sums_.data()), own.size());
    }
    return InOperation(
        operation_, group_.Reduce(own, sum, DType::kUInt32, ReduceOp::kBxor,
                                  /*root=*/0, {.timeout = options_.timeout}));
  }

  // Makes the new files the checkpoint. Rank 0 only.
  absl::Status Commit() {
    Manifest manifest = plan_->manifest.manifest;
    manifest.save_id = directory_.save_id();
    for (size_t i = 0; i < manifest.files.size(); ++i) {
      const int rank = plan_->manifest.rank_of_file[i];
      const FileReport& report = reports_[static_cast<size_t>(rank)];
      ManifestFile& file = manifest.files[i];
      file.name = DataFileName(rank, group_.size(), directory_.save_id());
      file.data_begin = report.data_begin;
      file.size += report.data_begin;
      file.crc32c = report.crc32c;
      if (file.size != report.size || file.chunks != report.chunks) {
        return absl::InternalError(
            absl::StrCat("rank ", rank, " wrote ", report.size, " bytes with ",
                         report.chunks, " chunks, expected ", file.size,
                         " with ", file.chunks, "; report this error"));
      }
    }
    for (size_t t = 0; t < manifest.tensors.size(); ++t) {
      ManifestTensor& tensor = manifest.tensors[t];
      tensor.fingerprint =
          Crc32cFromLinear(sums_[t], static_cast<uint64_t>(tensor.bytes()));
    }
    SHERD_ASSIGN_OR_RETURN(const std::string bytes, EncodeManifest(manifest));
    return directory_.Switch(bytes);
  }

  const std::string& path_;
  // The beginning of error messages.
  const std::string label_;
  const OperationLabel operation_;
  const std::map<std::string, ShardedTensor>& tensors_;
  const std::shared_ptr<ProcessGroup> shared_group_;
  ProcessGroup& group_;
  FileSystem& files_;
  const SaveOptions& options_;
  SaveDirectory directory_;
  // By index in the plan, as in tensors_.
  std::vector<NamedTensor> named_;

  // The step that this rank is in.
  std::optional<LongStep> step_;
  // Of the plan, in the form of Fingerprint.
  int64_t agreed_ = 0;
  // On rank 0: the number of the save.
  uint64_t own_id_ = 0;
  std::shared_ptr<const SavePlan> plan_;
  // For each tensor the linear CRC of what this rank wrote of it, then, on rank
  // 0, of all of it.
  std::vector<uint32_t> sums_;
  FileReport report_;
  std::vector<FileReport> reports_;
  int64_t file_bytes_ = 0;
};

}  // namespace

absl::Status SaveCheckpoint(const std::string& path,
                            const std::map<std::string, ShardedTensor>& tensors,
                            std::shared_ptr<ProcessGroup> group,
                            const SaveOptions& options) {
  if (group == nullptr) {
    SHERD_ASSIGN_OR_RETURN(group, DefaultGroup());
  }
  Saver saver(path, tensors, group, options);
  SHERD_RETURN_IF_ERROR(
      InOperation(saver.operation(), saver.Run(), group->name()));
  if (options.stats != nullptr) {
    *options.stats = {.tensor_bytes = saver.tensor_bytes(),
                      .file_bytes = saver.file_bytes()};
  }
  return absl::OkStatus();
}

}  // namespace sherd
