#ifndef SHERD_BACKENDS_SHM_PEER_SLABS_H_
#define SHERD_BACKENDS_SHM_PEER_SLABS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/shm/slab_layout.h"
#include "sherd/core/process/process_handle.h"
#include "sherd/core/process/shared_segment.h"

namespace sherd::internal {

// Arenas of another process, as mapped into this one: each completely, once,
// without an open descriptor. They stay mapped, also after that process ended
// or released them, until the last user releases this object.
//
// Threads. Safe.
class PeerSlabs {
 public:
  // The object that all communicators of this process share for `peer`.
  static std::shared_ptr<PeerSlabs> Of(const ProcessIdentity& peer);

  explicit PeerSlabs(const ProcessIdentity& peer);
  PeerSlabs(const PeerSlabs&) = delete;
  PeerSlabs& operator=(const PeerSlabs&) = delete;

  const ProcessIdentity& identity() const { return identity_; }

  // Whether the system lets this process open the peer's descriptors.
  bool CanOpen() const;

  // The address in this process of a handle's memory. Neither the handle nor
  // the process that it names is trusted. `rank` is for errors.
  //   SHERD_INVALID_ARGUMENT  The peer did not make it, or freed the block.
  //   SHERD_PEER_LOST         The peer ended, and the arena was not mapped.
  //   SHERD_RESOURCE          No descriptor or addresses.
  sherd_code Import(const SlabHandle& handle, int rank, sherd_bytes_v0* range,
                    sherd_error_v0* error);

 private:
  struct Mapping {
    SlabView view() const { return {shared.memory(), shared.bytes()}; }

    SharedSegment shared;
    // The parts whose pages were mapped, one bit per kPart bytes, and the
    // number of holes that the owner had made by then.
    std::vector<bool> populated;
    uint64_t holes = 0;
  };

  sherd_code Map(const SlabHandle& handle, int rank, SharedSegment* shared,
                 sherd_error_v0* error) const;
  static void MapPages(Mapping& mapping, SlabRange range);

  const ProcessIdentity identity_;
  ProcessHandle process_;
  std::mutex mutex_;
  // By owner and serial.
  std::map<std::pair<uint64_t, uint32_t>, Mapping> mappings_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_SHM_PEER_SLABS_H_
