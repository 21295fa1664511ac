#include "sherd/backends/shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;
using plugin::FailErrno;

// "sherdshm" and the number of this layout.
constexpr uint64_t kMagic = 0x7368'6572'6473'686d;
constexpr uint32_t kLayout = 1;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr size_t kPage = 4096;

// Two of a rank's boxes and results stay in a core's second-level cache.
constexpr size_t kBoxBytes = 512 << 10;
constexpr size_t kRingBytes = 128 << 10;
// Above this many ranks boxes and rings are smaller.
constexpr int kManyRanks = 16;

constexpr size_t RoundUp(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

}  // namespace

struct ShmSegment::Header {
  uint64_t magic;
  uint32_t layout;
  int32_t ranks;
  uint64_t nonce;
  alignas(kCacheLine) std::atomic<uint32_t> disturbances;
};

size_t ShmSegment::Plan(int ranks) {
  const size_t p = static_cast<size_t>(ranks);
  ranks_ = ranks;
  box_bytes_ = ranks <= kManyRanks ? kBoxBytes : kBoxBytes / 2;
  ring_bytes_ = ranks <= kManyRanks ? kRingBytes : kRingBytes / 4;
  // What everybody polls comes first; what holds data starts at a page.
  const size_t sizes[7] = {
      p * sizeof(ShmRank),
      2 * p * sizeof(ShmArrival),
      RoundUp(2 * p * 2 * p * sizeof(uint64_t), kCacheLine),
      p * p * sizeof(ShmLane),
      2 * p * box_bytes_,
      p * box_bytes_,
      p * p * ring_bytes_};
  size_t offset = RoundUp(sizeof(Header), kCacheLine);
  for (int i = 0; i < 7; ++i) {
    if (i >= 3) offset = RoundUp(offset, kPage);
    offsets_[i] = offset;
    offset += sizes[i];
  }
  return RoundUp(offset, kPage);
}

sherd_code ShmSegment::Map(sherd_error_v0* error) {
  void* const memory =
      mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED) {
    return FailErrno(error, SHERD_RESOURCE, -1, "cannot map shared memory");
  }
  memory_ = static_cast<unsigned char*>(memory);
  ranks_begin_ = reinterpret_cast<ShmRank*>(memory_ + offsets_[0]);
  arrivals_ = reinterpret_cast<ShmArrival*>(memory_ + offsets_[1]);
  lengths_ = reinterpret_cast<uint64_t*>(memory_ + offsets_[2]);
  lanes_ = reinterpret_cast<ShmLane*>(memory_ + offsets_[3]);
  boxes_ = memory_ + offsets_[4];
  results_ = memory_ + offsets_[5];
  rings_ = memory_ + offsets_[6];
  return SHERD_OK;
}

sherd_code ShmSegment::Create(int ranks, uint64_t nonce,
                              sherd_error_v0* error) {
  bytes_ = Plan(ranks);
  fd_ = memfd_create("sherd_shm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd_ < 0) {
    return FailErrno(error, SHERD_RESOURCE, -1, "cannot make shared memory");
  }
  if (ftruncate(fd_, static_cast<off_t>(bytes_)) != 0 ||
      fcntl(fd_, F_ADD_SEALS, kSeals) != 0) {
    return FailErrno(error, SHERD_RESOURCE, -1, "cannot size shared memory");
  }
  const sherd_code code = Map(error);
  if (code != SHERD_OK) return code;
  auto* const header = reinterpret_cast<Header*>(memory_);
  header->magic = kMagic;
  header->layout = kLayout;
  header->ranks = ranks;
  header->nonce = nonce;
  return SHERD_OK;
}

sherd_code ShmSegment::Open(int64_t pid, int fd, int ranks, uint64_t nonce,
                            sherd_error_v0* error) {
  bytes_ = Plan(ranks);
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%lld/fd/%d",
                static_cast<long long>(pid), fd);
  fd_ = open(path, O_RDWR | O_CLOEXEC);
  if (fd_ < 0) {
    // Without it rank 0 has closed it, or ended.
    const int number = errno;
    char text[160];
    std::snprintf(text, sizeof(text),
                  "cannot open the shared memory of rank 0 at %s", path);
    errno = number;
    return FailErrno(
        error, number == ENOENT ? SHERD_PEER_LOST : SHERD_UNSUPPORTED, 0, text);
  }
  struct stat status;
  const int seals = fcntl(fd_, F_GET_SEALS);
  if (fstat(fd_, &status) != 0 || seals < 0 || (seals & kSeals) != kSeals ||
      static_cast<uint64_t>(status.st_size) != bytes_) {
    return Fail(error, SHERD_INTERNAL, 0,
                "its shared memory has another size than this rank expects: "
                "do all ranks run the same build?");
  }
  const sherd_code code = Map(error);
  if (code != SHERD_OK) return code;
  const auto* const header = reinterpret_cast<const Header*>(memory_);
  if (header->magic != kMagic || header->layout != kLayout ||
      header->ranks != ranks || header->nonce != nonce) {
    return Fail(error, SHERD_INTERNAL, 0,
                "its shared memory is not that of this group: do all ranks run "
                "the same build?");
  }
  return SHERD_OK;
}

void ShmSegment::CloseDescriptor() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void ShmSegment::Reset() {
  CloseDescriptor();
  if (memory_ != nullptr) munmap(memory_, bytes_);
  memory_ = nullptr;
}

bool ShmSegment::RanksReadEachOther() const {
  for (int r = 0; r < ranks_; ++r) {
    if (rank(r).reads_others.load(std::memory_order_relaxed) == 0) return false;
  }
  return true;
}

std::atomic<uint32_t>& ShmSegment::disturbances() const {
  return reinterpret_cast<Header*>(memory_)->disturbances;
}

}  // namespace sherd::internal
