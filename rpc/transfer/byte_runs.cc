#include "sherd/rpc/transfer/byte_runs.h"

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace sherd::internal {

ByteRuns::ByteRuns(uint64_t address, absl::Span<const int64_t> sizes,
                   absl::Span<const int64_t> strides, size_t element_size)
    : address_(address), bytes_(element_size), run_bytes_(element_size) {
  for (size_t d = sizes.size(); d-- > 0;) {
    const auto size = static_cast<uint64_t>(sizes[d]);
    const uint64_t stride = static_cast<uint64_t>(strides[d]) * element_size;
    bytes_ *= size;
    if (size == 1) continue;
    if (sizes_.empty() && stride == run_bytes_) {
      run_bytes_ *= size;
    } else {
      sizes_.insert(sizes_.begin(), sizes[d]);
      strides_.insert(strides_.begin(), static_cast<int64_t>(stride));
    }
  }
}

uint64_t ByteRuns::AddressOf(uint64_t run) const {
  // Unsigned: addresses of another process may wrap around.
  uint64_t address = address_;
  for (size_t d = sizes_.size(); d-- > 0;) {
    const auto size = static_cast<uint64_t>(sizes_[d]);
    address += run % size * static_cast<uint64_t>(strides_[d]);
    run /= size;
  }
  return address;
}

size_t ByteRuns::Peek(absl::Span<iovec> parts) const {
  size_t count = 0;
  uint64_t within = done_ % run_bytes_;
  for (uint64_t run = done_ / run_bytes_;
       count < parts.size() && run < bytes_ / run_bytes_; ++run) {
    parts[count++] = {reinterpret_cast<void*>(AddressOf(run) + within),
                      run_bytes_ - within};
    within = 0;
  }
  return count;
}

}  // namespace sherd::internal
