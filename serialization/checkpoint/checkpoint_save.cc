#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/tensor/box.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/lease.h"
#include "sherd/serialization/checkpoint/save_plan.h"
#include "sherd/serialization/checkpoint/shard_writer.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/manifest/manifest_codec_v1.h"

namespace sherd {
namespace {

constexpr char kOperation[] = "save_checkpoint";
// A manifest is written in blocks of this size.
constexpr size_t kStageBytes = size_t{1} << 20;

// One rank's part of one save.
class Saver {
 public:
  Saver(const std::string& path,
        const std::map<std::string, ShardedTensor>& tensors,
        ProcessGroup& group, const SaveOptions& options)
      : path_(path),
        label_(absl::StrCat("save \"", PrintableLine(path), "\"")),
        operation_(kOperation, label_),
        tensors_(tensors),
        group_(group),
        files_(options.files != nullptr ? *options.files : FileSystem::Posix()),
        sync_(options.sync),
        max_unsynced_bytes_(options.max_unsynced_bytes),
        timeout_(options.timeout),
        lease_duration_(options.lease_duration),
        bytes_of_rank_(static_cast<size_t>(group.size())) {}

  absl::Status Run() {
    BeginStep();
    // First this, since it fills the fingerprint.
    const absl::Status prepared = Prepare();
    // Rank 0 brings the number of the save, the others nothing.
    SHERD_ASSIGN_OR_RETURN(
        const uint64_t id,
        step_->AgreeOnMaximum(prepared,
                              {fingerprint_.value(),
                               [&] {
                                 return absl::StrCat(
                                     "path ", PrintableLine(path_), "\nsync ",
                                     sync_ ? "true" : "false", "\n",
                                     DescribeForAgreement(layouts_));
                               }},
                              group_.rank() == 0 ? own_id_ : 0));
    save_id_ = SaveIdText(id);
    by_rank_ = ShardsByRank(layouts_, group_.size());
    const absl::Status status = WriteAndCommit();
    // All ranks are here, so none is writing any more.
    if (!status.ok() && group_.rank() == 0 && group_.health().ok()) {
      RemoveOwnFiles();
    }
    return status;
  }

  int64_t tensor_bytes() const { return tensor_bytes_; }
  // After Run() returned OK.
  int64_t file_bytes() const { return file_bytes_; }
  const OperationLabel& operation() const { return operation_; }

 private:
  // Ranks wait in the agreement that ends the step as long as the others make
  // progress.
  void BeginStep() {
    step_.emplace(group_, operation_, LongStepOptions{.timeout = timeout_});
  }

  absl::Status WriteAndCommit() {
    BeginStep();
    ListReplaced();
    SHERD_RETURN_IF_ERROR(step_->Agree(WriteFile()));
    SHERD_RETURN_IF_ERROR(ReportToRank0());
    BeginStep();
    absl::Status committed;
    if (group_.rank() == 0) {
      committed = Commit();
      // Before any rank returns: it may be the first of the next save.
      lease_.reset();
    }
    // Rank 0 brings the bytes of all files.
    SHERD_ASSIGN_OR_RETURN(
        const uint64_t file_bytes,
        step_->AgreeOnMaximum(committed, {},
                              static_cast<uint64_t>(file_bytes_)));
    file_bytes_ = static_cast<int64_t>(file_bytes);
    RemoveReplaced();
    return absl::OkStatus();
  }

  // Everything that can go wrong before anything is written.
  absl::Status Prepare() {
    // Of `sync` too: with it, ranks remove files of the old checkpoint without
    // a sync of their own, since rank 0 has made the switch durable.
    fingerprint_.Add(path_).Add(sync_);
    for (const auto& [name, tensor] : tensors_) {
      SHERD_ASSIGN_OR_RETURN(TensorToSave layout,
                             DescribeTensor(name, tensor, group_));
      AddToFingerprint(layout, fingerprint_);
      AssignReplicaOwners(layout, absl::MakeSpan(bytes_of_rank_));
      SHERD_ASSIGN_OR_RETURN(const int64_t bytes,
                             NumBytes(layout.sizes, layout.dtype));
      const auto sum = CheckedAdd(tensor_bytes_, bytes);
      if (!sum.has_value()) {
        return absl::InvalidArgumentError(
            "the tensors together have 2^63 bytes or more");
      }
      tensor_bytes_ = *sum;
      layouts_.push_back(std::move(layout));
    }
    return group_.rank() == 0 ? PrepareDirectory() : absl::OkStatus();
  }

  absl::Status PrepareDirectory() {
    SHERD_RETURN_IF_ERROR(
        sync_ ? WithAdvice(CreateDurableDirectories(files_, path_))
              : files_.CreateDirectories(path_));
    own_id_ = RandomId();
    SHERD_ASSIGN_OR_RETURN(
        lease_, CheckpointLease::Take(files_, path_, SaveIdText(own_id_),
                                      {lease_duration_, sync_}));
    SHERD_RETURN_IF_ERROR(RemoveLeftovers());
    SHERD_ASSIGN_OR_RETURN(const int64_t free_bytes, files_.FreeBytes(path_));
    if (tensor_bytes_ > free_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the checkpoint ", path_, " needs ", tensor_bytes_,
                       " bytes and those of its headers, but only ", free_bytes,
                       " are free"));
    }
    return absl::OkStatus();
  }

  // Removes files of saves that are over: all that have the names of a save's
  // files and that the manifest, if there is one, does not name. Data files
  // that cannot be removed now are left to the next save.
  absl::Status RemoveLeftovers() {
    SHERD_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           files_.List(path_));
    // First of all: without them a save that has lost its lease cannot switch
    // any more, and the manifest that is read below remains.
    for (const std::string& name : names) {
      if (!IsStagedManifestName(name)) continue;
      const absl::Status status = files_.Remove(JoinPath(path_, name));
      if (!status.ok() && !absl::IsNotFound(status)) return status;
    }
    absl::flat_hash_set<absl::string_view> in_use;
    const auto manifest = ReadManifest(files_, path_);
    if (manifest.ok()) {
      for (const ManifestFile& file : manifest->files) in_use.insert(file.name);
    } else if (!absl::IsNotFound(manifest.status())) {
      // There is one: it cannot be read now, or leads to a file that is away,
      // or only another build reads it.
      return absl::OkStatus();
    }
    std::vector<std::string> unused;
    for (const std::string& name : names) {
      if (IsSaveFileName(name) && !IsStagedManifestName(name) &&
          !in_use.contains(name)) {
        unused.push_back(name);
      }
    }
    if (unused.empty() || !ManifestWillLast()) return absl::OkStatus();
    for (const std::string& name : unused) {
      RemoveOldFile(name);
      SHERD_RETURN_IF_ERROR(step_->MadeProgress());
    }
    return absl::OkStatus();
  }

  // After an error, with or without the lease: removes what this save has
  // written, unless the manifest names it.
  void RemoveOwnFiles() {
    const auto manifest = ReadManifest(files_, path_);
    if (manifest.ok() ? manifest->save_id == save_id_
                      : !absl::IsNotFound(manifest.status())) {
      return;
    }
    for (const std::string& name :
         files_.List(path_).value_or(std::vector<std::string>())) {
      if (IsSaveFileName(name) && absl::StrContains(name, save_id_)) {
        RemoveOldFile(name);
      }
    }
  }

  // Notes this rank's share of the files that the switch will leave without
  // use. Before the switch: then none is of a save that takes the lease over
  // once this one has switched.
  void ListReplaced() {
    for (std::string& name :
         files_.List(path_).value_or(std::vector<std::string>())) {
      if (!IsSaveFileName(name) || absl::StrContains(name, save_id_)) continue;
      if (Fingerprint().Add(name).value() % group_.size() ==
          static_cast<uint64_t>(group_.rank())) {
        replaced_.push_back(std::move(name));
      }
    }
  }

  void RemoveReplaced() {
    if (replaced_.empty()) return;
    if (!sync_ && !ManifestWillLast()) return;
    for (const std::string& name : replaced_) RemoveOldFile(name);
  }

  // Makes the manifest that is there the one that a loss of power leaves: only
  // then may files that it does not name be removed. A file system without such
  // a sync keeps no promise that a save without `sync` could wait for.
  bool ManifestWillLast() {
    const absl::Status synced = files_.SyncDirectory(path_);
    if (synced.ok() || (!sync_ && absl::IsUnimplemented(synced))) return true;
    SHERD_LOG(kWarning) << "old files stay: " << synced.ToString();
    return false;
  }

  // The result of a sync of directories, with what to do where there is none.
  static absl::Status WithAdvice(const absl::Status& synced) {
    if (!absl::IsUnimplemented(synced)) return synced;
    return absl::UnimplementedError(absl::StrCat(
        synced.message(),
        ": expected a file system that syncs directories; use another one, or "
        "sync=false, with which a loss of power may damage the checkpoint"));
  }

  void RemoveOldFile(const std::string& name) {
    const absl::Status status = files_.Remove(JoinPath(path_, name));
    if (!status.ok() && !absl::IsNotFound(status)) {
      SHERD_LOG(kWarning) << "an old file stays: " << status.ToString();
    }
  }

  static uint64_t RandomId() {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }

  static std::string SaveIdText(uint64_t id) {
    return absl::StrFormat("%016x", id);
  }

  absl::Status WriteFile() {
    const std::vector<ShardIndex>& own = by_rank_[group_.rank()];
    SHERD_ASSIGN_OR_RETURN(
        const RankFile plan,
        PlanRankFile(layouts_, own, group_.rank(), group_.size(), save_id_));
    if (plan.name.empty()) return absl::OkStatus();
    SHERD_ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                           files_.Create(JoinPath(path_, plan.name)));
    SHERD_RETURN_IF_ERROR(file->Reserve(plan.size));
    int64_t synced = 0;
    SequentialWriter writer(*file, [&](int64_t written) -> absl::Status {
      if (sync_ && written - synced >= max_unsynced_bytes_) {
        SHERD_RETURN_IF_ERROR(file->Sync());
        synced = written;
      }
      return step_->MadeProgress();
    });
    SHERD_RETURN_IF_ERROR(writer.Append(
        absl::MakeSpan(reinterpret_cast<const std::byte*>(plan.header.data()),
                       plan.header.size())));
    PlaceCrcs(own);
    for (const RankFile::Place& place : plan.places) {
      SHERD_CHECK(writer.position() == place.file_offset);
      const ShardedTensor& tensor =
          tensors_.at(layouts_[place.index.tensor].name);
      const ShardToSave& shard =
          layouts_[place.index.tensor].shards[place.index.shard];
      SHERD_ASSIGN_OR_RETURN(const Tensor part,
                             LocalPart(tensor, shard.held, shard));
      SHERD_RETURN_IF_ERROR(Annotate(
          AppendTensor(writer, part, kChunkBytes, CrcsOf(place.index)),
          absl::StrCat("tensor ", Quoted(layouts_[place.index.tensor].name))));
    }
    SHERD_RETURN_IF_ERROR(writer.Flush());
    if (sync_) SHERD_RETURN_IF_ERROR(file->Sync());
    SHERD_RETURN_IF_ERROR(file->Close());
    // Its name must be durable before the manifest is, and the host of another
    // rank may know nothing of it yet.
    return sync_ ? WithAdvice(files_.SyncDirectory(path_)) : absl::OkStatus();
  }

  static int64_t NumChunks(const TensorToSave& tensor, ShardIndex index) {
    const int64_t bytes = Volume(tensor.shards[index.shard]) *
                          static_cast<int64_t>(SizeOf(tensor.dtype));
    const int64_t chunk = kChunkBytes;
    return (bytes + chunk - 1) / chunk;
  }

  size_t NumChunks(const std::vector<ShardIndex>& shards) const {
    size_t chunks = 0;
    for (const ShardIndex& index : shards) {
      chunks += NumChunks(layouts_[index.tensor], index);
    }
    return chunks;
  }

  // Makes room in report_ for the CRCs of this rank's shards, in the order of
  // by_rank_, which is the order in which rank 0 expects them.
  void PlaceCrcs(const std::vector<ShardIndex>& own) {
    size_t next = 0;
    for (const ShardIndex& index : own) {
      const size_t n = NumChunks(layouts_[index.tensor], index);
      crc_places_[{index.tensor, index.shard}] = {next, n};
      next += n;
    }
    report_.resize(next);
  }

  absl::Span<uint32_t> CrcsOf(ShardIndex index) {
    const auto [begin, n] = crc_places_.at({index.tensor, index.shard});
    return absl::MakeSpan(report_).subspan(begin, n);
  }

  // Brings all CRCs to rank 0.
  absl::Status ReportToRank0() {
    std::vector<ConstBytes> sends(group_.size());
    std::vector<MutableBytes> recvs(group_.size());
    sends[0] = ConstBytes(reinterpret_cast<const std::byte*>(report_.data()),
                          report_.size() * sizeof(uint32_t));
    if (group_.rank() == 0) {
      reports_.resize(group_.size());
      for (int rank = 0; rank < group_.size(); ++rank) {
        std::vector<uint32_t>& report = reports_[rank];
        report.resize(NumChunks(by_rank_[rank]));
        recvs[rank] = MutableBytes(reinterpret_cast<std::byte*>(report.data()),
                                   report.size() * sizeof(uint32_t));
      }
    }
    return group_.AllToAllV(sends, recvs);
  }

  // Makes the new files the checkpoint. Rank 0 only.
  absl::Status Commit() {
    SHERD_ASSIGN_OR_RETURN(ManifestV1 manifest,
                           PlanManifest(layouts_, group_.size(), save_id_));
    for (int rank = 0; rank < group_.size(); ++rank) {
      size_t next = 0;
      for (const ShardIndex& index : by_rank_[rank]) {
        const ManifestTensorV1& tensor = manifest.tensors[index.tensor];
        const ManifestShardV1& shard = tensor.shards[index.shard];
        const int64_t n = manifest.NumChunks(tensor, shard);
        std::copy_n(reports_[rank].begin() + next, n,
                    manifest.chunk_crc32c.begin() + shard.first_chunk);
        next += n;
      }
    }
    for (const ManifestFileV1& file : manifest.files) file_bytes_ += file.size;
    SHERD_ASSIGN_OR_RETURN(const std::string bytes, EncodeManifestV1(manifest));
    return Switch(bytes);
  }

  // The steps of CheckpointLease: the manifest is staged under a name of its
  // own, the lease is checked, and then the name given.
  absl::Status Switch(const std::string& bytes) {
    const std::string target = JoinPath(path_, kManifestFileName);
    const std::string staged = JoinPath(path_, StagedManifestName(save_id_));
    SHERD_RETURN_IF_ERROR(Stage(staged, bytes));
    SHERD_RETURN_IF_ERROR(lease_->Check());
    absl::Status renamed = files_.Rename(staged, target);
    if (absl::IsNotFound(renamed)) {
      // Another save has taken the lease over and removed the staged manifest;
      // or a server that was asked twice has renamed it the first time.
      const auto manifest = ReadManifest(files_, path_);
      if (manifest.ok() && manifest->save_id == save_id_) {
        renamed = absl::OkStatus();
      } else {
        SHERD_RETURN_IF_ERROR(lease_->Check());
      }
    }
    SHERD_RETURN_IF_ERROR(renamed);
    if (!sync_) return absl::OkStatus();
    return Annotate(SyncRenamed(files_, target),
                    "the new checkpoint has replaced the old one");
  }

  absl::Status Stage(const std::string& staged, const std::string& bytes) {
    SHERD_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files_.Create(staged));
    SequentialWriter writer(*file,
                            [this](int64_t) { return step_->MadeProgress(); });
    auto rest = absl::MakeSpan(reinterpret_cast<const std::byte*>(bytes.data()),
                               bytes.size());
    while (!rest.empty()) {
      const auto block = rest.first(std::min(rest.size(), kStageBytes));
      SHERD_RETURN_IF_ERROR(writer.Append(block));
      rest.remove_prefix(block.size());
    }
    SHERD_RETURN_IF_ERROR(writer.Flush());
    if (sync_) SHERD_RETURN_IF_ERROR(file->Sync());
    SHERD_RETURN_IF_ERROR(file->Close());
    return step_->MadeProgress();
  }

  const std::string& path_;
  // The beginning of error messages.
  const std::string label_;
  const OperationLabel operation_;
  const std::map<std::string, ShardedTensor>& tensors_;
  ProcessGroup& group_;
  FileSystem& files_;
  const bool sync_;
  const int64_t max_unsynced_bytes_;
  const std::optional<absl::Duration> timeout_;
  const absl::Duration lease_duration_;

  // The step that this rank is in.
  std::optional<LongStep> step_;
  // On rank 0: the number of the save, and the right to it.
  uint64_t own_id_ = 0;
  std::unique_ptr<CheckpointLease> lease_;
  // By name, as in tensors_, with each element once.
  std::vector<TensorToSave> layouts_;
  std::vector<int64_t> bytes_of_rank_;
  Fingerprint fingerprint_;
  int64_t tensor_bytes_ = 0;
  int64_t file_bytes_ = 0;
  std::string save_id_;
  std::vector<std::string> replaced_;
  std::vector<std::vector<ShardIndex>> by_rank_;
  // The CRCs of the chunks of this rank's file; and where those of a shard are.
  std::vector<uint32_t> report_;
  absl::flat_hash_map<std::pair<size_t, size_t>, std::pair<size_t, size_t>>
      crc_places_;
  // On rank 0: the report of every rank.
  std::vector<std::vector<uint32_t>> reports_;
};

}  // namespace

absl::Status SaveCheckpoint(const std::string& path,
                            const std::map<std::string, ShardedTensor>& tensors,
                            std::shared_ptr<ProcessGroup> group,
                            const SaveOptions& options) {
  if (group == nullptr) {
    SHERD_ASSIGN_OR_RETURN(group, DefaultGroup());
  }
  Saver saver(path, tensors, *group, options);
  SHERD_RETURN_IF_ERROR(
      InOperation(saver.operation(), saver.Run(), group->name()));
  if (options.stats != nullptr) {
    *options.stats = {.tensor_bytes = saver.tensor_bytes(),
                      .file_bytes = saver.file_bytes()};
  }
  return absl::OkStatus();
}

}  // namespace sherd
