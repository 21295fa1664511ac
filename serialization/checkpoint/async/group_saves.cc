#include "sherd/serialization/checkpoint/async/group_saves.h"

#include <algorithm>
#include <list>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/named_thread.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/serialization/checkpoint/host_share.h"
#include "sherd/serialization/checkpoint/save/replica_check.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"

namespace sherd {
namespace {

absl::Status CheckTensors(const SaveJob::Tensors& tensors,
                          const ProcessGroup& group) {
  for (const auto& [name, tensor] : tensors) {
    SHERD_RETURN_IF_ERROR(CheckTensor(name, tensor, group));
  }
  return absl::OkStatus();
}

std::vector<NamedTensor> NamesOf(const SaveJob::Tensors& tensors) {
  std::vector<NamedTensor> named;
  named.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) named.push_back({&name, &tensor});
  return named;
}

}  // namespace

absl::StatusOr<std::shared_ptr<GroupSaves>> GroupSaves::Begin(
    ProcessGroup& group, std::optional<absl::Duration> timeout) {
  SHERD_RETURN_IF_ERROR(group.health());
  SHERD_ASSIGN_OR_RETURN(BackgroundGroup channel,
                         BackgroundGroup::Create(group, timeout));
  const std::shared_ptr<GroupSaves> saves(new GroupSaves(
      std::move(channel), std::min(ThreadsPerRank(group), kMostThreads)));
  // The thread keeps it, so that either may end first.
  absl::StatusOr<std::thread> thread =
      StartNamedThread("sherd-save", [saves] { saves->Main(); });
  if (thread.ok()) {
    saves->thread_ = *std::move(thread);
    saves->thread_id_ = saves->thread_.get_id();
  } else {
    // Kept: another try would make a group, and the other ranks have theirs.
    saves->unusable_ = thread.status();
    saves->channel_->Destroy().IgnoreError();
  }
  return saves;
}

GroupSaves::GroupSaves(BackgroundGroup channel, int threads)
    : channel_(std::move(channel)), log_rank_(LogRank()), threads_(threads) {}

absl::StatusOr<SaveHandle> GroupSaves::Start(SaveJob job,
                                             const AsyncJobOptions& options) {
  SHERD_RETURN_IF_ERROR(unusable_);
  const absl::Status former = TakeError();
  const auto tensors = std::make_shared<SaveJob::Tensors>(*job.tensors);
  auto save = std::make_unique<Save>();
  save->prepared = std::make_shared<PreparedSave>();
  save->ended = options.ended;
  save->job = std::move(job);
  absl::Status status =
      former.ok() ? Prepare(*save, tensors, options.staging_budget)
                  : Annotate(former, "a former save of the group failed");
  save->job.tensors = tensors;
  if (!status.ok()) {
    save->state->FinishCopying(status);
    save->job.tensors = std::make_shared<SaveJob::Tensors>();
  }
  save->prepared->status = std::move(status);
  save->job.group = channel_.handle();
  save->only_reports = !former.ok();
  SaveHandle handle(save->state);
  {
    absl::MutexLock lock(&mutex_);
    if (placed_ == saves_.size() && !save->NeedsRoom()) ++placed_;
    saves_.push_back(std::move(save));
  }
  SHERD_RETURN_IF_ERROR(former);
  return handle;
}

absl::Status GroupSaves::Prepare(
    Save& save, const std::shared_ptr<SaveJob::Tensors>& tensors,
    int64_t budget) {
  const SaveJob& job = save.job;
  PreparedSave& prepared = *save.prepared;
  if (budget < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("AsyncSaveOptions::staging_budget is ", budget,
                     ", expected 0 or more"));
  }
  SHERD_RETURN_IF_ERROR(job.failure);
  SHERD_RETURN_IF_ERROR(CheckTensors(*tensors, *job.group));
  SHERD_ASSIGN_OR_RETURN(prepared.plan,
                         KeptPlans::Get().PlanFor(job.group, *tensors,
                                                  job.options.check_replicas));
  save.snapshot =
      std::make_unique<SaveSnapshot>(tensors, prepared.plan, budget);
  SHERD_RETURN_IF_ERROR(save.snapshot->FollowCurrentStreams(streams_));
  if (job.options.check_replicas) {
    SHERD_ASSIGN_OR_RETURN(
        prepared.replicas,
        ReadReplicas(job.group->size(), NamesOf(*tensors),
                     prepared.plan->replicas, [] { return absl::OkStatus(); }));
  }
  {
    absl::MutexLock lock(&mutex_);
    // The room that there is goes to former saves first.
    if (placed_ < saves_.size()) return absl::OkStatus();
  }
  return Fill(save, threads_, [] { return absl::OkStatus(); });
}

absl::Status GroupSaves::Fill(Save& save, int threads,
                              SaveJob::Progress progress) {
  SaveSnapshot& snapshot = *save.snapshot;
  SaveSnapshot::Wave wave;
  {
    absl::MutexLock lock(&mutex_);
    SHERD_ASSIGN_OR_RETURN(wave, snapshot.Place(ring_));
  }
  SHERD_RETURN_IF_ERROR(snapshot.Copy(wave, threads, streams_, progress));
  if (!snapshot.complete()) return absl::OkStatus();
  save.state->FinishCopying(absl::OkStatus(), snapshot.copies());
  return absl::OkStatus();
}

bool GroupSaves::End(const absl::Status& cause) {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  if (!cause.ok()) channel_->Abort(cause);
  if (std::this_thread::get_id() == thread_id_) return false;
  absl::MutexLock lock(&join_mutex_);
  if (thread_.joinable()) thread_.join();
  return true;
}

absl::Status GroupSaves::TakeError() {
  std::vector<std::shared_ptr<internal::SaveState>> failed;
  {
    absl::MutexLock lock(&mutex_);
    failed.swap(failed_);
  }
  absl::Status first;
  for (const auto& state : failed) first.Update(state->TakeError());
  return first;
}

void GroupSaves::Main() {
  if (log_rank_ >= 0) SetThreadLogRank(log_rank_);
  while (Save* const save = AwaitSave()) Finish(Run(*save));
  channel_->Destroy().IgnoreError();
}

GroupSaves::Save* GroupSaves::AwaitSave() {
  absl::MutexLock lock(&mutex_);
  const auto has_work = [this] {
    mutex_.AssertHeld();
    return ending_ || !saves_.empty();
  };
  mutex_.Await(absl::Condition(&has_work));
  return saves_.empty() ? nullptr : saves_.front().get();
}

absl::Status GroupSaves::Run(Save& save) {
  SaveJob job = save.job;
  job.prepare = [this, &save](SaveJob::Progress progress) {
    return EndPreparing(save, progress);
  };
  // For what is read from devices directly.
  std::list<ScopedStream> current;
  if (save.snapshot != nullptr) {
    for (const Device& device : save.snapshot->devices()) {
      const absl::StatusOr<DeviceStream> stream = streams_.Of(device);
      if (stream.ok()) current.emplace_front(*stream);
    }
    job.elements = [this, &save](const PlannedShard& shard,
                                 SaveJob::Progress progress) {
      return Elements(save, shard, progress);
    };
  }
  absl::Status status = RunSave(std::move(job));
  if (!status.ok() && AnyOnlyReports(save)) save.only_reports = true;
  return channel_.ForProgram(status);
}

std::shared_ptr<const PreparedSave> GroupSaves::EndPreparing(
    Save& save, SaveJob::Progress progress) {
  // If it came while the room was still that of another.
  Refill(progress);
  save.prepared->whole = save.snapshot == nullptr || !save.snapshot->complete();
  if (save.snapshot != nullptr) save.snapshot->MaybeDropTensors();
  return save.prepared;
}

bool GroupSaves::AnyOnlyReports(const Save& save) {
  return AgreeOnMaximum(*channel_, Saver::kOperation, absl::OkStatus(), {},
                        save.only_reports ? 1 : 0,
                        {.timeout = save.job.options.timeout})
             .value_or(0) != 0;
}

absl::StatusOr<Tensor> GroupSaves::Elements(Save& save,
                                            const PlannedShard& shard,
                                            SaveJob::Progress progress) {
  const size_t number = save.snapshot->NumberOf(shard);
  if (save.job.base == nullptr || save.prepared->whole) Release(save, number);
  Refill(progress);
  // If they found no room before, or only some of them.
  save.snapshot->MaybeDropTensors();
  SHERD_RETURN_IF_ERROR(save.prepared->status);
  return save.snapshot->Elements(number);
}

void GroupSaves::Release(Save& save, size_t shard) {
  SaveSnapshot& snapshot = *save.snapshot;
  {
    absl::MutexLock lock(&mutex_);
    snapshot.ReleaseBefore(shard, ring_);
  }
  if (snapshot.complete()) {
    save.state->FinishCopying(absl::OkStatus(), snapshot.copies());
  }
}

void GroupSaves::Refill(SaveJob::Progress progress) {
  // The error of another rank ends the save that runs, and not those that are
  // copied meanwhile.
  const auto alive = [&]() -> absl::Status {
    absl::Status status = progress();
    return absl::IsCancelled(status) ? absl::OkStatus() : status;
  };
  for (;;) {
    Save* save = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      if (placed_ == saves_.size()) return;
      save = saves_[placed_].get();
    }
    if (save->NeedsRoom()) {
      if (absl::Status status = Fill(*save, 1, alive); !status.ok()) {
        save->state->FinishCopying(status);
        save->prepared->status = std::move(status);
      }
      if (save->NeedsRoom()) return;
    }
    absl::MutexLock lock(&mutex_);
    ++placed_;
  }
}

void GroupSaves::RefillTogether(const SaveOptions& options) {
  LongStep step(*channel_, Saver::kOperation, {.timeout = options.timeout});
  Refill([&step] { return step.MadeProgress(); });
  // If the group has failed, the next save finds that, too.
  step.Agree(absl::OkStatus()).IgnoreError();
}

void GroupSaves::Finish(const absl::Status& status) {
  std::unique_ptr<Save> save;
  {
    absl::MutexLock lock(&mutex_);
    save = std::move(saves_.front());
  }
  if (save->snapshot != nullptr && !save->snapshot->devices().empty()) {
    // Also those whose end was not recorded, after an error.
    streams_.Drain();
  }
  {
    absl::MutexLock lock(&mutex_);
    if (save->snapshot != nullptr) save->snapshot->ReleaseAll(ring_);
    saves_.pop_front();
    if (placed_ > 0) --placed_;
    if (!status.ok() && !save->only_reports) failed_.push_back(save->state);
  }
  save->state->FinishCopying(status);
  if (save->ended != nullptr) {
    // Before what may take long; otherwise the next save does it.
    RefillTogether(save->job.options);
    save->ended(status);
  }
  save->state->Finish(status);
}

}  // namespace sherd
