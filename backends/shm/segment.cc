#include "sherd/backends/shm/segment.h"

#include <errno.h>

#include <cstring>
#include <string>
#include <utility>

#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;
using plugin::FailErrno;

// "sherdshm" and the number of this layout.
constexpr uint64_t kMagic = 0x7368'6572'6473'686d;
constexpr uint32_t kLayout = 2;

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
  // First the parts that all ranks poll; each part with data starts at a page.
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

void ShmSegment::FindParts() {
  unsigned char* const memory = shared_.memory();
  ranks_begin_ = reinterpret_cast<ShmRank*>(memory + offsets_[0]);
  arrivals_ = reinterpret_cast<ShmArrival*>(memory + offsets_[1]);
  lengths_ = reinterpret_cast<uint64_t*>(memory + offsets_[2]);
  lanes_ = reinterpret_cast<ShmLane*>(memory + offsets_[3]);
  boxes_ = memory + offsets_[4];
  results_ = memory + offsets_[5];
  rings_ = memory + offsets_[6];
}

sherd_code ShmSegment::Create(int ranks, uint64_t nonce,
                              sherd_error_v0* error) {
  switch (shared_.Create("sherd_shm", Plan(ranks))) {
    case SharedSegment::Failure::kNone:
      break;
    case SharedSegment::Failure::kMake:
      return FailErrno(error, SHERD_RESOURCE, -1, "cannot make shared memory");
    case SharedSegment::Failure::kSize:
      return FailErrno(error, SHERD_RESOURCE, -1, "cannot size shared memory");
    default:
      return FailErrno(error, SHERD_RESOURCE, -1, "cannot map shared memory");
  }
  FindParts();
  auto* const header = reinterpret_cast<Header*>(shared_.memory());
  header->magic = kMagic;
  header->layout = kLayout;
  header->ranks = ranks;
  header->nonce = nonce;
  return SHERD_OK;
}

sherd_code ShmSegment::Open(int64_t pid, int fd, int ranks, uint64_t nonce,
                            sherd_error_v0* error) {
  const size_t bytes = Plan(ranks);
  const std::string path = SharedSegment::PathOf(pid, fd);
  UniqueFd file = SharedSegment::Open(path);
  if (!file.is_open()) {
    // Without it rank 0 has closed it, or ended.
    const sherd_code code =
        errno == ENOENT ? SHERD_PEER_LOST : SHERD_UNSUPPORTED;
    const std::string text =
        "cannot open the shared memory of rank 0 at " + path;
    return FailErrno(error, code, 0, text.c_str());
  }
  switch (shared_.Adopt(std::move(file), bytes, bytes)) {
    case SharedSegment::Failure::kNone:
      break;
    case SharedSegment::Failure::kForeign:
      return Fail(error, SHERD_INTERNAL, 0,
                  "its shared memory has another size than this rank expects: "
                  "do all ranks run the same build?");
    default:
      return FailErrno(error, SHERD_RESOURCE, -1, "cannot map shared memory");
  }
  FindParts();
  const auto* const header = reinterpret_cast<const Header*>(shared_.memory());
  if (header->magic != kMagic || header->layout != kLayout ||
      header->ranks != ranks || header->nonce != nonce) {
    return Fail(error, SHERD_INTERNAL, 0,
                "its shared memory is not that of this group: do all ranks run "
                "the same build?");
  }
  return SHERD_OK;
}

bool ShmSegment::RanksReadEachOther() const {
  for (int r = 0; r < ranks_; ++r) {
    if (rank(r).reads_others.load(std::memory_order_relaxed) == 0) return false;
  }
  return true;
}

std::atomic<uint32_t>& ShmSegment::disturbances() const {
  return reinterpret_cast<Header*>(shared_.memory())->disturbances;
}

}  // namespace sherd::internal
