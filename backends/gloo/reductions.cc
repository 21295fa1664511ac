#include "sherd/backends/gloo/reductions.h"

#include <algorithm>
#include <vector>

#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::ElementSize;

// Slices and chunks begin at multiples of this, hence of every element's size.
constexpr uint64_t kAlignment = 64;
// Chunks of a slice that are in flight at once.
constexpr uint64_t kDepth = 3;
constexpr uint64_t kMaxChunk = uint64_t{1} << 20;
constexpr uint64_t kMinChunk = uint64_t{64} << 10;
constexpr uint64_t kMaxScratch = uint64_t{8} << 20;
// Up to this size the cost is that of the number of messages.
constexpr uint64_t kMaxWhole = uint64_t{32} << 10;

constexpr int kParts = 0, kResults = 1;

uint64_t RoundUp(uint64_t value) {
  return (value + kAlignment - 1) / kAlignment * kAlignment;
}

char* At(const void* base, uint64_t offset) {
  return const_cast<char*>(static_cast<const char*>(base)) + offset;
}

// Slice s is that of rank s; all ranks describe the same slices.
struct SlicePlan {
  // This rank's part of each slice.
  std::vector<sherd_bytes_v0> parts;
  // Destinations of the reduced slices; null if this rank does not receive
  // them. Only its own may be missing although it has a part in it: then it
  // forwards chunks without keeping them.
  std::vector<void*> results;
  // The other ranks that receive this rank's reduced slice.
  std::vector<int> receivers;
};

class SliceReducer {
 public:
  SliceReducer(GlooMesh& mesh, const sherd_host_v0& host, const sherd_op_v0& op,
               const SlicePlan& plan, GlooScratch& scratch,
               GlooOperation& operation)
      : mesh_(mesh),
        host_(host),
        op_(op),
        plan_(plan),
        operation_(operation),
        element_size_(ElementSize(op.dtype)) {
    const uint64_t peers = mesh.size() - 1;
    uint64_t longest = 0;
    for (const sherd_bytes_v0& part : plan.parts) {
      longest = std::max(longest, part.size);
    }
    chunk_ =
        std::clamp(kMaxScratch / (peers + 1) / kDepth, kMinChunk, kMaxChunk);
    chunk_ = std::min(chunk_ / kAlignment * kAlignment, RoundUp(longest));
    steps_ = Chunks(longest);
    Open(scratch);
  }

  void Run() {
    for (uint64_t step = 0; step < std::min(kDepth, steps_); ++step) {
      Begin(step);
    }
    for (uint64_t step = 0; step < steps_ && operation_.ok(); ++step) {
      if (step < Chunks(own_size())) {
        ReduceChunk(step);
      } else {
        // The only wait left is for the others to take what was sent.
        for (GlooChannel* part : parts_) {
          if (part != nullptr && part->sending > 0) operation_.AwaitSend(*part);
        }
      }
      if (step + kDepth < steps_) Begin(step + kDepth);
    }
    operation_.AwaitAll();
  }

 private:
  uint64_t own_size() const { return plan_.parts[mesh_.rank()].size; }
  uint64_t Chunks(uint64_t size) const { return (size + chunk_ - 1) / chunk_; }
  uint64_t ChunkSize(uint64_t slice_size, uint64_t step) const {
    return std::min(chunk_, slice_size - step * chunk_);
  }
  uint64_t Place(uint64_t step) const { return step % kDepth * chunk_; }

  void Open(GlooScratch& scratch) {
    const int size = mesh_.size();
    parts_.resize(size);
    arrivals_.resize(size);
    results_.resize(size);
    incoming_.resize(size);
    const uint64_t room = kDepth * chunk_;
    // The first room is that of results which are only passed on.
    char* const memory = own_size() > 0 ? scratch.Get(room * size) : nullptr;
    own_result_ = plan_.results[mesh_.rank()];
    keeps_ = own_result_ != nullptr;
    if (!keeps_) own_result_ = memory;
    for (int k = 1; k < size; ++k) {
      const int peer = mesh_.Peer(k);
      const uint64_t slice_size = plan_.parts[peer].size;
      if (own_size() > 0) {
        incoming_[peer] = memory + k * room;
        arrivals_[peer] = &operation_.Open(peer, incoming_[peer], room);
      }
      if (slice_size == 0) continue;
      parts_[peer] = &operation_.Open(peer, plan_.parts[peer].data, slice_size);
      if (plan_.results[peer] != nullptr) {
        results_[peer] =
            &operation_.Open(peer, plan_.results[peer], slice_size);
      }
    }
    if (own_size() == 0) return;
    for (int receiver : plan_.receivers) {
      outgoing_.push_back(
          &operation_.Open(receiver, own_result_, keeps_ ? own_size() : room));
    }
  }

  // Starts all sends and receives of chunk number `step`.
  void Begin(uint64_t step) {
    const uint64_t parts_slot = GlooMesh::CollectiveSlot(op_.sequence, kParts);
    const uint64_t results_slot =
        GlooMesh::CollectiveSlot(op_.sequence, kResults);
    for (int k = 1; k < mesh_.size(); ++k) {
      const int peer = mesh_.Peer(k);
      if (step < Chunks(own_size())) {
        operation_.Recv(*arrivals_[peer], parts_slot, Place(step),
                        ChunkSize(own_size(), step));
      }
      const uint64_t slice_size = plan_.parts[peer].size;
      if (step >= Chunks(slice_size)) continue;
      const uint64_t bytes = ChunkSize(slice_size, step);
      if (results_[peer] != nullptr) {
        operation_.Recv(*results_[peer], results_slot, step * chunk_, bytes);
      }
      operation_.Send(*parts_[peer], parts_slot, step * chunk_, bytes);
    }
  }

  void ReduceChunk(uint64_t step) {
    const uint64_t bytes = ChunkSize(own_size(), step);
    std::vector<const void*> inputs(mesh_.size());
    inputs[mesh_.rank()] = At(plan_.parts[mesh_.rank()].data, step * chunk_);
    for (int k = 1; k < mesh_.size(); ++k) {
      const int peer = mesh_.Peer(k);
      if (!operation_.AwaitRecv(*arrivals_[peer])) return;
      inputs[peer] = incoming_[peer] + Place(step);
    }
    const uint64_t offset = keeps_ ? step * chunk_ : Place(step);
    if (!keeps_ && step >= kDepth) {
      for (GlooChannel* channel : outgoing_) operation_.AwaitSend(*channel);
      if (!operation_.ok()) return;
    }
    host_.reduce(op_.dtype, op_.reduction, At(own_result_, offset),
                 inputs.data(), mesh_.size(), bytes / element_size_,
                 mesh_.size());
    for (GlooChannel* channel : outgoing_) {
      operation_.Send(*channel,
                      GlooMesh::CollectiveSlot(op_.sequence, kResults), offset,
                      bytes);
    }
  }

  GlooMesh& mesh_;
  const sherd_host_v0& host_;
  const sherd_op_v0& op_;
  const SlicePlan& plan_;
  GlooOperation& operation_;
  const uint64_t element_size_;
  uint64_t chunk_ = 0;
  uint64_t steps_ = 0;
  void* own_result_ = nullptr;
  // The own reduced slice stays here.
  bool keeps_ = true;
  std::vector<char*> incoming_;
  // By peer: this rank's part of its slice, its part of this rank's, its
  // reduced slice. And by receiver: this rank's reduced slice.
  std::vector<GlooChannel*> parts_, arrivals_, results_, outgoing_;
};

// in[0, bytes) cut into one slice per rank, the first ones being longer, or
// into the one slice of `owner` if that is a rank.
std::vector<sherd_bytes_v0> Cut(const sherd_op_v0& op, int size, int owner) {
  std::vector<sherd_bytes_v0> parts(size);
  const uint64_t length =
      owner >= 0 ? op.bytes : RoundUp((op.bytes + size - 1) / size);
  uint64_t begin = 0;
  for (int rank = 0; rank < size; ++rank) {
    if (owner >= 0 && rank != owner) continue;
    const uint64_t end = std::min(op.bytes, begin + length);
    parts[rank] = {At(op.in, begin), end - begin};
    begin = end;
  }
  return parts;
}

// Places of the slices in `out`.
std::vector<void*> PlacesIn(void* out,
                            const std::vector<sherd_bytes_v0>& parts) {
  std::vector<void*> places;
  uint64_t begin = 0;
  for (const sherd_bytes_v0& part : parts) {
    places.push_back(At(out, begin));
    begin += part.size;
  }
  return places;
}

// Two ranks swap small vectors: one message in each direction at the same time.
void SwapAndReduce(GlooMesh& mesh, const sherd_host_v0& host,
                   const sherd_op_v0& op, GlooScratch& scratch,
                   GlooOperation& operation) {
  const int peer = mesh.Peer(1);
  char* const theirs = scratch.Get(op.bytes);
  if (!operation.Exchange(GlooMesh::CollectiveSlot(op.sequence, kParts),
                          {{peer, const_cast<void*>(op.in), op.bytes}},
                          {{peer, theirs, op.bytes}})) {
    return;
  }
  const void* inputs[2];
  inputs[mesh.rank()] = op.in;
  inputs[peer] = theirs;
  host.reduce(op.dtype, op.reduction, op.out, inputs, 2,
              op.bytes / ElementSize(op.dtype), 2);
}

}  // namespace

void GlooAllReduce(GlooMesh& mesh, const sherd_host_v0& host,
                   const sherd_op_v0& op, GlooScratch& scratch,
                   GlooOperation& operation) {
  const bool whole = op.bytes <= kMaxWhole;
  if (whole && mesh.size() == 2) {
    return SwapAndReduce(mesh, host, op, scratch, operation);
  }
  SlicePlan plan;
  plan.parts = Cut(op, mesh.size(), whole ? 0 : -1);
  plan.results = PlacesIn(op.out, plan.parts);
  for (int k = 1; k < mesh.size(); ++k) plan.receivers.push_back(mesh.Peer(k));
  SliceReducer(mesh, host, op, plan, scratch, operation).Run();
}

void GlooReduce(GlooMesh& mesh, const sherd_host_v0& host,
                const sherd_op_v0& op, GlooScratch& scratch,
                GlooOperation& operation) {
  // With two ranks, sharing the work would move half as much again.
  const bool whole = op.bytes <= kMaxWhole || mesh.size() == 2;
  SlicePlan plan;
  plan.parts = Cut(op, mesh.size(), whole ? op.root : -1);
  if (mesh.rank() == op.root) {
    plan.results = PlacesIn(op.out, plan.parts);
  } else {
    plan.results.resize(mesh.size());
    plan.receivers = {op.root};
  }
  SliceReducer(mesh, host, op, plan, scratch, operation).Run();
}

void GlooReduceScatter(GlooMesh& mesh, const sherd_host_v0& host,
                       const sherd_op_v0& op, GlooScratch& scratch,
                       GlooOperation& operation) {
  SlicePlan plan;
  plan.parts.assign(op.sends, op.sends + mesh.size());
  plan.results.resize(mesh.size());
  plan.results[mesh.rank()] = op.out;
  SliceReducer(mesh, host, op, plan, scratch, operation).Run();
}

}  // namespace sherd::internal
