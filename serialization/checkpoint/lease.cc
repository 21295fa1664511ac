#include "sherd/serialization/checkpoint/lease.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/civil_time.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "sherd/core/base/limit_error.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/named_thread.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/process/process_status.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/store/sealed_text.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace {

constexpr SealedText kText = {.magic = "sherd lease ",
                              .version = kLeaseVersion,
                              .max_bytes = kMaxLeaseBytes,
                              .name = "a lease",
                              .remedy = "save with a later one"};
constexpr absl::string_view kTimeFormat = "%Y-%m-%dT%H:%M:%E3SZ";
// A holder renews its lease by one short write, which a read may meet half
// done; never so often, even of one that lost its core within the write.
constexpr int kReads = 20;
constexpr absl::Duration kReadPause = absl::Milliseconds(5);
// Of a lease that others take, too.
constexpr int kAttempts = 16;

std::string TimeText(absl::Time time) {
  return absl::FormatTime(kTimeFormat, time, absl::UTCTimeZone());
}

// Whether TimeText has its usual length.
bool IsInRange(absl::Time time) {
  return time >= absl::UnixEpoch() &&
         time < absl::FromCivil(absl::CivilSecond(10000), absl::UTCTimeZone());
}

absl::Time WholeMilliseconds(absl::Time time) {
  return absl::FromUnixMillis(absl::ToUnixMillis(time));
}

// "`key` value\n" from the front of `rest`.
bool TakeLine(absl::string_view& rest, absl::string_view key,
              absl::string_view& value) {
  const size_t end = rest.find('\n');
  if (end == absl::string_view::npos) return false;
  value = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return absl::ConsumePrefix(&value, key) && absl::ConsumePrefix(&value, " ");
}

std::string HostName() {
  std::array<char, 256> name = {};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return PrintableLine(name.data());
}

ProcessDescription OwnProcess() {
  return {BootId(), OwnNamespace("pid"), ProcessIdentity::Own()};
}

// The saves of this process that hold a lease: ranks may be threads, and a
// process may outlive a lease that it could not remove.
struct OwnSaves {
  absl::Mutex mutex;
  absl::flat_hash_set<std::string> ids ABSL_GUARDED_BY(mutex);
};

OwnSaves& GetOwnSaves() {
  static OwnSaves* const saves = new OwnSaves;
  return *saves;
}

bool IsOwnSave(const std::string& save_id) {
  OwnSaves& saves = GetOwnSaves();
  absl::MutexLock lock(&saves.mutex);
  return saves.ids.contains(save_id);
}

std::string Describe(const LeaseRecord& record) {
  return absl::StrCat("process ", record.holder.process.pid, " of host ",
                      Quoted(record.host), " (save ", record.save_id, " since ",
                      TimeText(record.since), ", renewed ",
                      TimeText(record.renewed), ", generation ",
                      record.generation, ")");
}

absl::Status HeldBy(const std::string& path, const LeaseRecord& record) {
  std::string text = absl::StrCat(
      path, " is held by ", Describe(record),
      ", which saves this checkpoint; wait until it is done, end it, or save "
      "to another directory");
  if (StateOf(record.holder.ToText()) != ProcessState::kRunning) {
    absl::StrAppend(&text, "; unless it is renewed, the next save after ",
                    TimeText(record.renewed + record.duration),
                    " takes it over");
  }
  return absl::AbortedError(text);
}

// Nullopt if there is none.
absl::StatusOr<std::optional<LeaseRecord>> ReadLease(FileSystem& files,
                                                     const std::string& path) {
  absl::StatusOr<LeaseRecord> record;
  for (int i = 0; i < kReads; ++i) {
    if (i > 0) absl::SleepFor(kReadPause);
    const absl::StatusOr<std::string> bytes =
        ReadFile(files, path, kMaxLeaseBytes);
    if (absl::IsNotFound(bytes.status())) return std::nullopt;
    if (IsLimitError(bytes.status())) {
      return kText.Damaged(path, bytes.status().message());
    }
    SHERD_RETURN_IF_ERROR(bytes.status());
    record = DecodeLease(*bytes, path);
    if (!absl::IsDataLoss(record.status())) break;
  }
  SHERD_RETURN_IF_ERROR(record.status());
  return *std::move(record);
}

}  // namespace

std::string EncodeLease(const LeaseRecord& record) {
  return SealedText::Seal(absl::StrCat(
      kText.magic, kLeaseVersion, "\nhost ", record.host, "\nprocess ",
      record.holder.ToText(), "\nsave_id ", record.save_id, "\ngeneration ",
      record.generation, "\nsince ", TimeText(record.since), "\nrenewed ",
      TimeText(record.renewed), "\nduration_ms ",
      absl::StrFormat("%013d", absl::ToInt64Milliseconds(record.duration)),
      "\n"));
}

absl::StatusOr<LeaseRecord> DecodeLease(absl::string_view bytes,
                                        absl::string_view what) {
  SHERD_ASSIGN_OR_RETURN(absl::string_view rest, kText.Open(bytes, what));
  constexpr std::array<absl::string_view, 7> kKeys = {
      "host",  "process", "save_id",    "generation",
      "since", "renewed", "duration_ms"};
  std::array<absl::string_view, kKeys.size()> values;
  for (size_t i = 0; i < kKeys.size(); ++i) {
    if (!TakeLine(rest, kKeys[i], values[i])) {
      return kText.Damaged(what, absl::StrCat("expected a line ", kKeys[i]));
    }
  }
  LeaseRecord record;
  record.host = std::string(values[0]);
  record.save_id = std::string(values[2]);
  const auto holder =
      ProcessDescription::Parse({values[1].data(), values[1].size()});
  int64_t duration_ms = 0;
  std::string ignored;
  if (!holder || holder->process.pid <= 0 || !IsSaveId(record.save_id) ||
      !absl::SimpleAtoi(values[3], &record.generation) ||
      record.generation == 0 ||
      !absl::ParseTime(kTimeFormat, values[4], &record.since, &ignored) ||
      !absl::ParseTime(kTimeFormat, values[5], &record.renewed, &ignored) ||
      !IsInRange(record.since) || !IsInRange(record.renewed) ||
      !absl::SimpleAtoi(values[6], &duration_ms) || duration_ms < 0 ||
      absl::Milliseconds(duration_ms) > kMaxLeaseDuration) {
    return kText.Damaged(what, "a value is outside of its range");
  }
  record.holder = *holder;
  record.duration = absl::Milliseconds(duration_ms);
  // So each record has one encoding, and times and numbers one form.
  if (EncodeLease(record) != bytes) {
    return kText.Damaged(what,
                         "its values are not in the form that is written");
  }
  return record;
}

bool LeaseIsOver(const LeaseRecord& record, absl::Time now) {
  if (record.duration == absl::ZeroDuration()) return true;
  if (IsOwnSave(record.save_id)) return false;
  const ProcessState state = StateOf(record.holder.ToText());
  switch (state) {
    case ProcessState::kEnded:
      return true;
    case ProcessState::kRunning:
    case ProcessState::kTraced:
      // Of this process, but of no save of it that runs.
      return record.holder == OwnProcess();
    case ProcessState::kStopped:
    case ProcessState::kUnknown:
      break;
  }
  return now >= record.renewed + record.duration;
}

CheckpointLease::CheckpointLease(FileSystem& files, std::string path,
                                 LeaseRecord record, bool sync)
    : files_(files),
      path_(std::move(path)),
      save_id_(record.save_id),
      generation_(record.generation),
      sync_(sync),
      record_(std::move(record)) {
  OwnSaves& saves = GetOwnSaves();
  absl::MutexLock lock(&saves.mutex);
  saves.ids.insert(save_id_);
}

CheckpointLease::~CheckpointLease() {
  Release();
  OwnSaves& saves = GetOwnSaves();
  absl::MutexLock lock(&saves.mutex);
  saves.ids.erase(save_id_);
}

absl::StatusOr<std::unique_ptr<CheckpointLease>> CheckpointLease::Take(
    FileSystem& files, const std::string& directory, const std::string& save_id,
    const LeaseOptions& options) {
  if (options.duration < kMinLeaseDuration ||
      options.duration > kMaxLeaseDuration) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a lease's duration is ", absl::FormatDuration(options.duration),
        ", expected ", absl::FormatDuration(kMinLeaseDuration), " to ",
        absl::FormatDuration(kMaxLeaseDuration)));
  }
  const std::string path = JoinPath(directory, kLeaseFileName);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    absl::StatusOr<std::optional<LeaseRecord>> found = ReadLease(files, path);
    const bool damaged = absl::IsDataLoss(found.status());
    if (damaged) {
      SHERD_LOG(kWarning) << "taking over a lease that no save can hold: "
                          << found.status().ToString();
      found = std::nullopt;
    }
    SHERD_RETURN_IF_ERROR(found.status());
    const std::optional<LeaseRecord>& old = *found;
    const absl::Time now = WholeMilliseconds(absl::Now());
    if (old && !LeaseIsOver(*old, now)) return HeldBy(path, *old);
    LeaseRecord record = {.host = HostName(),
                          .holder = OwnProcess(),
                          .save_id = save_id,
                          .generation = old ? old->generation + 1 : 1,
                          .since = now,
                          .renewed = now,
                          .duration = options.duration};
    std::unique_ptr<CheckpointLease> lease(
        new CheckpointLease(files, path, std::move(record), options.sync));
    SHERD_ASSIGN_OR_RETURN(const bool placed,
                           lease->Place(/*replace=*/old || damaged));
    if (!placed) continue;
    SHERD_RETURN_IF_ERROR(lease->StartRenewing());
    return lease;
  }
  return absl::AbortedError(absl::StrCat(
      path,
      " is taken by other saves again and again; end all but one of "
      "them, or save to another directory"));
}

absl::StatusOr<bool> CheckpointLease::Place(bool replace) {
  absl::MutexLock lock(&mutex_);
  const std::string temporary = absl::StrCat(path_, ".", save_id_, ".tmp");
  const auto place = [&]() -> absl::Status {
    mutex_.AssertHeld();
    SHERD_ASSIGN_OR_RETURN(file_, files_.Create(temporary));
    SHERD_RETURN_IF_ERROR(Write());
    return replace ? files_.Rename(temporary, path_)
                   : files_.RenameNew(temporary, path_);
  };
  const absl::Status status = place();
  if (status.ok()) {
    // Another may have taken it over at the same moment.
    SHERD_ASSIGN_OR_RETURN(const std::optional<LeaseRecord> now,
                           ReadLease(files_, path_));
    return now && now->save_id == save_id_;
  }
  files_.Remove(temporary).IgnoreError();
  // A holder removes the temporary files of others.
  if (absl::IsAlreadyExists(status) || absl::IsNotFound(status)) return false;
  return status;
}

absl::Status CheckpointLease::Write() {
  SHERD_RETURN_IF_ERROR(file_->WriteAt(0, AsBytes(EncodeLease(record_))));
  return sync_ ? file_->Sync() : absl::OkStatus();
}

absl::Status CheckpointLease::StartRenewing() {
  SHERD_ASSIGN_OR_RETURN(thread_, StartNamedThread("sherd-lease", [this] {
                           RenewUntilStopped();
                         }));
  return absl::OkStatus();
}

void CheckpointLease::RenewUntilStopped() {
  absl::MutexLock lock(&mutex_);
  const absl::Duration pause = record_.duration / 4;
  while (!mutex_.AwaitWithTimeout(absl::Condition(&stop_), pause)) {
    record_.renewed = WholeMilliseconds(absl::Now());
    if (const absl::Status status = Write(); !status.ok()) {
      SHERD_LOG(kWarning) << "a lease was not renewed: " << status.ToString();
    }
  }
}

absl::StatusOr<bool> CheckpointLease::IsIn(const std::string& directory) const {
  const absl::StatusOr<std::optional<LeaseRecord>> record =
      ReadLease(files_, JoinPath(directory, kLeaseFileName));
  // Of whoever wrote it: this lease is sound.
  if (absl::IsDataLoss(record.status()) ||
      absl::IsUnimplemented(record.status())) {
    return false;
  }
  SHERD_RETURN_IF_ERROR(record.status());
  return record->has_value() && (*record)->save_id == save_id_;
}

absl::Status CheckpointLease::Check() {
  // Not while it is renewed, which would look like damage.
  absl::MutexLock lock(&mutex_);
  const auto found = ReadLease(files_, path_);
  SHERD_RETURN_IF_ERROR(found.status());
  if (*found && (*found)->save_id == save_id_) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(
      "this save has lost ", path_,
      *found ? absl::StrCat(" to ", Describe(**found),
                            ", because it looked as if it had ended or did not "
                            "renew it for ",
                            absl::FormatDuration(record_.duration))
             : ": the file was removed",
      "; if no other save runs, save again"));
}

void CheckpointLease::Release() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
  absl::Status status = Check();
  if (absl::IsAborted(status)) return;
  if (status.ok()) status = files_.Remove(path_);
  if (status.ok() || absl::IsNotFound(status)) return;
  // The process may live on for long: others must not wait for its end.
  absl::MutexLock lock(&mutex_);
  if (file_ == nullptr) return;
  record_.duration = absl::ZeroDuration();
  const absl::Status over = Write();
  SHERD_LOG(kWarning) << "a lease stays: " << status.ToString()
                      << (over.ok() ? "" : "; " + over.ToString());
}

}  // namespace sherd
