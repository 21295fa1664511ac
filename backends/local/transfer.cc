#include "sherd/backends/local/transfer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::ElementSize;

using Calls = std::vector<const sherd_op_v0*>;

// A multiple of every element's size, so that shares begin at elements.
constexpr uint64_t kAlignment = 64;
// Reduced at a time: what was just computed is copied from the cache.
constexpr uint64_t kChunk = uint64_t{64} << 10;
// Bytes of all ranks.
constexpr uint64_t kTiny = 16384;

char* At(const void* base, uint64_t offset) {
  return const_cast<char*>(static_cast<const char*>(base)) + offset;
}

void Copy(void* to, const void* from, uint64_t size) {
  if (size > 0) std::memcpy(to, from, size);
}

// out[0, bytes) = reduction of in(r)[0, bytes) of all ranks r.
template <typename In>
void Reduce(const Calls& calls, const sherd_host_v0& host, void* out,
            uint64_t bytes, In in) {
  const int size = static_cast<int>(calls.size());
  std::vector<const void*> inputs(size);
  for (int rank = 0; rank < size; ++rank) inputs[rank] = in(rank);
  host.reduce(calls[0]->dtype, calls[0]->reduction, out, inputs.data(), size,
              bytes / ElementSize(calls[0]->dtype), size);
}

// Each rank reduces one slice of the vector and writes it to all ranks that
// receive it. No other rank accesses that slice of any buffer, so in may be
// out.
void ReduceSlice(const Calls& calls, int rank, const sherd_host_v0& host) {
  const uint64_t size = calls.size();
  const uint64_t bytes = calls[0]->bytes;
  const uint64_t slice =
      ((bytes + size - 1) / size + kAlignment - 1) / kAlignment * kAlignment;
  const uint64_t end = std::min(bytes, (rank + 1) * slice);
  const bool to_all = calls[0]->op == SHERD_ALL_REDUCE;
  void* const out = calls[to_all ? rank : calls[0]->root]->out;
  for (uint64_t begin = rank * slice; begin < end; begin += kChunk) {
    const uint64_t length = std::min(kChunk, end - begin);
    Reduce(calls, host, At(out, begin), length,
           [&](int r) { return At(calls[r]->in, begin); });
    if (!to_all) continue;
    for (const sherd_op_v0* call : calls) {
      if (call->out != out) Copy(At(call->out, begin), At(out, begin), length);
    }
  }
}

void CopyFrom(const Calls& calls, int rank, int from) {
  const sherd_op_v0& own = *calls[rank];
  const sherd_op_v0& theirs = *calls[from];
  switch (own.op) {
    case SHERD_BROADCAST:
      if (from == own.root) Copy(own.out, theirs.out, own.bytes);
      break;
    case SHERD_ALL_GATHER:
      Copy(At(own.out, from * own.bytes), theirs.in, own.bytes);
      break;
    case SHERD_ALL_TO_ALL_V:
      Copy(own.recvs[from].data, theirs.sends[rank].data, own.recvs[from].size);
      break;
    case SHERD_ALL_GATHER_V:
      Copy(own.recvs[from].data, theirs.in, own.recvs[from].size);
      break;
    case SHERD_GATHER:
      if (rank == own.root) {
        Copy(own.recvs[from].data, theirs.in, own.recvs[from].size);
      }
      break;
    case SHERD_SCATTER:
      if (from == own.root) {
        Copy(own.out, theirs.sends[rank].data, own.bytes);
      }
      break;
    default:
      break;
  }
}

}  // namespace

void DoShare(const Calls& calls, int rank, const sherd_host_v0& host) {
  const sherd_op_v0& own = *calls[rank];
  if (own.op == SHERD_ALL_REDUCE || own.op == SHERD_REDUCE) {
    return ReduceSlice(calls, rank, host);
  }
  if (own.op == SHERD_REDUCE_SCATTER) {
    return Reduce(calls, host, own.out, own.bytes,
                  [&](int r) { return calls[r]->sends[rank].data; });
  }
  const int size = static_cast<int>(calls.size());
  for (int k = 1; k < size; ++k) {
    // Each rank starts at its neighbour, so that not all read the same one.
    CopyFrom(calls, rank, (rank + k) % size);
  }
}

bool IsTiny(const sherd_op_v0& op, int size) {
  switch (op.op) {
    case SHERD_BARRIER:
      return true;
    case SHERD_BROADCAST:
    case SHERD_ALL_GATHER:
    case SHERD_ALL_REDUCE:
    case SHERD_REDUCE:
      return op.bytes <= kTiny / static_cast<uint64_t>(size);
    case SHERD_REDUCE_SCATTER:
      return std::all_of(op.sends, op.sends + size, [size](const auto& block) {
        return block.size <= kTiny / static_cast<uint64_t>(size);
      });
    default:
      return false;
  }
}

}  // namespace sherd::internal
