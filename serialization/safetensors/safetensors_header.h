#ifndef SHERD_SERIALIZATION_SAFETENSORS_SAFETENSORS_HEADER_H_
#define SHERD_SERIALIZATION_SAFETENSORS_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {

// Files in the safetensors format: 8 bytes with the length of the header
// (little-endian), the header (JSON: name -> dtype, shape, data_offsets), then
// the elements of all tensors, row-major, without gaps. See FORMAT.md.

// Readers of the format refuse longer headers.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr int64_t kMaxSafetensorsNameBytes = 64 << 10;
// The data of files that Sherd writes begins at a multiple of this.
inline constexpr int64_t kSafetensorsAlignment = 4096;

struct SafetensorsEntry {
  std::string name;
  // As the file spells it: "BF16", "F8_E4M3", ….
  std::string dtype_name;
  DType dtype = kFloat32;
  Dims shape;
  // The tensor's bytes are [begin, end) after the header.
  int64_t begin = 0;
  int64_t end = 0;

  int64_t nbytes() const { return end - begin; }
  friend bool operator==(const SafetensorsEntry&,
                         const SafetensorsEntry&) = default;
};

struct SafetensorsHeader {
  // Ordered by `begin`: each entry begins where the one before ends, the first
  // at 0.
  std::vector<SafetensorsEntry> entries;
  // The free-form strings under "__metadata__".
  std::map<std::string, std::string> metadata;

  int64_t data_bytes() const {
    return entries.empty() ? 0 : entries.back().end;
  }
  friend bool operator==(const SafetensorsHeader&,
                         const SafetensorsHeader&) = default;
};

// As which a file has the elements of a dtype: itself, but for the complex ones
// that the format lacks. complex128 is float64, complex32 float16, and a last
// dimension of 2 is added.
DType SafetensorsDType(DType dtype);
// Whether there is that dimension.
bool IsStoredAsParts(DType dtype);
// Sizes of a tensor, with that dimension.
Dims SafetensorsShape(absl::Span<const int64_t> sizes, DType dtype);
// What the format calls SafetensorsDType(dtype).
absl::string_view SafetensorsDTypeName(DType dtype);

bool IsValidUtf8(absl::string_view text);

// Parses a header, without the 8 bytes before it; `data_bytes` is the length of
// the data after it in the file. The text is untrusted.
//
// Errors. All name `what`, and the tensor and offset where there is one.
//   kDataLoss        Not UTF-8 or not JSON; not an object of objects with
//                    exactly dtype, shape and data_offsets; a key twice; an
//                    empty or too long name; a negative or fractional number;
//                    sizes that overflow; a length other than that of shape
//                    and dtype; tensors that overlap, leave a hole or end past
//                    the data; data after the last tensor; "__metadata__" that
//                    is not a map of strings.
//   kUnimplemented   A dtype that Sherd does not know, or more than 64
//                    dimensions.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    absl::string_view json, int64_t data_bytes, absl::string_view what);

// The bytes before the data: length and header, padded with spaces so that the
// data begins at a multiple of kSafetensorsAlignment.
//   kResourceExhausted  The header exceeds kMaxSafetensorsHeaderBytes.
absl::StatusOr<std::string> EncodeSafetensorsHeader(
    const SafetensorsHeader& header);

struct SafetensorsTensorInfo {
  std::string name;
  DType dtype = kFloat32;
  Dims shape;
};

// The largest power of two that divides `bytes`, at most kSafetensorsAlignment.
int64_t AlignmentClass(int64_t bytes);

// Assigns offsets to tensors: by falling alignment class of their bytes, within
// a class larger ones first, ties by name. So there are no holes, and every
// tensor begins at a multiple of its class: of its element size at least.
//   kInvalidArgument  A name is empty, too long, not UTF-8, "__metadata__" or
//                     given twice; a bad shape; sizes that overflow; metadata
//                     that is not UTF-8.
absl::StatusOr<SafetensorsHeader> PlanSafetensors(
    std::vector<SafetensorsTensorInfo> tensors,
    std::map<std::string, std::string> metadata = {});

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_SAFETENSORS_SAFETENSORS_HEADER_H_
