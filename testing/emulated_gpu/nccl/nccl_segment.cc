#include "sherd/testing/emulated_gpu/nccl/nccl_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/core/process/shared_segment.h"

namespace sherd::testing {

using internal::kNcclInvalidArgument;
using internal::kNcclInvalidUsage;
using internal::kNcclRemoteError;
using internal::kNcclSuccess;
using internal::kNcclSystemError;

namespace {

constexpr uint64_t kMagic = 0x31306c63634e7573;
constexpr int kYields = 20;
constexpr int64_t kSleepNanoseconds = 20'000'000;

// The content of an NcclUniqueId.
struct IdContent {
  uint64_t magic;
  int64_t pid;
  uint64_t start_time;
  uint64_t nonce[2];
  int32_t fd;
};
static_assert(sizeof(IdContent) <= sizeof(NcclUniqueId));

}  // namespace

struct NcclSegment::Header {
  uint64_t magic;
  uint64_t nonce[2];
  std::atomic<uint32_t> num_ranks;
  std::atomic<uint32_t> complete;
  std::atomic<uint32_t> broken;
  // 1 while the text is written, 2 afterwards.
  std::atomic<uint32_t> mismatch;
  char mismatch_text[1024];
};

namespace {

constexpr size_t kHeaderBytes = 4096;

size_t BlocksEnd(int num_ranks) {
  const size_t end = kHeaderBytes + sizeof(NcclRankBlock) * num_ranks;
  return (end + 4095) / 4096 * 4096;
}

size_t SegmentBytes(int num_ranks) {
  return BlocksEnd(num_ranks) + 2 * sizeof(NcclChannel) * num_ranks * num_ranks;
}

// The ids of this process that are not known to be complete.
struct OwnIds {
  std::mutex mutex;
  // By nonce: the descriptor, and the mapped header.
  std::map<std::pair<uint64_t, uint64_t>, UniqueFd> fds;
};

OwnIds& Own() {
  static OwnIds* const ids = new OwnIds;
  return *ids;
}

UniqueFd OpenById(const IdContent& id) {
  return SharedSegment::Open(SharedSegment::PathOf(id.pid, id.fd));
}

}  // namespace

size_t NcclChannel::Write(const void* data, size_t size) {
  const uint64_t at = written.load(std::memory_order_relaxed);
  const uint64_t room =
      sizeof(bytes) - (at - read.load(std::memory_order_acquire));
  size = std::min<uint64_t>(size, room);
  if (size == 0) return 0;
  const size_t place = at % sizeof(bytes);
  const size_t first = std::min(size, sizeof(bytes) - place);
  std::memcpy(bytes + place, data, first);
  std::memcpy(bytes, static_cast<const char*>(data) + first, size - first);
  written.store(at + size, std::memory_order_release);
  return size;
}

size_t NcclChannel::Read(void* data, size_t size) {
  const uint64_t at = read.load(std::memory_order_relaxed);
  size = std::min<uint64_t>(size, written.load(std::memory_order_acquire) - at);
  if (size == 0) return 0;
  const size_t place = at % sizeof(bytes);
  const size_t first = std::min(size, sizeof(bytes) - place);
  std::memcpy(data, bytes + place, first);
  std::memcpy(static_cast<char*>(data) + first, bytes, size - first);
  read.store(at + size, std::memory_order_release);
  return size;
}

NcclResult NcclSegment::MakeUniqueId(NcclUniqueId* id) {
  // Not a SharedSegment, whose size is sealed: the number of ranks, and so the
  // size, is not known yet.
  UniqueFd fd(static_cast<int>(
      syscall(SYS_memfd_create, "sherd_emulated_nccl", MFD_CLOEXEC)));
  Header header = {};
  header.magic = kMagic;
  if (fd.get() < 0 ||
      getrandom(header.nonce, sizeof(header.nonce), 0) !=
          sizeof(header.nonce) ||
      ftruncate(fd.get(), kHeaderBytes) != 0 ||
      pwrite(fd.get(), &header, sizeof(header.magic) + sizeof(header.nonce),
             0) != sizeof(header.magic) + sizeof(header.nonce)) {
    return NcclFail(kNcclSystemError,
                    std::string("no shared memory: ") + std::strerror(errno));
  }
  NcclRankInfo own;
  DescribeOwnProcess(&own);
  const IdContent content = {kMagic,
                             own.pid,
                             own.start_time,
                             {header.nonce[0], header.nonce[1]},
                             fd.get()};
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id, &content, sizeof(content));

  const std::lock_guard<std::mutex> lock(Own().mutex);
  Own().fds.emplace(std::pair(header.nonce[0], header.nonce[1]), std::move(fd));
  return kNcclSuccess;
}

NcclResult NcclSegment::Open(const NcclUniqueId& id, int num_ranks,
                             std::shared_ptr<NcclSegment>* segment) {
  IdContent content;
  std::memcpy(&content, &id, sizeof(content));
  if (content.magic != kMagic) {
    return NcclFail(kNcclInvalidArgument,
                    "Bootstrap : the unique id was not made by "
                    "ncclGetUniqueId");
  }
  const auto refused = [](const char* why) {
    return NcclFail(kNcclRemoteError,
                    std::string("socketPollConnect: connect returned "
                                "Connection refused: ") +
                        why);
  };
  if (StateOf(ProcessIdentity{content.pid, content.start_time}) ==
      ProcessState::kEnded) {
    return refused("the process that made the unique id has ended");
  }
  const UniqueFd fd = OpenById(content);
  // The number may be another file's by now.
  uint64_t start[3] = {};
  if (fd.get() < 0 ||
      pread(fd.get(), start, sizeof(start), 0) != sizeof(start) ||
      start[0] != kMagic || start[1] != content.nonce[0] ||
      start[2] != content.nonce[1]) {
    return refused("the unique id was used before");
  }
  const size_t bytes = SegmentBytes(num_ranks);
  // Two steps: the size depends on the number of ranks, which must be the same.
  void* const small = mmap(nullptr, kHeaderBytes, PROT_READ | PROT_WRITE,
                           MAP_SHARED, fd.get(), 0);
  if (small == MAP_FAILED) {
    return NcclFail(kNcclSystemError, "no address space");
  }
  Header* const header = static_cast<Header*>(small);
  const bool used = header->complete.load() != 0;
  uint32_t expected = 0;
  const bool agrees = header->num_ranks.compare_exchange_strong(
                          expected, static_cast<uint32_t>(num_ranks)) ||
                      expected == static_cast<uint32_t>(num_ranks);
  if (!agrees) header->broken.store(1);
  munmap(small, kHeaderBytes);
  if (used) return refused("the unique id was used before");
  if (!agrees) {
    return NcclFail(kNcclInvalidUsage,
                    "Bootstrap Root : mismatch in rank count from procs " +
                        std::to_string(expected) + " : " +
                        std::to_string(num_ranks));
  }
  void* const all = ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0
                        ? MAP_FAILED
                        : mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (all == MAP_FAILED) {
    return NcclFail(kNcclSystemError,
                    std::string("no shared memory: ") + std::strerror(errno));
  }
  segment->reset(new NcclSegment(static_cast<Header*>(all), bytes, num_ranks));
  return kNcclSuccess;
}

NcclSegment::NcclSegment(Header* header, size_t bytes, int num_ranks)
    : header_(header), bytes_(bytes), num_ranks_(num_ranks) {
  char* const base = reinterpret_cast<char*>(header);
  blocks_ = reinterpret_cast<NcclRankBlock*>(base + kHeaderBytes);
  channels_ = reinterpret_cast<NcclChannel*>(base + BlocksEnd(num_ranks));
}

NcclSegment::~NcclSegment() { munmap(header_, bytes_); }

NcclChannel& NcclSegment::channel(NcclTraffic traffic, int from, int to) const {
  const size_t group = static_cast<size_t>(traffic) * num_ranks_ + from;
  return channels_[group * num_ranks_ + to];
}

void NcclSegment::Ring(int rank) const {
  NcclRankBlock& block = blocks_[rank];
  block.bell.fetch_add(1);
  if (block.sleepers.load() == 0) return;
  syscall(SYS_futex, &block.bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void NcclSegment::RingAll() const {
  for (int r = 0; r < num_ranks_; ++r) Ring(r);
}

void NcclSegment::Pause(int rank, uint32_t seen, int looks) const {
  if (looks < kYields) {
    sched_yield();
    return;
  }
  NcclRankBlock& block = blocks_[rank];
  const timespec time = {0, kSleepNanoseconds};
  block.sleepers.fetch_add(1);
  if (block.bell.load() == seen) {
    syscall(SYS_futex, &block.bell, FUTEX_WAIT, seen, &time, nullptr, 0);
  }
  block.sleepers.fetch_sub(1);
}

void NcclSegment::Complete() const {
  header_->complete.store(1);
  const std::lock_guard<std::mutex> lock(Own().mutex);
  Own().fds.erase(std::pair(header_->nonce[0], header_->nonce[1]));
}

void NcclSegment::Break() const {
  header_->broken.store(1);
  RingAll();
}

bool NcclSegment::broken() const { return header_->broken.load() != 0; }

void NcclSegment::SetMismatch(const std::string& text) const {
  uint32_t none = 0;
  if (!header_->mismatch.compare_exchange_strong(none, 1)) return;
  const size_t size = std::min(text.size(), sizeof(header_->mismatch_text) - 1);
  std::memcpy(header_->mismatch_text, text.data(), size);
  header_->mismatch_text[size] = 0;
  header_->mismatch.store(2);
  RingAll();
}

std::string NcclSegment::mismatch() const {
  return header_->mismatch.load() == 2 ? header_->mismatch_text : "";
}

bool NcclSegment::HasDied(int rank) const {
  const NcclRankInfo& info = blocks_[rank].info;
  return StateOf(ProcessIdentity{info.pid, info.start_time}) ==
         ProcessState::kEnded;
}

void DescribeOwnProcess(NcclRankInfo* info) {
  const ProcessIdentity own = ProcessIdentity::Own();
  info->pid = own.pid;
  info->start_time = own.start_time;
}

}  // namespace sherd::testing
