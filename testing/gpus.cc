#include "sherd/testing/gpus.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::testing::internal {
namespace {

// How often others' locks are looked at.
constexpr absl::Duration kPause = absl::Milliseconds(20);
constexpr size_t kMaxCommandBytes = 300;
constexpr int kMaxEmulated = 64;

// Device files of GPUs, by number.
std::vector<std::string> DeviceFiles(const std::string& directory) {
  std::vector<std::pair<int, std::string>> found;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(directory, error)) {
    const std::string file = entry.path().filename().string();
    absl::string_view number = file;
    int n;
    if (absl::ConsumePrefix(&number, "nvidia") &&
        absl::SimpleAtoi(number, &n) && absl::StrCat(n) == number) {
      found.emplace_back(n, entry.path().string());
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> files;
  for (auto& [number, path] : found) files.push_back(std::move(path));
  return files;
}

// Who holds a lock on the open file: "process 708 (bazel-bin/a_test)"; empty if
// it is in a PID namespace that this process does not see. Lines of
// /proc/locks:
//   1: FLOCK  ADVISORY  WRITE 708 08:01:1234 0 EOF
std::string HolderOf(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return "";
  const std::string place = absl::StrFormat("%02x:%02x:%d", major(info.st_dev),
                                            minor(info.st_dev), info.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    const std::vector<std::string> fields =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (fields.size() < 6 || fields[1] != "FLOCK" || fields[5] != place) {
      continue;
    }
    int pid;
    if (!absl::SimpleAtoi(fields[4], &pid) || pid <= 0) return "";
    std::ifstream file(absl::StrCat("/proc/", pid, "/cmdline"));
    std::string command{std::istreambuf_iterator<char>(file), {}};
    std::replace(command.begin(), command.end(), '\0', ' ');
    command.resize(std::min(command.size(), kMaxCommandBytes));
    absl::StripAsciiWhitespace(&command);
    return absl::StrCat(
        "process ", pid,
        command.empty() ? "" : absl::StrCat(" (", command, ")"));
  }
  return "";
}

// What came of an attempt to lock: open and locked files, or who has them.
struct Attempt {
  std::vector<UniqueFd> files;
  // Empty if it worked.
  std::string obstacle;
};

absl::StatusOr<Attempt> TryLock(const std::vector<std::string>& paths) {
  Attempt attempt;
  for (const std::string& path : paths) {
    UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd.is_open()) return ErrnoStatus(errno, "opening the GPU", path);
    if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
      attempt.files.push_back(std::move(fd));
      continue;
    }
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return ErrnoStatus(errno, "locking the GPU", path);
    }
    const std::string holder = HolderOf(fd.get());
    attempt.obstacle = absl::StrCat(
        path, " by ", holder.empty() ? "a process unknown here" : holder);
    attempt.files.clear();
    return attempt;
  }
  return attempt;
}

}  // namespace

GpuHost GpuHost::Own() {
  GpuHost host = {.visible = GetKnob(Knob::kCudaVisibleDevices),
                  .shared = GetKnobOr(Knob::kTestShareGpus, "0") == "1"};
  const absl::StatusOr<std::optional<int64_t>> emulated =
      GetIntKnob(Knob::kEmulatedGpus, 0, kMaxEmulated);
  if (emulated.ok()) host.emulated = static_cast<int>(emulated->value_or(0));
  return host;
}

int GpuHost::Needed(int n) const { return shared ? std::min(n, 1) : n; }

std::vector<Gpu> VisibleGpus(const GpuHost& host) {
  if (host.emulated > 0) {
    std::vector<Gpu> gpus(static_cast<size_t>(host.emulated));
    for (size_t i = 0; i < gpus.size(); ++i) gpus[i].name = absl::StrCat(i);
    return gpus;
  }
  const std::vector<std::string> files = DeviceFiles(host.devices);
  std::vector<Gpu> gpus;
  if (!host.visible) {
    for (const std::string& file : files) {
      gpus.push_back({absl::StrCat(gpus.size()), {file}});
    }
    return gpus;
  }
  std::set<std::string> names;
  for (absl::string_view entry : absl::StrSplit(*host.visible, ',')) {
    const std::string name(absl::StripAsciiWhitespace(entry));
    int index;
    if (absl::StartsWith(name, "GPU-") || absl::StartsWith(name, "MIG-")) {
      if (files.empty()) break;
      gpus.push_back({name, files});
    } else if (absl::SimpleAtoi(name, &index) && index >= 0 &&
               index < static_cast<int>(files.size())) {
      gpus.push_back({name, {files[index]}});
    } else {
      break;
    }
    if (!names.insert(name).second) return {};
  }
  return gpus;
}

std::optional<Skip> SkipIfFewerGpus(int n, const GpuHost& host) {
  // Most tests need none and are not to pay for a look at /dev.
  if (n <= 0) return std::nullopt;
  const int visible = static_cast<int>(VisibleGpus(host).size());
  if (visible >= host.Needed(n)) return std::nullopt;
  return Skip{FewerGpusThan(n),
              absl::StrCat("(needs ", n, ", and ", visible, " are visible)")};
}

absl::StatusOr<GpuLocks> GpuLocks::Acquire(int n, Deadline deadline,
                                           const GpuHost& host) {
  GpuLocks locks;
  if (n <= 0) return locks;
  const std::vector<Gpu> visible = VisibleGpus(host);
  if (static_cast<int>(visible.size()) < host.Needed(n)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the test needs ", n, " GPUs, and ", visible.size(), " are visible"));
  }
  n = std::min(n, static_cast<int>(visible.size()));
  bool waited = false;
  for (;;) {
    std::vector<std::string> obstacles;
    for (const Gpu& gpu : visible) {
      if (static_cast<int>(locks.gpus_.size()) == n) return locks;
      SHERD_RETURN_IF_ERROR(locks.Add(gpu, obstacles));
    }
    if (static_cast<int>(locks.gpus_.size()) == n) return locks;
    // Who waited with some of them in hand could wait for who does the same.
    locks = GpuLocks();
    const std::string message =
        absl::StrCat("the test needs ", n, " of ", visible.size(),
                     " GPUs, and others use ", absl::StrJoin(obstacles, ", "));
    if (deadline.HasPassed()) return absl::DeadlineExceededError(message);
    if (!std::exchange(waited, true)) {
      SHERD_LOG(kWarning) << message;
    }
    absl::SleepFor(std::min(kPause, deadline.Remaining()));
  }
}

absl::Status GpuLocks::Add(const Gpu& gpu,
                           std::vector<std::string>& obstacles) {
  std::vector<std::string> wanted;
  for (const std::string& file : gpu.files) {
    if (std::find(paths_.begin(), paths_.end(), file) == paths_.end()) {
      wanted.push_back(file);
    }
  }
  SHERD_ASSIGN_OR_RETURN(Attempt attempt, TryLock(wanted));
  if (!attempt.obstacle.empty()) {
    obstacles.push_back(std::move(attempt.obstacle));
    return absl::OkStatus();
  }
  gpus_.push_back(gpu);
  for (UniqueFd& file : attempt.files) files_.push_back(std::move(file));
  paths_.insert(paths_.end(), wanted.begin(), wanted.end());
  return absl::OkStatus();
}

std::string GpuLocks::Visible() const {
  return absl::StrJoin(gpus_, ",", [](std::string* out, const Gpu& gpu) {
    out->append(gpu.name);
  });
}

}  // namespace sherd::testing::internal
