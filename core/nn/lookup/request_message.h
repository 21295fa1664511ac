#ifndef SHERD_CORE_NN_LOOKUP_REQUEST_MESSAGE_H_
#define SHERD_CORE_NN_LOOKUP_REQUEST_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "sherd/core/nn/lookup/bag_view.h"
#include "sherd/core/nn/lookup/row_pool.h"

// The bytes of a request of LookUpMessages, for the rows of one stream:
//
//   uint64 bags, ids; ids, int32 or int64; weights; uint32 lengths of the bags
//
// each part padded to 8 bytes. Pure.
namespace sherd::internal {

// The length of a part of a message.
constexpr size_t PaddedPart(size_t bytes) { return (bytes + 7) / 8 * 8; }

// What both sides know of the requests for a table.
struct RequestFormat {
  bool wide_ids = false;
  // Of one id; 0: there are none.
  size_t weight_bytes = 0;
  // Otherwise each bag has one id.
  bool has_lengths = true;
};

// A request to be written. `weights` and `lengths` are left out if the format
// has none.
struct RequestParts {
  uint64_t bags = 0;
  absl::Span<const int64_t> ids;
  absl::Span<const std::byte> weights;
  absl::Span<const uint32_t> lengths;
};

size_t RequestBytes(const RequestFormat& format, uint64_t bags, uint64_t ids);
// `to`: room for RequestBytes, at an address that is a multiple of 8.
void WriteRequest(const RequestFormat& format, const RequestParts& request,
                  std::byte* to);

// A request in a message, which it refers to.
struct RequestView {
  uint64_t bags = 0;
  IndexList ids;
  const std::byte* weights = nullptr;
  // Of the bags; null if the format has none.
  const uint32_t* lengths = nullptr;
};

// Takes the request at the front of `rest`, which begins at an address that is
// a multiple of 8. False for bytes that no WriteRequest has written: parts that
// do not fit into `rest`, more bags than ids, ids without bags.
bool TakeRequest(const RequestFormat& format, absl::Span<const std::byte>& rest,
                 RequestView& request);

// Sets `bounds` so that the ids of bag b are those at [bounds[b],
// bounds[b + 1]). False if these are not all ids, or if `strip` does not hold
// the row of an id.
bool FindBags(const RequestView& request, const ReadableStrip& strip,
              std::vector<int64_t>& bounds);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_LOOKUP_REQUEST_MESSAGE_H_
