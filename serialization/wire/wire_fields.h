#ifndef SHERD_SERIALIZATION_WIRE_WIRE_FIELDS_H_
#define SHERD_SERIALIZATION_WIRE_WIRE_FIELDS_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

// Encoded Protobuf messages, looked at before memory is taken for them.
namespace sherd {

enum class WireType : uint8_t { kVarint = 0, kFixed64, kLength, kFixed32 = 5 };

// What parsing makes of a message, in bytes.

// What the allocator adds to a block, rounding included.
inline constexpr int64_t kPerBlock = 32;
// An array that grows by doubling while it is parsed: its last copy, up to
// twice as long as needed, beside the one before.
inline constexpr int64_t kGrowth = 3;
// A field that this build does not know, which the parser keeps.
inline constexpr int64_t kPerUnknownField = 128;

inline void AppendVarint(uint64_t value, std::string& text) {
  for (; value >= 0x80; value >>= 7) {
    text += static_cast<char>(0x80 | (value & 0x7f));
  }
  text += static_cast<char>(value);
}

// Reads an encoded message from front to back.
class WireReader {
 public:
  explicit WireReader(absl::string_view rest) : rest_(rest) {}

  bool done() const { return rest_.empty(); }

  bool ReadVarint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 70 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7f) << (shift % 64);
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool ReadBytes(uint64_t length, absl::string_view& bytes) {
    if (length > rest_.size()) return false;
    bytes = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }

 private:
  absl::string_view rest_;
};

// Calls `field` for each field of the encoded message, with its number and, of
// kLength, its bytes. False if the message is malformed.
inline bool ForEachWireField(
    absl::string_view message,
    absl::FunctionRef<void(uint64_t number, WireType type,
                           absl::string_view bytes)>
        field) {
  WireReader wire(message);
  while (!wire.done()) {
    uint64_t tag, number;
    absl::string_view bytes;
    // Protobuf drops the higher bits of a tag, and would see another field.
    if (!wire.ReadVarint(tag) || tag >> 32 != 0) return false;
    const auto type = static_cast<WireType>(tag & 7);
    switch (type) {
      case WireType::kVarint:
        if (!wire.ReadVarint(number)) return false;
        break;
      case WireType::kFixed64:
        if (!wire.ReadBytes(8, bytes)) return false;
        break;
      case WireType::kFixed32:
        if (!wire.ReadBytes(4, bytes)) return false;
        break;
      case WireType::kLength:
        if (!wire.ReadVarint(number) || !wire.ReadBytes(number, bytes)) {
          return false;
        }
        break;
      default:
        // No version has groups, which would nest.
        return false;
    }
    field(tag >> 3, type, bytes);
  }
  return true;
}

// The numbers in a field of repeated varints: each ends with the one byte that
// is below 128.
inline int64_t CountPackedVarints(absl::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x80;
  });
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_WIRE_WIRE_FIELDS_H_
