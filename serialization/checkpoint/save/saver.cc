#include "sherd/serialization/checkpoint/save/saver.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/checkpoint/host_share.h"
#include "sherd/serialization/checkpoint/incremental/extent_list.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/safetensors/tensor_fingerprint.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace {

// Up to here the ranks' parts of all fingerprints travel with their reports.
constexpr size_t kMaxGatheredSums = size_t{64} << 10;

}  // namespace

SaveJob SaveJobOf(const std::string& path, const SaveJob::Tensors& tensors,
                  std::shared_ptr<ProcessGroup> group,
                  const SaveOptions& options) {
  return {.path = path,
          .tensors = std::shared_ptr<const SaveJob::Tensors>(
              std::shared_ptr<const void>(), &tensors),
          .group = std::move(group),
          .options = options};
}

std::string Saver::LabelOf(const std::string& path) {
  return absl::StrCat("save \"", PrintableLine(path), "\"");
}

Saver::Saver(SaveJob job)
    : job_(std::move(job)),
      label_(absl::StrCat(LabelOf(job_.path),
                          job_.target.step.has_value()
                              ? absl::StrCat(" step ", *job_.target.step)
                              : "")),
      operation_(kOperation, label_),
      tensors_(*job_.tensors),
      group_(*job_.group),
      files_(job_.options.files != nullptr ? *job_.options.files
                                           : CheckpointFiles()),
      directory_(
          files_, job_.path, job_.options.sync,
          [this] { return step_->MadeProgress(); }, job_.target) {
  for (const auto& [name, tensor] : tensors_) {
    named_.push_back({&name, &tensor});
  }
}

absl::Status Saver::Run() {
  BeginStep();
  // First this, since it makes the plan.
  const absl::Status prepared = Prepare();
  clock_.End(phases_.plan);
  const uint64_t fingerprint = Fingerprint()
                                   .Add(job_.path)
                                   .Add(job_.options.sync)
                                   .Add(job_.options.check_replicas)
                                   .Add(job_.target.step.value_or(-1))
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

void Saver::BeginStep(size_t note_bytes) {
  step_.emplace(group_, operation_,
                LongStepOptions{.timeout = job_.options.timeout,
                                .note_bytes = note_bytes});
}

// Everything that can go wrong before anything is written. `sync` is agreed
// on since with it ranks remove files of the old checkpoint without a sync of
// their own, as rank 0 has made the switch durable.
absl::Status Saver::Prepare() {
  SHERD_RETURN_IF_ERROR(job_.failure);
  SHERD_RETURN_IF_ERROR(CheckTarget());
  SHERD_RETURN_IF_ERROR(MakePlan());
  agreed_ = static_cast<int64_t>(plan_->fingerprint);
  sums_.resize(tensors_.size());
  if (group_.rank() != 0) return absl::OkStatus();
  // Otherwise each rank finds out what it writes.
  const bool all = job_.base == nullptr || !job_.base->is_used();
  SHERD_ASSIGN_OR_RETURN(own_id_,
                         directory_.Take(job_.options.lease_duration,
                                         all ? plan_->tensor_bytes : 0));
  return absl::OkStatus();
}

absl::Status Saver::MakePlan() {
  if (job_.prepare != nullptr) {
    prepared_ = job_.prepare([this] { return step_->MadeProgress(); });
    plan_ = prepared_->plan;
    return prepared_->status;
  }
  for (const auto& [name, tensor] : tensors_) {
    SHERD_RETURN_IF_ERROR(CheckTensor(name, tensor, group_));
  }
  SHERD_ASSIGN_OR_RETURN(plan_,
                         KeptPlans::Get().PlanFor(job_.group, tensors_,
                                                  job_.options.check_replicas));
  return absl::OkStatus();
}

absl::Status Saver::CheckTarget() const {
  if (PlaceOfManifest(job_.path).directory != job_.path) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the path has the name of a manifest, expected that of a directory"));
  }
  if (job_.target.step.value_or(0) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a step of 0 or more, got ", *job_.target.step));
  }
  return absl::OkStatus();
}

// As AgreedValue::describe has it. Ranks that differ have not saved yet, and
// may take the time.
std::string Saver::DescribeCall() const {
  std::string text =
      absl::StrCat("path ", PrintableLine(job_.path), "\nsync ",
                   job_.options.sync ? "true" : "false", "\ncheck_replicas ",
                   job_.options.check_replicas ? "true" : "false", "\n");
  if (job_.target.step.has_value()) {
    absl::StrAppend(&text, "step ", *job_.target.step, "\n");
  }
  std::vector<TensorToSave> layouts;
  for (const auto& [name, tensor] : tensors_) {
    if (tensor.group() == nullptr) continue;
    auto layout = DescribeTensor(name, tensor, *tensor.group());
    if (layout.ok()) layouts.push_back(*std::move(layout));
  }
  return absl::StrCat(text,
                      DescribeForAgreement(layouts, /*with_properties=*/true));
}

absl::Status Saver::WriteAndCommit() {
  absl::Status ready;
  if (job_.options.check_replicas) {
    BeginStep();
    clock_.End();
    const absl::StatusOr<ReplicaCrcs> crcs = CrcsOfReplicas();
    clock_.End(phases_.compare);
    SHERD_RETURN_IF_ERROR(step_->Agree(crcs.status()));
    ready = CompareReplicas(group_, operation_, named_, plan_->replicas, *crcs,
                            {.timeout = job_.options.timeout});
    // Otherwise the others learn of it when the step ends.
    if (!ready.ok() && !group_.health().ok()) return ready;
  }
  BeginStep(NoteBytes());
  directory_.ListReplaced(group_.rank(), group_.size());
  clock_.End();
  SHERD_RETURN_IF_ERROR(Report(ready.ok() ? WriteFile() : ready));
  clock_.End();
  SHERD_RETURN_IF_ERROR(SumFingerprints());
  SHERD_RETURN_IF_ERROR(GatherExtents());
  BeginStep();
  absl::Status committed;
  if (group_.rank() == 0) {
    committed = Commit();
    // Before any rank returns: it may be the first of the next save.
    directory_.Release();
  }
  SHERD_RETURN_IF_ERROR(step_->Agree(committed));
  clock_.End(stats_.commit);
  if (job_.base != nullptr) UpdateBase();
  // Another host may not see yet what rank 0 sees.
  if (reports_[0].is_shared == 0) directory_.RemoveReplaced(SharesFiles());
  return absl::OkStatus();
}

absl::Status Saver::PlanIncrement() {
  SHERD_ASSIGN_OR_RETURN(
      increment_,
      Increment::Make(
          plan_,
          FittingChunks(*job_.base, *plan_, job_.path, job_.options.sync,
                        files_),
          [this](const PlannedShard& shard) { return ElementsOf(shard); },
          /*ahead=*/job_.elements == nullptr,
          [this] { return step_->MadeProgress(); }));
  increment_->AddFingerprints(absl::MakeSpan(sums_));
  extents_ = increment_->EncodedExtents();
  return absl::OkStatus();
}

absl::Status Saver::WriteFile() {
  if (job_.base != nullptr && (prepared_ == nullptr || !prepared_->whole)) {
    SHERD_RETURN_IF_ERROR(PlanIncrement());
  }
  const FileParts parts = increment_ ? increment_->file() : AllParts(*plan_);
  SHERD_RETURN_IF_ERROR(CheckOwnSpace(parts.data_bytes));
  const std::string name =
      DataFileName(group_.rank(), group_.size(), directory_.save_id());
  SHERD_ASSIGN_OR_RETURN(
      report_,
      WriteRankFile(
          files_, JoinPath(job_.path, name), *plan_, parts, named_,
          [this](const PlannedShard& shard) { return ElementsOf(shard); },
          {.save_id = directory_.save_id(),
           .step = job_.target.step,
           .sync = job_.options.sync,
           .max_unsynced_bytes = job_.options.max_unsynced_bytes,
           .threads = NumThreads(),
           .ahead = job_.elements == nullptr},
          [this] { return step_->MadeProgress(); }, absl::MakeSpan(sums_),
          increment_ ? &fingerprints_ : nullptr));
  report_.extent_bytes = static_cast<uint32_t>(extents_.size());
  report_.is_shared = directory_.is_shared() ? 1 : 0;
  clock_.End(phases_.write);
  phases_.write -= report_.sync;
  phases_.sync = report_.sync;
  if (plan_->shards.empty()) return absl::OkStatus();
  const absl::Status synced = directory_.SyncNames();
  clock_.End(phases_.sync);
  return synced;
}

absl::Status Saver::CheckOwnSpace(int64_t bytes) {
  if (job_.base == nullptr || !job_.base->is_used()) return absl::OkStatus();
  return directory_.CheckSpace(bytes, "this rank's part of the checkpoint");
}

// Elements that are found in order are for one thread, and so are those on
// devices, which take pinned memory per thread.
int Saver::NumThreads() const {
  if (job_.elements != nullptr) return 1;
  for (const NamedTensor& named : named_) {
    for (const Shard& shard : named.tensor->local_shards()) {
      if (!shard.tensor.device().is_cpu()) return 1;
    }
  }
  return ThreadsPerRank(group_);
}

absl::StatusOr<ReplicaCrcs> Saver::CrcsOfReplicas() {
  if (prepared_ != nullptr) return prepared_->replicas;
  return ReadReplicas(group_.size(), named_, plan_->replicas,
                      [this] { return step_->MadeProgress(); });
}

absl::StatusOr<Tensor> Saver::ElementsOf(const PlannedShard& shard) {
  if (job_.elements != nullptr) {
    return job_.elements(shard, [this] { return step_->MadeProgress(); });
  }
  const NamedTensor& named = named_[static_cast<size_t>(shard.tensor)];
  return LocalPart(*named.tensor, shard.held, shard.box);
}

bool Saver::SumsTravelWithReports() const {
  return tensors_.size() * sizeof(uint32_t) *
             static_cast<size_t>(group_.size()) <=
         kMaxGatheredSums;
}

size_t Saver::NoteBytes() const {
  return sizeof(Note) +
         (SumsTravelWithReports() ? sums_.size() * sizeof(uint32_t) : 0);
}

absl::Status Saver::Report(const absl::Status& written) {
  static_assert(std::is_trivially_copyable_v<Note>);
  std::vector<std::byte> note(NoteBytes());
  if (written.ok()) {
    const Note own = {report_, phases_};
    std::memcpy(note.data(), &own, sizeof(own));
    if (note.size() > sizeof(own)) {
      std::memcpy(&note[sizeof(own)], sums_.data(), note.size() - sizeof(own));
    }
  }
  std::vector<std::byte> notes(note.size() *
                               static_cast<size_t>(group_.size()));
  SHERD_RETURN_IF_ERROR(
      step_->AgreeAndGather(written, {}, note, absl::MakeSpan(notes)));
  if (SumsTravelWithReports()) std::fill(sums_.begin(), sums_.end(), 0);
  stats_.tensor_bytes = plan_->tensor_bytes;
  for (size_t begin = 0; begin < notes.size(); begin += note.size()) {
    Note of_rank;
    std::memcpy(&of_rank, &notes[begin], sizeof(of_rank));
    AddNote(of_rank);
    for (size_t t = 0; SumsTravelWithReports() && t < sums_.size(); ++t) {
      uint32_t sum = 0;
      std::memcpy(&sum, &notes[begin + sizeof(Note) + t * sizeof(sum)],
                  sizeof(sum));
      sums_[t] ^= sum;
    }
  }
  return absl::OkStatus();
}

// That of the next rank.
void Saver::AddNote(const Note& note) {
  const auto time = [](const SavePhases& phases) {
    return phases.plan + phases.compare + phases.write + phases.sync;
  };
  stats_.file_bytes += note.report.size;
  std::vector<SavePhases>& all = stats_.save_phases;
  if (!all.empty() &&
      time(note.phases) > time(all[static_cast<size_t>(stats_.slowest_rank)])) {
    stats_.slowest_rank = static_cast<int>(all.size());
  }
  all.push_back(note.phases);
  reports_.push_back(note.report);
}

// Brings the sums of all ranks to rank 0, if Report() has not.
absl::Status Saver::SumFingerprints() {
  if (SumsTravelWithReports()) return absl::OkStatus();
  const ConstBytes own(reinterpret_cast<const std::byte*>(sums_.data()),
                       sums_.size() * sizeof(uint32_t));
  MutableBytes sum;
  if (group_.rank() == 0) {
    sum = MutableBytes(reinterpret_cast<std::byte*>(sums_.data()), own.size());
  }
  return InOperation(
      operation_, group_.Reduce(own, sum, DType::kUInt32, ReduceOp::kBxor,
                                /*root=*/0, {.timeout = job_.options.timeout}));
}

bool Saver::SharesFiles() const {
  return std::any_of(
      reports_.begin(), reports_.end(),
      [](const RankFileReport& report) { return report.extent_bytes > 0; });
}

// Brings the lists of all ranks to rank 0, if there are any.
absl::Status Saver::GatherExtents() {
  if (!SharesFiles()) return absl::OkStatus();
  std::vector<MutableBytes> parts;
  if (group_.rank() == 0) {
    extent_lists_.resize(reports_.size());
    for (size_t r = 0; r < reports_.size(); ++r) {
      extent_lists_[r].resize(reports_[r].extent_bytes);
      parts.emplace_back(reinterpret_cast<std::byte*>(extent_lists_[r].data()),
                         extent_lists_[r].size());
    }
  }
  return InOperation(operation_,
                     group_.GatherV(AsBytes(extents_), parts, /*root=*/0,
                                    {.timeout = job_.options.timeout}));
}

void Saver::UpdateBase() {
  if (!increment_) return job_.base->MarkUsed();
  ManifestFile own = {
      .name = DataFileName(group_.rank(), group_.size(), directory_.save_id()),
      .size = report_.size,
      .data_begin = report_.data_begin,
      .chunks = report_.chunks,
      .crc32c = report_.crc32c};
  job_.base->Set(
      std::move(*increment_)
          .Finish(job_.path, job_.options.sync, std::move(own), fingerprints_));
}

// Makes the new files the checkpoint. Rank 0 only.
absl::Status Saver::Commit() {
  const bool as_planned = !SharesFiles();
  Manifest manifest =
      as_planned ? plan_->manifest.manifest : plan_->manifest.WithRuns();
  manifest.save_id = directory_.save_id();
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const int rank = plan_->manifest.rank_of_file[i];
    const RankFileReport& report = reports_[static_cast<size_t>(rank)];
    ManifestFile& file = manifest.files[i];
    file.name = DataFileName(rank, group_.size(), directory_.save_id());
    file.data_begin = report.data_begin;
    file.crc32c = report.crc32c;
    if (report.extent_bytes > 0) {
      file.size = report.size;
      file.chunks = report.chunks;
      continue;
    }
    file.size += report.data_begin;
    if (file.size != report.size || file.chunks != report.chunks) {
      return absl::InternalError(
          absl::StrCat("rank ", rank, " wrote ", report.size, " bytes with ",
                       report.chunks, " chunks, expected ", file.size, " with ",
                       file.chunks, "; report this error"));
    }
  }
  SHERD_RETURN_IF_ERROR(
      ApplyExtentLists(extent_lists_, plan_->manifest.rank_of_file, manifest));
  for (size_t t = 0; t < manifest.tensors.size(); ++t) {
    ManifestTensor& tensor = manifest.tensors[t];
    tensor.fingerprint =
        Crc32cFromLinear(sums_[t], static_cast<uint64_t>(tensor.bytes()));
  }
  const auto runs_of = [this](size_t t) { return plan_->manifest.RunsOf(t); };
  SHERD_ASSIGN_OR_RETURN(const std::string bytes,
                         as_planned ? EncodeManifest(manifest, runs_of)
                                    : EncodeManifest(manifest));
  SHERD_RETURN_IF_ERROR(directory_.Switch(manifest, bytes));
  directory_.RemoveExpired();
  return absl::OkStatus();
}

absl::Status RunSave(SaveJob job) {
  const std::shared_ptr<ProcessGroup> group = job.group;
  CheckpointStats* const stats = job.options.stats;
  Saver saver(std::move(job));
  SHERD_RETURN_IF_ERROR(
      InOperation(saver.operation(), saver.Run(), group->name()));
  if (stats != nullptr) *stats = saver.stats();
  return absl::OkStatus();
}

}  // namespace sherd
