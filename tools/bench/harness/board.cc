#include "sherd/tools/bench/harness/board.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/tools/bench/harness/options.h"
#include "sherd/tools/bench/harness/shared_barrier.h"

namespace sherd {
namespace {

constexpr uint64_t kMagic = 0x7368657264626e31;  // "sherdbn1"
constexpr int64_t kSharedAlignment = int64_t{2} << 20;
constexpr int kNoOutcome = -1;

template <size_t N>
absl::Status PutText(char (&place)[N], absl::string_view text) {
  if (text.size() >= N) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is longer than ", N - 1, " characters"));
  }
  std::copy(text.begin(), text.end(), place);
  place[text.size()] = '\0';
  return absl::OkStatus();
}

}  // namespace

struct Board::Memory {
  struct WorkNotes {
    int64_t bytes_sent;
    int64_t bytes_received;
    int64_t extra_bytes;
    char way[64];
  };
  struct Slot {
    int outcome;
    char message[2000];
    CallTimes calls[kMaxBenchPeers][kMaxBenchSamples];
    WorkNotes notes[kMaxBenchPeers];
  };

  uint64_t magic;
  pid_t parent;
  char case_name[64];
  char directory[1024];
  int peers[kMaxBenchPeers];
  int num_peers;
  int world;
  int calls;
  int64_t bytes;
  int64_t shared_bytes;
  SharedBarrier barrier;
  Slot slots[kMaxBenchWorld];

  static int64_t SharedOffset() {
    return RoundUp(static_cast<int64_t>(sizeof(Memory)), kSharedAlignment);
  }
};

Board::Board(SharedSegment shared)
    : shared_(std::move(shared)),
      memory_(*reinterpret_cast<Memory*>(shared_.memory())) {}

absl::StatusOr<std::unique_ptr<Board>> Board::Create(const BenchTask& task) {
  const int64_t bytes = Memory::SharedOffset() + task.shared_bytes;
  SharedSegment shared;
  switch (shared.Create("sherd-bench", static_cast<uint64_t>(bytes))) {
    case SharedSegment::Failure::kNone:
      break;
    case SharedSegment::Failure::kMake:
      return ErrnoStatus(errno, "creating shared memory for", "bench");
    default:
      return ErrnoStatus(errno, "mapping shared memory for", "bench");
  }
  std::unique_ptr<Board> board(new Board(std::move(shared)));
  Memory& memory = *new (board->shared_.memory()) Memory{};
  memory.parent = getpid();
  memory.num_peers = static_cast<int>(task.peers.size());
  std::copy(task.peers.begin(), task.peers.end(), memory.peers);
  memory.world = task.world;
  memory.calls = task.calls;
  memory.bytes = task.bytes;
  memory.shared_bytes = task.shared_bytes;
  SHERD_RETURN_IF_ERROR(PutText(memory.case_name, task.case_name));
  SHERD_RETURN_IF_ERROR(PutText(memory.directory, task.directory));
  for (Memory::Slot& slot : memory.slots) slot.outcome = kNoOutcome;
  memory.magic = kMagic;
  board->task_ = task;
  return board;
}

absl::StatusOr<std::unique_ptr<Board>> Board::Attach(int fd) {
  const auto refuse = [fd] {
    return absl::InvalidArgumentError(absl::StrCat(
        "file descriptor ", fd, " is not that of a bench that started a rank"));
  };
  SharedSegment shared;
  if (shared.Adopt(UniqueFd(fd),
                   static_cast<uint64_t>(Memory::SharedOffset())) !=
      SharedSegment::Failure::kNone) {
    return refuse();
  }
  std::unique_ptr<Board> board(new Board(std::move(shared)));
  const Memory& memory = board->memory_;
  if (memory.magic != kMagic) return refuse();
  board->task_ = {
      .case_name = memory.case_name,
      .peers = {memory.peers, memory.peers + memory.num_peers},
      .world = memory.world,
      .bytes = memory.bytes,
      .calls = memory.calls,
      .directory = memory.directory,
      .shared_bytes = memory.shared_bytes,
  };
  return board;
}

pid_t Board::parent() const { return memory_.parent; }

absl::Span<std::byte> Board::shared() const {
  return absl::MakeSpan(
      reinterpret_cast<std::byte*>(shared_.memory()) + Memory::SharedOffset(),
      task_.shared_bytes);
}

void Board::Meet() { memory_.barrier.Meet(task_.world); }

void Board::SetCall(int rank, int peer, int call, const CallTimes& times) {
  memory_.slots[rank].calls[peer][call] = times;
}

double Board::CallSeconds(int peer, int call) const {
  double first = std::numeric_limits<double>::infinity();
  double last = -first;
  for (int rank = 0; rank < task_.world; ++rank) {
    const CallTimes& times = memory_.slots[rank].calls[peer][call];
    first = std::min(first, times.entered);
    last = std::max(last, times.left);
  }
  return last - first;
}

double Board::CallCpuSeconds(int peer, int call) const {
  double sum = 0;
  for (int rank = 0; rank < task_.world; ++rank) {
    const double cpu = memory_.slots[rank].calls[peer][call].cpu;
    if (cpu < 0) return -1;
    sum += cpu;
  }
  return sum;
}

void Board::SetFigures(int rank, int peer, const WorkFigures& figures) {
  Memory::WorkNotes& notes = memory_.slots[rank].notes[peer];
  notes.bytes_sent = figures.bytes_sent;
  notes.bytes_received = figures.bytes_received;
  notes.extra_bytes = figures.extra_bytes;
  PutText(notes.way,
          absl::string_view(figures.way).substr(0, sizeof(notes.way) - 1))
      .IgnoreError();
}

WorkFigures Board::Figures(int rank, int peer) const {
  const Memory::WorkNotes& notes = memory_.slots[rank].notes[peer];
  return {notes.bytes_sent, notes.bytes_received, notes.extra_bytes, notes.way};
}

void Board::SetOutcome(int rank, const absl::Status& outcome) {
  Memory::Slot& slot = memory_.slots[rank];
  const absl::string_view message = outcome.message();
  const size_t length = std::min(message.size(), sizeof(slot.message) - 1);
  std::copy_n(message.data(), length, slot.message);
  slot.message[length] = '\0';
  slot.outcome = static_cast<int>(outcome.code());
}

absl::Status Board::Outcome(int rank) const {
  const Memory::Slot& slot = memory_.slots[rank];
  if (slot.outcome == kNoOutcome) {
    return absl::UnknownError("ended without a word");
  }
  return absl::Status(static_cast<absl::StatusCode>(slot.outcome),
                      slot.message);
}

}  // namespace sherd
