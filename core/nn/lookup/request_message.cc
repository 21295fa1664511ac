#include "sherd/core/nn/lookup/request_message.h"

#include <algorithm>
#include <cstring>

namespace sherd::internal {
namespace {

struct RequestHeader {
  uint64_t bags = 0;
  uint64_t ids = 0;
};

// The lengths of the parts of a request.
struct PartSizes {
  size_t ids = 0;
  size_t weights = 0;
  size_t lengths = 0;

  size_t total() const {
    return sizeof(RequestHeader) + PaddedPart(ids) + PaddedPart(weights) +
           PaddedPart(lengths);
  }
};

PartSizes SizesOf(const RequestFormat& format, uint64_t bags, uint64_t ids) {
  return {.ids = ids * (format.wide_ids ? sizeof(int64_t) : sizeof(int32_t)),
          .weights = ids * format.weight_bytes,
          .lengths = format.has_lengths ? bags * sizeof(uint32_t) : 0};
}

}  // namespace

size_t RequestBytes(const RequestFormat& format, uint64_t bags, uint64_t ids) {
  return SizesOf(format, bags, ids).total();
}

void WriteRequest(const RequestFormat& format, const RequestParts& request,
                  std::byte* to) {
  const RequestHeader header = {request.bags, request.ids.size()};
  const PartSizes sizes = SizesOf(format, header.bags, header.ids);
  std::memcpy(to, &header, sizeof(header));
  to += sizeof(header);
  if (format.wide_ids) {
    std::copy(request.ids.begin(), request.ids.end(),
              reinterpret_cast<int64_t*>(to));
  } else {
    std::transform(request.ids.begin(), request.ids.end(),
                   reinterpret_cast<int32_t*>(to),
                   [](int64_t id) { return static_cast<int32_t>(id); });
  }
  to += PaddedPart(sizes.ids);
  std::copy_n(request.weights.begin(), sizes.weights, to);
  to += PaddedPart(sizes.weights);
  if (sizes.lengths > 0) {
    std::memcpy(to, request.lengths.data(), sizes.lengths);
  }
}

bool TakeRequest(const RequestFormat& format, absl::Span<const std::byte>& rest,
                 RequestView& request) {
  RequestHeader header;
  if (rest.size() < sizeof(header)) return false;
  std::memcpy(&header, rest.data(), sizeof(header));
  // Each takes at least four bytes, and so nothing overflows below.
  if (header.ids > rest.size() / 4 || header.bags > header.ids) return false;
  if (header.bags == 0 && header.ids > 0) return false;
  const PartSizes sizes = SizesOf(format, header.bags, header.ids);
  if (rest.size() < sizes.total()) return false;
  const std::byte* const ids = rest.data() + sizeof(header);
  const std::byte* const weights = ids + PaddedPart(sizes.ids);
  const std::byte* const lengths = weights + PaddedPart(sizes.weights);
  request = {
      .bags = header.bags,
      .ids = IndexList(ids, static_cast<int64_t>(header.ids), format.wide_ids),
      .weights = weights,
      .lengths = format.has_lengths ? reinterpret_cast<const uint32_t*>(lengths)
                                    : nullptr};
  rest.remove_prefix(sizes.total());
  return true;
}

bool FindBags(const RequestView& request, const ReadableStrip& strip,
              std::vector<int64_t>& bounds) {
  bounds.assign(1, 0);
  for (uint64_t b = 0; b < request.bags; ++b) {
    bounds.push_back(bounds.back() +
                     (request.lengths == nullptr ? 1 : request.lengths[b]));
  }
  if (bounds.back() != request.ids.size()) return false;
  for (int64_t i = 0; i < request.ids.size(); ++i) {
    if (!strip.Holds(request.ids[i])) return false;
  }
  return true;
}

}  // namespace sherd::internal
