#include "sherd/backends/gloo/collectives.h"

#include <vector>

namespace sherd::internal {
namespace {

using Messages = std::vector<GlooMessage>;

uint64_t Slot(const sherd_op_v0& op, int phase = 0) {
  return GlooMesh::CollectiveSlot(op.sequence, phase);
}

// Appends the message `entry` from or to `peer`, unless it is empty.
void Add(int peer, const sherd_bytes_v0& entry, Messages& messages) {
  if (entry.size > 0) messages.push_back({peer, entry.data, entry.size});
}

}  // namespace

void GlooBarrier(GlooMesh& mesh, const sherd_op_v0& op,
                 GlooOperation& operation) {
  constexpr int kArrived = 0, kReleased = 1;
  // A byte from each rank, and the one that is sent.
  char* const tokens = operation.Memory(mesh.size() + 1);
  char* const token = tokens + mesh.size();
  *token = 0;
  if (mesh.rank() != 0) {
    // The release is asked for first, so that rank 0 can send it at once.
    operation.Recv(operation.Open(0, tokens, 1), Slot(op, kReleased), 0, 1);
    operation.Exchange(Slot(op, kArrived), {{0, token, 1}}, {});
    return;
  }
  Messages recvs, sends;
  for (int peer = 1; peer < mesh.size(); ++peer) {
    recvs.push_back({peer, tokens + peer, 1});
    sends.push_back({peer, token, 1});
  }
  if (operation.Exchange(Slot(op, kArrived), {}, recvs)) {
    operation.Exchange(Slot(op, kReleased), sends, {});
  }
}

void GlooBroadcast(GlooMesh& mesh, const sherd_op_v0& op,
                   GlooOperation& operation) {
  const int size = mesh.size();
  const int position = (mesh.rank() - op.root + size) % size;
  int step = 1;
  while (step <= position) step *= 2;
  if (position > 0) {
    const int parent = (position - step / 2 + op.root) % size;
    if (!operation.Exchange(Slot(op), {}, {{parent, op.out, op.bytes}})) {
      return;
    }
  }
  Messages sends;
  for (; position + step < size; step *= 2) {
    sends.push_back({(position + step + op.root) % size, op.out, op.bytes});
  }
  operation.Exchange(Slot(op), sends, {});
}

void GlooAllGather(GlooMesh& mesh, const sherd_op_v0& op,
                   GlooOperation& operation) {
  Messages sends, recvs;
  for (int k = 1; k < mesh.size(); ++k) {
    const int peer = mesh.Peer(k);
    sends.push_back({peer, const_cast<void*>(op.in), op.bytes});
    recvs.push_back(
        {peer, static_cast<char*>(op.out) + peer * op.bytes, op.bytes});
  }
  operation.Exchange(Slot(op), sends, recvs);
}

void GlooAllToAllV(GlooMesh& mesh, const sherd_op_v0& op,
                   GlooOperation& operation) {
  Messages sends, recvs;
  for (int k = 1; k < mesh.size(); ++k) {
    const int peer = mesh.Peer(k);
    Add(peer, op.sends[peer], sends);
    Add(peer, op.recvs[peer], recvs);
  }
  operation.Exchange(Slot(op), sends, recvs);
}

void GlooAllGatherV(GlooMesh& mesh, const sherd_op_v0& op,
                    GlooOperation& operation) {
  Messages sends, recvs;
  for (int k = 1; k < mesh.size(); ++k) {
    const int peer = mesh.Peer(k);
    Add(peer, {const_cast<void*>(op.in), op.bytes}, sends);
    Add(peer, op.recvs[peer], recvs);
  }
  operation.Exchange(Slot(op), sends, recvs);
}

void GlooGather(GlooMesh& mesh, const sherd_op_v0& op,
                GlooOperation& operation) {
  Messages sends, recvs;
  if (mesh.rank() != op.root) {
    Add(op.root, {const_cast<void*>(op.in), op.bytes}, sends);
  } else {
    for (int k = 1; k < mesh.size(); ++k) {
      Add(mesh.Peer(k), op.recvs[mesh.Peer(k)], recvs);
    }
  }
  operation.Exchange(Slot(op), sends, recvs);
}

void GlooScatter(GlooMesh& mesh, const sherd_op_v0& op,
                 GlooOperation& operation) {
  Messages sends, recvs;
  if (mesh.rank() != op.root) {
    Add(op.root, {op.out, op.bytes}, recvs);
  } else {
    for (int k = 1; k < mesh.size(); ++k) {
      Add(mesh.Peer(k), op.sends[mesh.Peer(k)], sends);
    }
  }
  operation.Exchange(Slot(op), sends, recvs);
}

}  // namespace sherd::internal
