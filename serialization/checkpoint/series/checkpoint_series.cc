#include "sherd/serialization/checkpoint_series.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/collective/operation_label.h"
#include "sherd/core/comm/init.h"
#include "sherd/serialization/checkpoint/async/async_save.h"
#include "sherd/serialization/checkpoint/incremental/save_base.h"
#include "sherd/serialization/checkpoint/save/save_directory.h"
#include "sherd/serialization/checkpoint/save/saver.h"
#include "sherd/serialization/checkpoint/series/manifest_index.h"
#include "sherd/serialization/checkpoint/series/step_copier.h"
#include "sherd/serialization/checkpoint/series/step_list.h"
#include "sherd/serialization/checkpoint/state/collect_tensors.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/store/store_registry.h"

namespace sherd {
namespace {

constexpr char kOperation[] = "checkpoint_series";

bool IsDamaged(const absl::Status& loaded) { return absl::IsDataLoss(loaded); }
template <typename T>
bool IsDamaged(const absl::StatusOr<T>& loaded) {
  return absl::IsDataLoss(loaded.status());
}

// One spelling of a path, as far as that shows without looking at files.
std::string Normalized(const std::string& path) {
  const auto address = ParseStoreAddress(path);
  const bool is_store = address.ok() && address->has_value();
  std::filesystem::path place = is_store ? (*address)->location : path;
  const bool is_file = !is_store || (*address)->scheme == kFileScheme;
  std::error_code ignored;
  if (is_file) place = std::filesystem::absolute(place, ignored);
  std::string text = place.lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return is_file ? text : absl::StrCat((*address)->scheme, ":", text);
}

absl::Status CheckOptions(const std::string& directory,
                          const SeriesOptions& options) {
  if (directory.empty()) {
    return absl::InvalidArgumentError(
        "expected a directory, got an empty path");
  }
  if (!options.copy_to.empty() &&
      Normalized(options.copy_to) == Normalized(directory)) {
    return absl::InvalidArgumentError(
        "copy_to is the same directory, expected another one");
  }
  if (options.keep_last < 0 || options.keep_every < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected keep_last and keep_every of 0 or more, got ",
                     options.keep_last, " and ", options.keep_every));
  }
  return absl::OkStatus();
}

// What all ranks must open alike: where files go, and when; and what decides
// which collectives a save has. Others wait in these until the timeout.
std::string DescribeSeries(const std::string& directory,
                           const SeriesOptions& options) {
  return absl::StrCat("directory ", PrintableLine(directory), "\ncopy_to ",
                      PrintableLine(options.copy_to), "\nkeep_last ",
                      options.keep_last, "\nkeep_every ", options.keep_every,
                      "\nincremental ", options.incremental ? "true" : "false",
                      "\n");
}

}  // namespace

struct CheckpointSeries::State {
  std::string directory;
  std::shared_ptr<ProcessGroup> group;
  SeriesOptions options;
  // On rank 0: of `directory`.
  std::shared_ptr<ManifestIndex> index = std::make_shared<ManifestIndex>();
  // Null without a second directory. The thread of SaveAsync has it too.
  std::shared_ptr<StepCopier> copier;
  // Null unless saves are incremental. Saves run one after another, those of
  // the background too: so each finds what the one before has left.
  std::shared_ptr<SaveBase> base;
  // The last SaveAsync, if it has not been waited for here.
  std::optional<SaveHandle> pending;
  // Whether SaveAsync was called since all ranks waited, also if it failed.
  bool saves_beside = false;

  FileSystem& files() const {
    return options.save.files != nullptr ? *options.save.files
                                         : CheckpointFiles();
  }
  RetentionRule retention() const {
    return {options.keep_last, options.keep_every};
  }
  std::string Label(absl::string_view what) const {
    return absl::StrCat(what, " \"", PrintableLine(directory), "\"");
  }
  LoadOptions WithFiles(LoadOptions load) const {
    if (load.files == nullptr) load.files = options.save.files;
    return load;
  }
  // In which the series lies, the first one first.
  std::vector<std::string> Directories() const {
    std::vector<std::string> directories = {directory};
    if (!options.copy_to.empty()) directories.push_back(options.copy_to);
    return directories;
  }
  // Borrows `tensors`.
  SaveJob JobOf(const SaveJob::Tensors& tensors) const {
    return SaveJobOf(directory, tensors, group, options.save);
  }
  absl::StatusOr<SaveJob> JobOf(const StateDict& state) const {
    return CollectTensors(directory, state, group, options.save);
  }
  // That of a step.
  SaveJob AsStep(int64_t step, SaveJob job) const {
    job.base = base;
    job.target = {.step = step, .retention = retention(), .index = index};
    return job;
  }
  absl::Status Save(int64_t step, SaveJob job);
  absl::StatusOr<SaveHandle> SaveAsync(int64_t step, SaveJob job);
  // Waits until no save and no copy is at work, which may still read files that
  // the next one removes; the error of the last SaveAsync, once. Collective if
  // there was one.
  absl::Status Settle();
  // In any of them.
  absl::StatusOr<StepNames> Names() const;
  // In all of them.
  absl::Status CheckNoPinAfter(int64_t step) const;
  // The step where it is whole, in the first directory if in both; otherwise
  // where it may be whole, or at least is; kNotFound: in none.
  SeriesStep Look(int64_t step, const AfterRead& after_read = nullptr,
                  bool read_data = false) const;
  // On one rank.
  absl::StatusOr<LatestStep> FindLatest(const LatestOptions& latest,
                                        const AfterRead& after_read) const;
  // What `ask` returns on rank 0, without passed_over on the others.
  // Collective.
  absl::StatusOr<LatestStep> AskRank0(
      const std::string& label,
      absl::FunctionRef<absl::StatusOr<LatestStep>(const AfterRead&)> ask)
      const;
  // Where to load a step from. Collective if there are two directories.
  absl::StatusOr<std::string> PathOf(int64_t step) const;
  // What `load` returns, a status with or without a value, of the path of a
  // step; of the second one if the first is damaged.
  template <typename LoadFn>
  std::invoke_result_t<LoadFn, const std::string&> LoadStep(
      int64_t step, const LoadFn& load) const;
};

absl::Status CheckpointSeries::State::Settle() {
  absl::Status saved;
  if (pending.has_value()) saved = pending->Durable();
  pending.reset();
  if (copier != nullptr) copier->Wait();
  if (!std::exchange(saves_beside, false)) return saved;
  // A failed save may be known to one rank's next SaveAsync and not to
  // another's, so that their last ones differ.
  const std::string text = Label("wait for the saves of");
  const OperationLabel label(kOperation, text);
  return Agree(*group, label, saved, {}, {.timeout = options.save.timeout});
}

absl::StatusOr<StepNames> CheckpointSeries::State::Names() const {
  StepNames all;
  for (const std::string& place : Directories()) {
    SHERD_ASSIGN_OR_RETURN(const StepNames names,
                           ListStepNames(files(), place));
    all.steps.insert(names.steps.begin(), names.steps.end());
    all.pinned.insert(names.pinned.begin(), names.pinned.end());
    all.lost.Update(names.lost);
  }
  return all;
}

absl::Status CheckpointSeries::State::CheckNoPinAfter(int64_t step) const {
  absl::Status status;
  for (const std::string& place : Directories()) {
    status.Update(sherd::CheckNoPinAfter(files(), place, step));
  }
  return status;
}

SeriesStep CheckpointSeries::State::Look(int64_t step,
                                         const AfterRead& after_read,
                                         bool read_data) const {
  std::optional<SeriesStep> best;
  for (const std::string& place : Directories()) {
    SeriesStep found = LookAtStep(files(), place, step, after_read);
    if (found.status.ok() && read_data) {
      found.status = VerifyCheckpoint(found.path, {.files = &files(),
                                                   .progress = after_read})
                         .status();
    }
    if (found.status.ok()) return found;
    const bool may_be_whole =
        !IsUnsound(found.status) && !absl::IsNotFound(found.status);
    if (!best.has_value() || absl::IsNotFound(best->status) ||
        (may_be_whole && IsUnsound(best->status))) {
      best = std::move(found);
    }
  }
  return *best;
}

absl::StatusOr<LatestStep> CheckpointSeries::State::FindLatest(
    const LatestOptions& wanted, const AfterRead& after_read) const {
  // Another job may remove steps while this one looks at them.
  constexpr int kMaxAttempts = 100;
  for (int attempt = 1;; ++attempt) {
    SHERD_ASSIGN_OR_RETURN(const StepNames names, Names());
    LatestStep latest;
    if (!names.lost.ok()) {
      latest.passed_over.emplace_back(names.lost.message());
    }
    bool vanished = false;
    for (auto it = names.steps.rbegin(); it != names.steps.rend(); ++it) {
      const SeriesStep step = Look(*it, after_read, wanted.read_data);
      if (step.status.ok()) {
        latest.step = step.step;
        latest.path = step.path;
        return latest;
      }
      if (absl::IsNotFound(step.status)) {
        vanished = true;
        continue;
      }
      if (!IsUnsound(step.status)) return step.status;
      latest.passed_over.push_back(
          absl::StrCat("step ", step.step, ": ", step.status.message()));
    }
    if (vanished && attempt < kMaxAttempts) continue;
    if (names.steps.empty() && !names.lost.ok()) return names.lost;
    if (latest.passed_over.empty()) {
      return absl::NotFoundError("there is no step");
    }
    return absl::DataLossError(
        absl::StrCat("none of ", names.steps.size(),
                     " steps is whole: ", latest.passed_over.front()));
  }
}

absl::StatusOr<LatestStep> CheckpointSeries::State::AskRank0(
    const std::string& text,
    absl::FunctionRef<absl::StatusOr<LatestStep>(const AfterRead&)> ask) const {
  const OperationLabel label(kOperation, text);
  LongStep work(*group, label, {.timeout = options.save.timeout});
  absl::StatusOr<LatestStep> found = LatestStep();
  uint64_t number = 0;
  if (group->rank() == 0) {
    found = ask([&work] { return work.MadeProgress(); });
    // The step, and in the lowest bit the directory.
    if (found.ok()) {
      const bool second =
          found->path != JoinPath(directory, StepManifestName(found->step));
      number = 2 * static_cast<uint64_t>(found->step) + (second ? 1 : 0);
    }
  }
  SHERD_ASSIGN_OR_RETURN(
      number,
      work.AgreeOnMaximum(found.status(),
                          {Fingerprint().Add(text).value(),
                           [&text] { return absl::StrCat(text, "\n"); }},
                          number));
  found->step = static_cast<int64_t>(number / 2);
  found->path =
      JoinPath(Directories()[number % 2], StepManifestName(found->step));
  return found;
}

absl::StatusOr<std::string> CheckpointSeries::State::PathOf(
    int64_t step) const {
  if (options.copy_to.empty() || step < 0) {
    return JoinPath(directory, StepManifestName(step));
  }
  const std::string label = absl::StrCat(Label("series"), ": load step ", step);
  SHERD_ASSIGN_OR_RETURN(
      const LatestStep found,
      AskRank0(label,
               [&](const AfterRead& after_read) -> absl::StatusOr<LatestStep> {
                 // The load says what is wrong with one that is not whole.
                 return LatestStep{.step = step,
                                   .path = Look(step, after_read).path};
               }));
  return found.path;
}

template <typename LoadFn>
std::invoke_result_t<LoadFn, const std::string&>
CheckpointSeries::State::LoadStep(int64_t step, const LoadFn& load) const {
  SHERD_ASSIGN_OR_RETURN(const std::string path, PathOf(step));
  auto loaded = load(path);
  const std::string copy =
      options.copy_to.empty()
          ? ""
          : JoinPath(options.copy_to, StepManifestName(step));
  // All ranks have the same error.
  if (!IsDamaged(loaded) || copy.empty() || copy == path) return loaded;
  auto again = load(copy);
  if (!again.ok()) return group->health().ok() ? loaded : again;
  SHERD_LOG(kWarning) << "step " << step << " was loaded from " << copy
                      << ", since the other one is damaged";
  return again;
}

CheckpointSeries::CheckpointSeries(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
CheckpointSeries::CheckpointSeries(CheckpointSeries&&) noexcept = default;
CheckpointSeries& CheckpointSeries::operator=(CheckpointSeries&&) noexcept =
    default;
CheckpointSeries::~CheckpointSeries() = default;

absl::StatusOr<CheckpointSeries> CheckpointSeries::Open(
    std::string directory, std::shared_ptr<ProcessGroup> group,
    SeriesOptions options) {
  if (group == nullptr) {
    SHERD_ASSIGN_OR_RETURN(group, DefaultGroup());
  }
  const std::string text = absl::StrCat("open series ", Quoted(directory));
  const auto describe = [&] { return DescribeSeries(directory, options); };
  SHERD_RETURN_IF_ERROR(Agree(*group, {kOperation, text},
                              CheckOptions(directory, options),
                              {Fingerprint().Add(describe()).value(), describe},
                              {.timeout = options.save.timeout}));
  auto state = std::make_unique<State>();
  state->directory = std::move(directory);
  state->group = std::move(group);
  state->options = std::move(options);
  if (state->options.incremental) state->base = std::make_shared<SaveBase>();
  if (!state->options.copy_to.empty()) {
    SHERD_ASSIGN_OR_RETURN(
        state->copier,
        StepCopier::Create(*state->group, {.from = state->directory,
                                           .to = state->options.copy_to,
                                           .retention = state->retention(),
                                           .save = state->options.save}));
  }
  return CheckpointSeries(std::move(state));
}

absl::Status CheckpointSeries::State::Save(int64_t step, SaveJob job) {
  SHERD_RETURN_IF_ERROR(Settle());
  SHERD_RETURN_IF_ERROR(RunSave(AsStep(step, std::move(job))));
  if (copier == nullptr) return absl::OkStatus();
  const absl::Status copied = copier->TakeError();
  copier->Start(step);
  return copied;
}

absl::StatusOr<SaveHandle> CheckpointSeries::State::SaveAsync(int64_t step,
                                                              SaveJob job) {
  AsyncJobOptions beside = {.staging_budget = options.staging_budget};
  if (copier != nullptr) {
    // Of a Save: it may still read files that this save removes.
    if (!pending.has_value()) copier->Wait();
    beside.ended = [copier = copier, step](const absl::Status& saved) {
      if (saved.ok()) copier->Run(step);
    };
  }
  saves_beside = true;
  SHERD_ASSIGN_OR_RETURN(pending,
                         StartAsyncSave(AsStep(step, std::move(job)), beside));
  return *pending;
}

absl::Status CheckpointSeries::Save(
    int64_t step, const std::map<std::string, ShardedTensor>& tensors) {
  return state_->Save(step, state_->JobOf(tensors));
}

absl::Status CheckpointSeries::Save(int64_t step, const StateDict& state) {
  SHERD_ASSIGN_OR_RETURN(SaveJob job, state_->JobOf(state));
  return state_->Save(step, std::move(job));
}

absl::StatusOr<SaveHandle> CheckpointSeries::SaveAsync(
    int64_t step, const std::map<std::string, ShardedTensor>& tensors) {
  return state_->SaveAsync(step, state_->JobOf(tensors));
}

absl::StatusOr<SaveHandle> CheckpointSeries::SaveAsync(int64_t step,
                                                       const StateDict& state) {
  SHERD_ASSIGN_OR_RETURN(SaveJob job, state_->JobOf(state));
  return state_->SaveAsync(step, std::move(job));
}

absl::StatusOr<LatestStep> CheckpointSeries::Latest(
    const LatestOptions& options) {
  const std::string label = absl::StrCat(state_->Label("latest step of"),
                                         options.read_data ? ", read" : "");
  SHERD_ASSIGN_OR_RETURN(
      LatestStep latest,
      state_->AskRank0(label, [&](const AfterRead& after_read) {
        return state_->FindLatest(options, after_read);
      }));
  for (const std::string& reason : latest.passed_over) {
    SHERD_LOG(kWarning) << "passed over: " << reason;
  }
  return latest;
}

absl::Status CheckpointSeries::LoadInto(
    int64_t step, const std::map<std::string, ShardedTensor*>& tensors,
    const LoadOptions& options) {
  return state_->LoadStep(step, [&](const std::string& path) {
    return LoadCheckpointInto(path, tensors, state_->group,
                              state_->WithFiles(options));
  });
}

absl::Status CheckpointSeries::LoadInto(int64_t step, StateDict& state,
                                        const LoadOptions& options) {
  return state_->LoadStep(step, [&](const std::string& path) {
    return LoadCheckpointInto(path, state, state_->group,
                              state_->WithFiles(options));
  });
}

absl::StatusOr<std::map<std::string, ShardedTensor>> CheckpointSeries::Load(
    int64_t step, const std::map<std::string, ShardingSpecPtr>& specs,
    const LoadOptions& options) {
  return state_->LoadStep(step, [&](const std::string& path) {
    return LoadCheckpoint(path, specs, state_->group,
                          state_->WithFiles(options));
  });
}

absl::Status CheckpointSeries::RemoveAfter(int64_t step) {
  SHERD_RETURN_IF_ERROR(state_->Settle());
  const std::string text =
      absl::StrCat(state_->Label("series"), ": remove after step ", step);
  const OperationLabel label(kOperation, text);
  const SaveOptions& save = state_->options.save;
  const bool removes = state_->group->rank() == 0;
  // Before anything goes.
  SHERD_RETURN_IF_ERROR(
      Agree(*state_->group, label,
            removes ? state_->CheckNoPinAfter(step) : absl::OkStatus(),
            {Fingerprint().Add(step).value(),
             [step] { return absl::StrCat("step ", step, "\n"); }},
            {.timeout = save.timeout}));
  LongStep work(*state_->group, label, {.timeout = save.timeout});
  absl::Status status;
  if (removes) {
    for (const std::string& place : state_->Directories()) {
      SaveDirectory directory(state_->files(), place, save.sync,
                              [&work] { return work.MadeProgress(); });
      status.Update(directory.RemoveStepsAfter(step, save.lease_duration));
      if (!status.ok()) break;
    }
  }
  return work.Agree(status);
}

absl::Status CheckpointSeries::Flush() {
  SHERD_RETURN_IF_ERROR(state_->Settle());
  if (state_->copier == nullptr) return absl::OkStatus();
  return state_->copier->TakeError();
}

absl::Status CheckpointSeries::Pin(int64_t step) {
  absl::Status status = absl::NotFoundError("");
  for (const std::string& place : state_->Directories()) {
    const absl::Status pinned = PinStep(place, step, state_->files());
    if (!pinned.ok() && !absl::IsNotFound(pinned)) return pinned;
    // A step of a series need not be in both.
    if (!status.ok()) status = pinned;
  }
  return status;
}

absl::Status CheckpointSeries::Unpin(int64_t step) {
  for (const std::string& place : state_->Directories()) {
    SHERD_RETURN_IF_ERROR(UnpinStep(place, step, state_->files()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SeriesStep>> CheckpointSeries::List() const {
  SHERD_ASSIGN_OR_RETURN(const StepNames names, state_->Names());
  if (names.steps.empty()) SHERD_RETURN_IF_ERROR(names.lost);
  std::vector<SeriesStep> steps;
  for (const int64_t number : names.steps) {
    SeriesStep step = state_->Look(number);
    if (absl::IsNotFound(step.status)) continue;
    step.pinned = names.pinned.contains(number);
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace sherd
