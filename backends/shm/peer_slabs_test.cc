#include "sherd/backends/shm/peer_slabs.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/shm/slab_allocator.h"

namespace sherd::internal {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

unsigned char Pattern(uint64_t index, int salt) {
  return static_cast<unsigned char>(index * 7 + index / 4096 + salt);
}

// Requests to the peer; blocks are identified by their order.
struct Request {
  enum Kind { kAllocate, kFree, kRead, kOpenPipe, kMakeFile, kCopy } kind;
  uint64_t number = 0;
  int salt = 0;
};

struct Reply {
  bool ok = false;
  sherd_memory_handle_v0 handle = {};
  int fd = -1;
  unsigned char byte = 0;
};

// Another process with memory of its own.
class Peer {
 public:
  Peer() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      Serve(ends[1]);
    }
    close(ends[1]);
    socket_ = ends[0];
    identity_ = {pid_, 0};
  }
  ~Peer() {
    Kill();
    close(socket_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Returns once it has ended.
  void Kill() {
    if (pid_ < 0) return;
    kill(static_cast<pid_t>(pid_), SIGKILL);
    waitpid(static_cast<pid_t>(pid_), nullptr, 0);
    pid_ = -1;
  }

  Reply Ask(const Request& request) {
    Reply reply;
    EXPECT_EQ(write(socket_, &request, sizeof(request)),
              static_cast<ssize_t>(sizeof(request)));
    EXPECT_EQ(recv(socket_, &reply, sizeof(reply), MSG_WAITALL),
              static_cast<ssize_t>(sizeof(reply)));
    EXPECT_TRUE(reply.ok);
    return reply;
  }

  // Byte i of the block is Pattern(i, salt).
  SlabHandle Allocate(uint64_t bytes, int salt) {
    SlabHandle handle;
    EXPECT_TRUE(SlabHandle::Unpack(
        Ask({Request::kAllocate, bytes, salt}).handle, &handle));
    return handle;
  }
  void Free(uint64_t block) { Ask({Request::kFree, block}); }

  const ProcessIdentity& identity() const { return identity_; }

 private:
  [[noreturn]] static void Serve(int socket) {
    SlabAllocator allocator({.arena_bytes = 8 * kMiB, .pool_bytes = 0});
    std::vector<unsigned char*> blocks;
    Request request;
    while (recv(socket, &request, sizeof(request), MSG_WAITALL) ==
           static_cast<ssize_t>(sizeof(request))) {
      const Reply reply = Execute(allocator, blocks, request);
      if (write(socket, &reply, sizeof(reply)) < 0) break;
    }
    _exit(0);
  }

  static Reply Execute(SlabAllocator& allocator,
                       std::vector<unsigned char*>& blocks,
                       const Request& request) {
    Reply reply;
    sherd_error_v0 error = {};
    switch (request.kind) {
      case Request::kAllocate: {
        void* data = nullptr;
        reply.ok =
            allocator.Allocate(request.number, 64, &data, &error) == SHERD_OK;
        auto* const bytes = static_cast<unsigned char*>(data);
        for (uint64_t i = 0; i < request.number; ++i) {
          bytes[i] = Pattern(i, request.salt);
        }
        blocks.push_back(bytes);
        reply.ok =
            reply.ok && allocator.Export(data, request.number, &reply.handle,
                                         &error) == SHERD_OK;
        break;
      }
      case Request::kFree:
        reply.ok = allocator.Deallocate(blocks[request.number]);
        break;
      case Request::kRead:
        reply.ok = true;
        reply.byte = blocks[request.number][request.salt];
        break;
      case Request::kOpenPipe: {
        int ends[2];
        reply.ok = pipe(ends) == 0;
        reply.fd = ends[0];
        break;
      }
      // `number` bytes; sealed if `salt` is 1.
      case Request::kMakeFile:
        reply.fd = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        reply.ok = ftruncate(reply.fd, static_cast<off_t>(request.number)) == 0;
        if (request.salt == 1) {
          reply.ok = fcntl(reply.fd, F_ADD_SEALS,
                           F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
        }
        break;
      case Request::kCopy:
        return CopyArena(blocks[0], request.number);
    }
    return reply;
  }

  // A file with the contents of the first block's arena, which begins `number`
  // bytes before the block, but whose size may change.
  static Reply CopyArena(const unsigned char* block, uint64_t number) {
    Reply reply;
    reply.fd = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const uint64_t bytes = kSlabDataBegin + 4096;
    reply.ok =
        write(reply.fd, block - number, bytes) == static_cast<ssize_t>(bytes) &&
        ftruncate(reply.fd, 8 * kMiB) == 0;
    return reply;
  }

  int64_t pid_ = -1;
  int socket_ = -1;
  ProcessIdentity identity_;
};

int CountMappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("sherd_slab") != std::string::npos ? 1 : 0;
  }
  return count;
}

class PeerSlabsTest : public ::testing::Test {
 protected:
  sherd_code Import(PeerSlabs& slabs, const SlabHandle& handle) {
    error_ = {};
    return slabs.Import(handle, /*rank=*/3, &range_, &error_);
  }

  void ExpectPattern(int salt) const {
    const auto* const bytes = static_cast<const unsigned char*>(range_.data);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < range_.size; ++i) {
      wrong += bytes[i] == Pattern(i, salt) ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0u);
  }

  sherd_bytes_v0 range_ = {};
  sherd_error_v0 error_ = {};
};

TEST_F(PeerSlabsTest, EachProcessReadsWhatTheOtherWrote) {
  Peer peer;
  PeerSlabs slabs(peer.identity());
  EXPECT_TRUE(slabs.CanOpen());
  int block = 0;
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{5000}, 3 * kMiB + 17}) {
    const SlabHandle handle = peer.Allocate(bytes, block);
    ASSERT_EQ(Import(slabs, handle), SHERD_OK) << error_.text;
    EXPECT_EQ(range_.size, bytes);
    ExpectPattern(block);
    static_cast<unsigned char*>(range_.data)[0] = 99;
    EXPECT_EQ(peer.Ask({Request::kRead, static_cast<uint64_t>(block), 0}).byte,
              99);
    ++block;
  }
}

TEST_F(PeerSlabsTest, AnArenaIsMappedOnceAndTakesNoDescriptor) {
  Peer peer;
  const SlabHandle first = peer.Allocate(4096, 1);
  const SlabHandle second = peer.Allocate(2 * kMiB, 2);
  {
    const std::shared_ptr<PeerSlabs> slabs = PeerSlabs::Of(peer.identity());
    EXPECT_EQ(PeerSlabs::Of(peer.identity()), slabs);
    const int fd = open("/dev/null", O_RDONLY);
    for (int turn = 0; turn < 50; ++turn) {
      ASSERT_EQ(Import(*slabs, first), SHERD_OK);
      ASSERT_EQ(Import(*slabs, second), SHERD_OK);
    }
    EXPECT_EQ(CountMappings(), 1);
    const int next = open("/dev/null", O_RDONLY);
    EXPECT_EQ(next, fd + 1);
    close(fd);
    close(next);
  }
  EXPECT_EQ(CountMappings(), 0);
}

TEST_F(PeerSlabsTest, AHandleOfAFreedBlockIsStale) {
  Peer peer;
  PeerSlabs slabs(peer.identity());
  const SlabHandle handle = peer.Allocate(kMiB, 1);
  ASSERT_EQ(Import(slabs, handle), SHERD_OK);
  peer.Free(0);
  EXPECT_EQ(Import(slabs, handle), SHERD_INVALID_ARGUMENT);
  EXPECT_EQ(error_.peer, 3);
  EXPECT_THAT(error_.text, HasSubstr("it was freed"));
  // Another block at the same place.
  const SlabHandle next = peer.Allocate(kMiB, 2);
  EXPECT_EQ(next.range, handle.range);
  EXPECT_EQ(Import(slabs, handle), SHERD_INVALID_ARGUMENT);
  ASSERT_EQ(Import(slabs, next), SHERD_OK);
  ExpectPattern(2);
}

// The reader sees the new pages, not those that were returned.
TEST_F(PeerSlabsTest, ReallocatedPagesAreMappedAnew) {
  Peer peer;
  PeerSlabs slabs(peer.identity());
  const SlabHandle handle = peer.Allocate(4 * kMiB, 1);
  ASSERT_EQ(Import(slabs, handle), SHERD_OK);
  ExpectPattern(1);
  for (int turn = 1; turn < 4; ++turn) {
    peer.Free(static_cast<uint64_t>(turn) - 1);
    const SlabHandle next = peer.Allocate(4 * kMiB, turn + 1);
    ASSERT_EQ(Import(slabs, next), SHERD_OK);
    ExpectPattern(turn + 1);
  }
}

TEST_F(PeerSlabsTest, ForgedHandlesAreErrors) {
  Peer peer;
  PeerSlabs slabs(peer.identity());
  const SlabHandle good = peer.Allocate(100'000, 5);
  const auto expect_refused = [&](const char* what, auto change) {
    SlabHandle bad = good;
    change(bad);
    EXPECT_EQ(Import(slabs, bad), SHERD_INVALID_ARGUMENT) << what;
  };
  // Before and after the arena is mapped.
  for (int turn = 0; turn < 2; ++turn) {
    expect_refused("owner", [](SlabHandle& h) { ++h.owner; });
    expect_refused("arena", [](SlabHandle& h) { ++h.arena; });
    expect_refused("block", [](SlabHandle& h) { ++h.block; });
    expect_refused("slot", [](SlabHandle& h) { ++h.slot; });
    expect_refused("last slot", [](SlabHandle& h) { h.slot = kSlabSlots - 1; });
    expect_refused("pid", [](SlabHandle& h) { ++h.pid; });
    expect_refused("own pid", [](SlabHandle& h) {
      h.pid = static_cast<uint32_t>(getpid());
    });
    expect_refused("begin", [](SlabHandle& h) { h.range.begin -= 1; });
    expect_refused("header", [](SlabHandle& h) { h.range.begin = 0; });
    expect_refused("size", [](SlabHandle& h) { h.range.size = 64 * kMiB; });
    expect_refused("huge", [](SlabHandle& h) { h.range.size = UINT64_MAX; });
    expect_refused("overflow", [](SlabHandle& h) {
      h.range = {UINT64_MAX - 4096, 8192};
    });
    ASSERT_EQ(Import(slabs, good), SHERD_OK) << error_.text;
    ExpectPattern(5);
  }
}

// Nothing is opened that would block or have consequences.
TEST_F(PeerSlabsTest, DescriptorsOfOtherThingsAreErrors) {
  Peer peer;
  const SlabHandle good = peer.Allocate(4096, 5);
  SlabHandle bad = good;
  for (const Request& request :
       {Request{Request::kOpenPipe}, Request{Request::kMakeFile, 0},
        Request{Request::kMakeFile, 8 * kMiB},
        Request{Request::kMakeFile, 100, 1},
        Request{Request::kMakeFile, kSlabDataBegin, 1},
        Request{Request::kMakeFile, 8 * kMiB, 1},
        Request{Request::kCopy, good.range.begin}}) {
    PeerSlabs slabs(peer.identity());
    bad.fd = peer.Ask(request).fd;
    EXPECT_EQ(Import(slabs, bad), SHERD_INVALID_ARGUMENT)
        << request.kind << " of " << request.number;
    EXPECT_EQ(Import(slabs, good), SHERD_OK);
  }
  PeerSlabs slabs(peer.identity());
  for (const int fd : {0, 1, 2, 999, INT32_MAX}) {
    bad.fd = fd;
    EXPECT_EQ(Import(slabs, bad), SHERD_INVALID_ARGUMENT) << fd;
  }
}

TEST_F(PeerSlabsTest, RandomBytesAreNotAHandle) {
  SlabHandle handle;
  EXPECT_FALSE(SlabHandle::Unpack({}, &handle));
  sherd_memory_handle_v0 noise;
  std::memset(&noise, 0x5a, sizeof(noise));
  EXPECT_FALSE(SlabHandle::Unpack(noise, &handle));
  const SlabHandle good = {.fd = 7,
                           .pid = 8,
                           .slot = 9,
                           .arena = 10,
                           .owner = 11,
                           .block = 12,
                           .range = {13, 14}};
  ASSERT_TRUE(SlabHandle::Unpack(good.Pack(), &handle));
  EXPECT_EQ(handle.fd, 7);
  EXPECT_EQ(handle.pid, 8u);
  EXPECT_EQ(handle.slot, 9u);
  EXPECT_EQ(handle.arena, 10u);
  EXPECT_EQ(handle.owner, 11u);
  EXPECT_EQ(handle.block, 12u);
  EXPECT_EQ(handle.range, (SlabRange{13, 14}));
}

TEST_F(PeerSlabsTest, OnlyMemoryThatWasMappedOutlivesAPeer) {
  Peer peer;
  const SlabHandle mapped = peer.Allocate(kMiB, 1);
  // In an arena of its own.
  const SlabHandle other = peer.Allocate(9 * kMiB, 2);
  ASSERT_NE(mapped.arena, other.arena);
  {
    PeerSlabs slabs(peer.identity());
    ASSERT_EQ(Import(slabs, mapped), SHERD_OK);
    peer.Kill();
    EXPECT_EQ(Import(slabs, other), SHERD_PEER_LOST);
    EXPECT_EQ(error_.peer, 3);
    EXPECT_THAT(error_.text, HasSubstr("its process ended"));
    ASSERT_EQ(Import(slabs, mapped), SHERD_OK);
    ExpectPattern(1);
  }
  EXPECT_EQ(CountMappings(), 0);
}

// The number belongs to another process by now.
TEST_F(PeerSlabsTest, AReusedPidIsADeadPeer) {
  Peer peer;
  const SlabHandle handle = peer.Allocate(kMiB, 1);
  PeerSlabs slabs({peer.identity().pid, /*start_time=*/1});
  SlabHandle old = handle;
  ++old.owner;
  EXPECT_EQ(Import(slabs, old), SHERD_PEER_LOST) << error_.text;
}

}  // namespace
}  // namespace sherd::internal
