#include "sherd/backends/shm/peer_slabs.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "sherd/backends/plugin.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace sherd::internal {
namespace {

using plugin::Fail;
using plugin::FailErrno;

// Smaller ranges are left to page faults, which map this much at once.
constexpr uint64_t kPart = 64 << 10;

// No correct peer has more arenas than this at a time.
constexpr size_t kMaxMappings = 4096;

struct Known {
  std::mutex mutex;
  std::map<std::pair<int64_t, uint64_t>, std::weak_ptr<PeerSlabs>> peers;

  // Never destroyed: groups may outlive main.
  static Known& Get() {
    static auto* const known = [] {
      auto* const made = new Known;
      // A child must not find it locked by a thread that it does not have.
      pthread_atfork([] { Get().mutex.lock(); }, [] { Get().mutex.unlock(); },
                     [] { Get().mutex.unlock(); });
      return made;
    }();
    return *known;
  }
};

sherd_code FailStale(sherd_error_v0* error, int rank) {
  return Fail(error, SHERD_INVALID_ARGUMENT, rank,
              "the handle names memory that is not there (any more): it was "
              "freed, or another rank made the handle");
}

sherd_code FailLost(sherd_error_v0* error, int rank) {
  return Fail(error, SHERD_PEER_LOST, rank,
              "its process ended and took its memory along");
}

}  // namespace

std::shared_ptr<PeerSlabs> PeerSlabs::Of(const ProcessIdentity& peer) {
  Known& known = Known::Get();
  const std::lock_guard<std::mutex> lock(known.mutex);
  std::weak_ptr<PeerSlabs>& entry = known.peers[{peer.pid, peer.start_time}];
  std::shared_ptr<PeerSlabs> slabs = entry.lock();
  if (slabs != nullptr) return slabs;
  // Remove the entries of peers that no longer exist.
  std::erase_if(known.peers, [&entry](const auto& other) {
    return &other.second != &entry && other.second.expired();
  });
  slabs = std::make_shared<PeerSlabs>(peer);
  entry = slabs;
  return slabs;
}

PeerSlabs::PeerSlabs(const ProcessIdentity& peer) : identity_(peer) {
  process_.Watch(peer);
}

bool PeerSlabs::CanOpen() const {
  // The system asks for the same permission here as for descriptors.
  char path[48];
  std::snprintf(path, sizeof(path), "/proc/%lld/exe",
                static_cast<long long>(identity_.pid));
  char ignored[8];
  return readlink(path, ignored, sizeof(ignored)) >= 0;
}

sherd_code PeerSlabs::Map(const SlabHandle& handle, int rank,
                          SharedSegment* shared, sherd_error_v0* error) const {
  UniqueFd file =
      SharedSegment::Open(SharedSegment::PathOf(identity_.pid, handle.fd));
  if (!file.is_open()) {
    const int number = errno;
    if (process_.HasEnded()) return FailLost(error, rank);
    errno = number;
    if (number == ENOENT) return FailStale(error, rank);
    return FailErrno(error,
                     number == EMFILE || number == ENFILE || number == ENOMEM
                         ? SHERD_RESOURCE
                         : SHERD_SYSTEM,
                     rank, "its memory cannot be opened");
  }
  switch (shared->Adopt(std::move(file), kSlabDataBegin + 1)) {
    case SharedSegment::Failure::kNone:
      break;
    case SharedSegment::Failure::kForeign:
      return FailStale(error, rank);
    default:
      return FailErrno(error, SHERD_RESOURCE, rank,
                       "no addresses for its memory");
  }
  shared->CloseDescriptor();
  (void)madvise(shared->memory(), shared->bytes(), MADV_HUGEPAGE);
  const SlabHeader& header =
      SlabView{shared->memory(), shared->bytes()}.header();
  if (header.magic == kSlabMagic && header.owner == handle.owner &&
      header.serial == handle.arena) {
    return SHERD_OK;
  }
  // Another process has its process id by now.
  return process_.HasEnded() ? FailLost(error, rank) : FailStale(error, rank);
}

void PeerSlabs::MapPages(Mapping& mapping, SlabRange range) {
  if (range.size < kPart) return;
  const uint64_t holes =
      mapping.view().header().holes.load(std::memory_order_acquire);
  if (mapping.populated.empty() || mapping.holes != holes) {
    mapping.populated.assign(mapping.view().size / kPart + 1, false);
    mapping.holes = holes;
  }
  // The parts that lie in the range as a whole.
  const uint64_t first = (range.begin + kPart - 1) / kPart;
  const uint64_t last = range.end() / kPart;
  bool all = true;
  for (uint64_t part = first; part < last; ++part) {
    all = all && mapping.populated[part];
    mapping.populated[part] = true;
  }
  if (all) return;
  const uint64_t begin = range.begin / kSlabPage * kSlabPage;
  // Old kernels have no such call; then faults do it.
  (void)madvise(mapping.view().memory + begin, range.end() - begin,
                MADV_POPULATE_READ);
}

sherd_code PeerSlabs::Import(const SlabHandle& handle, int rank,
                             sherd_bytes_v0* range, sherd_error_v0* error) {
  if (handle.pid != static_cast<uint32_t>(identity_.pid)) {
    return FailStale(error, rank);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = mappings_.find({handle.owner, handle.arena});
  if (found == mappings_.end()) {
    if (mappings_.size() >= kMaxMappings) {
      return Fail(error, SHERD_RESOURCE, rank, "it has too many arenas");
    }
    Mapping mapping;
    const sherd_code code = Map(handle, rank, &mapping.shared, error);
    if (code != SHERD_OK) return code;
    found =
        mappings_
            .emplace(std::pair(handle.owner, handle.arena), std::move(mapping))
            .first;
  }
  Mapping& mapping = found->second;
  if (!Holds(mapping.view(), handle)) return FailStale(error, rank);
  MapPages(mapping, handle.range);
  *range = {mapping.view().memory + handle.range.begin, handle.range.size};
  return SHERD_OK;
}

}  // namespace sherd::internal
