#ifndef SHERD_SERIALIZATION_SAFETENSORS_TENSOR_FINGERPRINT_H_
#define SHERD_SERIALIZATION_SAFETENSORS_TENSOR_FINGERPRINT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "sherd/core/tensor/box.h"
#include "sherd/serialization/safetensors/crc32c.h"

namespace sherd {

// What a box adds to the fingerprint of its tensor, which is the CRC-32C of all
// bytes of the tensor, row-major, whatever its layout: the linear CRC of the
// tensor with zeros outside of the box. The XOR over boxes that cover the
// tensor once is the linear CRC of the tensor.
//
// Threads. Not thread-safe.
class BoxFingerprint {
 public:
  // `box` has passed FindBoxDefect, has an element and is inside the tensor.
  BoxFingerprint(absl::Span<const int64_t> tensor_sizes, const BoxView& box,
                 size_t element_size);

  // Whether the bytes of the box follow one another in the tensor. Then CRCs of
  // the box's bytes are all that is needed: AddLinear.
  bool contiguous() const { return outer_.empty(); }

  // Adds the next bytes of the box, row-major.
  //
  // Cost. That of a CRC; per run of bytes that follow one another in the tensor
  // some ten nanoseconds more.
  void Add(absl::Span<const std::byte> data);

  // Adds the next `bytes` bytes of a contiguous box by their linear CRC. O(1)
  // for lengths that repeat.
  void AddLinear(uint32_t linear, int64_t bytes);

  // Passes the next bytes of the box as if they were zeros.
  void Skip(int64_t bytes);

  // What the bytes that were added since the last call add to the fingerprint
  // of the tensor. To go on adds to the same box.
  uint32_t Take();

  // Take, after all bytes of the box.
  uint32_t Finish();

 private:
  // A dimension whose steps leave the run.
  struct Outer {
    int64_t size = 1;
    int64_t index = 0;
    // From the beginning of a run to that of the next one, and from its end, if
    // this dimension steps.
    int64_t stride = 0;
    int64_t gap = 0;
  };

  // The gap before the next run.
  int64_t NextGap();
  // Bytes of the tensor behind the position.
  int64_t BytesBehind() const;

  // Innermost first.
  std::vector<Outer> outer_;
  int64_t run_bytes_ = 0;
  int64_t left_in_run_ = 0;
  // From the box's first byte to the end of the tensor.
  int64_t bytes_from_begin_ = 0;
  uint32_t state_ = 0;
  LinearCrc32cShift shift_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_SAFETENSORS_TENSOR_FINGERPRINT_H_
