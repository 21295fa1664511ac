// The cost of shared memory: kept and fresh blocks, importing, and copies from
// a peer's block against copies between blocks of the heap.

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "sherd/backends/shm/peer_slabs.h"
#include "sherd/backends/shm/slab_allocator.h"
#include "sherd/core/tensor/storage.h"

namespace sherd::internal {
namespace {

constexpr uint64_t kMiB = 1 << 20;

void* Allocate(SlabAllocator& allocator, uint64_t bytes) {
  void* data = nullptr;
  sherd_error_v0 error = {};
  return allocator.Allocate(bytes, 64, &data, &error) == SHERD_OK ? data
                                                                  : nullptr;
}

void BM_WaitingBlock(benchmark::State& state) {
  SlabAllocator allocator;
  const auto bytes = static_cast<uint64_t>(state.range(0));
  // Others around it, as in life.
  std::vector<void*> others;
  for (int i = 0; i < 1000; ++i) others.push_back(Allocate(allocator, bytes));
  for (size_t i = 0; i < others.size(); i += 2) {
    allocator.Deallocate(others[i]);
  }
  for (auto _ : state) {
    void* const data = Allocate(allocator, bytes);
    benchmark::DoNotOptimize(data);
    allocator.Deallocate(data);
  }
}
BENCHMARK(BM_WaitingBlock)->Arg(64)->Arg(4096)->Arg(64 << 10);

void BM_FreshBlock(benchmark::State& state) {
  SlabAllocator allocator({.pool_bytes = 0});
  const auto bytes = static_cast<uint64_t>(state.range(0));
  for (auto _ : state) {
    void* const data = Allocate(allocator, bytes);
    if (data == nullptr) state.SkipWithError("out of memory");
    state.PauseTiming();
    allocator.Deallocate(data);
    state.ResumeTiming();
  }
  state.SetBytesProcessed(static_cast<int64_t>(bytes) * state.iterations());
}
BENCHMARK(BM_FreshBlock)->Arg(4 * kMiB)->Arg(256 * kMiB);

// A process with one block, until it is destroyed.
class Owner {
 public:
  explicit Owner(uint64_t bytes) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      SlabAllocator allocator;
      void* const data = Allocate(allocator, bytes);
      std::memset(data, 1, bytes);
      sherd_memory_handle_v0 handle = {};
      sherd_error_v0 error = {};
      allocator.Export(data, bytes, &handle, &error);
      if (write(ends[1], &handle, sizeof(handle)) > 0) pause();
      _exit(0);
    }
    sherd_memory_handle_v0 handle = {};
    recv(ends[0], &handle, sizeof(handle), MSG_WAITALL);
    SlabHandle::Unpack(handle, &handle_);
    close(ends[0]);
    close(ends[1]);
  }
  ~Owner() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  std::unique_ptr<PeerSlabs> Open() const {
    return std::make_unique<PeerSlabs>(ProcessIdentity{pid_, 0});
  }

  unsigned char* Import(PeerSlabs& slabs) const {
    sherd_bytes_v0 range = {};
    sherd_error_v0 error = {};
    slabs.Import(handle_, 0, &range, &error);
    return static_cast<unsigned char*>(range.data);
  }

 private:
  pid_t pid_ = -1;
  SlabHandle handle_;
};

void BM_FirstImport(benchmark::State& state) {
  const auto bytes = static_cast<uint64_t>(state.range(0));
  const Owner owner(bytes);
  for (auto _ : state) {
    auto slabs = owner.Open();
    if (owner.Import(*slabs) == nullptr) state.SkipWithError("no import");
    state.PauseTiming();
    slabs = nullptr;
    state.ResumeTiming();
  }
  state.SetBytesProcessed(static_cast<int64_t>(bytes) * state.iterations());
}
BENCHMARK(BM_FirstImport)->Arg(4096)->Arg(16 * kMiB)->Arg(256 * kMiB);

void BM_LaterImport(benchmark::State& state) {
  const Owner owner(static_cast<uint64_t>(state.range(0)));
  const auto slabs = owner.Open();
  for (auto _ : state) {
    unsigned char* const data = owner.Import(*slabs);
    benchmark::DoNotOptimize(data);
  }
}
BENCHMARK(BM_LaterImport)->Arg(4096)->Arg(256 * kMiB);

constexpr uint64_t kCopied = 128 * kMiB;

// Half of each row of `pitch` bytes, one after another.
void CopyHalfRows(unsigned char* to, const unsigned char* from,
                  uint64_t pitch) {
  for (uint64_t row = 0; row < kCopied / pitch; ++row) {
    std::memcpy(to + row * (pitch / 2), from + row * pitch, pitch / 2);
  }
}

void RunCopies(benchmark::State& state, unsigned char* to,
               const unsigned char* from) {
  const auto pitch = static_cast<uint64_t>(state.range(0));
  CopyHalfRows(to, from, pitch);
  for (auto _ : state) CopyHalfRows(to, from, pitch);
  state.SetBytesProcessed(static_cast<int64_t>(kCopied / 2) *
                          state.iterations());
}

std::shared_ptr<Storage> Heap(uint64_t bytes) {
  auto storage = Storage::Allocate(bytes);
  if (!storage.ok()) return nullptr;
  std::memset((*storage)->data(), 1, bytes);
  return *std::move(storage);
}

void BM_CopyWithinTheHeap(benchmark::State& state) {
  const auto from = Heap(kCopied);
  const auto to = Heap(kCopied / 2);
  RunCopies(state, static_cast<unsigned char*>(to->data()),
            static_cast<unsigned char*>(from->data()));
}
BENCHMARK(BM_CopyWithinTheHeap)->Arg(256)->Arg(4096)->Arg(64 << 10)->Arg(kMiB);

void BM_CopyFromAPeerToTheHeap(benchmark::State& state) {
  const Owner owner(kCopied);
  const auto slabs = owner.Open();
  const auto to = Heap(kCopied / 2);
  RunCopies(state, static_cast<unsigned char*>(to->data()),
            owner.Import(*slabs));
}
BENCHMARK(BM_CopyFromAPeerToTheHeap)
    ->Arg(256)
    ->Arg(4096)
    ->Arg(64 << 10)
    ->Arg(kMiB);

void BM_CopyFromAPeerToASlab(benchmark::State& state) {
  const Owner owner(kCopied);
  const auto slabs = owner.Open();
  SlabAllocator allocator;
  RunCopies(state,
            static_cast<unsigned char*>(Allocate(allocator, kCopied / 2)),
            owner.Import(*slabs));
}
BENCHMARK(BM_CopyFromAPeerToASlab)
    ->Arg(256)
    ->Arg(4096)
    ->Arg(64 << 10)
    ->Arg(kMiB);

}  // namespace
}  // namespace sherd::internal
