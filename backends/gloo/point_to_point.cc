#include "sherd/backends/gloo/point_to_point.h"

#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstring>

namespace sherd::internal {
namespace {

constexpr uint64_t kMaxInline = (uint64_t{64} << 10) - 16;

struct Announcement {
  uint64_t bytes;
  // Of the slot on which the data follows, unless it is here.
  uint64_t payload;
  char data[kMaxInline];
};

constexpr uint64_t kHeaderBytes = offsetof(Announcement, data);

}  // namespace

void GlooPointToPoint::Send(const sherd_op_v0& op, GlooOperation& operation) {
  const bool is_inline = op.bytes <= kMaxInline;
  auto* const announcement =
      reinterpret_cast<Announcement*>(operation.Memory(sizeof(Announcement)));
  announcement->bytes = op.bytes;
  announcement->payload = is_inline ? 0 : next_payload_++;
  if (is_inline && op.bytes > 0) {
    std::memcpy(announcement->data, op.in, op.bytes);
  }
  const uint64_t announced = kHeaderBytes + (is_inline ? op.bytes : 0);
  operation.Send(operation.Open(op.root, announcement, announced),
                 GlooMesh::TagSlot(op.tag), 0, announced);
  if (!is_inline) {
    operation.Send(operation.Open(op.root, op.in, op.bytes),
                   GlooMesh::PayloadSlot(announcement->payload), 0, op.bytes);
  }
  operation.AwaitAll();
}

void GlooPointToPoint::Recv(const sherd_op_v0& op, GlooOperation& operation) {
  auto* const announcement =
      reinterpret_cast<Announcement*>(operation.Memory(sizeof(Announcement)));
  GlooChannel& channel =
      operation.Open(op.root, announcement, sizeof(Announcement));
  operation.Recv(channel, GlooMesh::TagSlot(op.tag), 0, sizeof(Announcement));
  if (!operation.AwaitAll()) return;
  if (announcement->bytes != op.bytes) {
    char text[120];
    std::snprintf(text, sizeof(text),
                  "sends %" PRIu64 " bytes with tag %" PRId64
                  ", this rank expects %" PRIu64,
                  announcement->bytes, op.tag, op.bytes);
    operation.Fail(SHERD_INVALID_ARGUMENT, op.root, text);
    return;
  }
  if (op.bytes <= kMaxInline) {
    if (op.bytes > 0) std::memcpy(op.out, announcement->data, op.bytes);
    return;
  }
  operation.Recv(operation.Open(op.root, op.out, op.bytes),
                 GlooMesh::PayloadSlot(announcement->payload), 0, op.bytes);
  operation.AwaitAll();
}

}  // namespace sherd::internal
