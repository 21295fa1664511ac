#ifndef SHERD_SERIALIZATION_WIRE_LITTLE_ENDIAN_H_
#define SHERD_SERIALIZATION_WIRE_LITTLE_ENDIAN_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sherd {

// Unsigned numbers in files.

template <typename T>
void AppendLittleEndian(T value, std::string& text) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    text += static_cast<char>(value >> (8 * i));
  }
}

// The number at the beginning of `text`, which is long enough.
template <typename T>
T ReadLittleEndian(absl::string_view text) {
  T value = 0;
  for (size_t i = sizeof(T); i-- > 0;) {
    value = static_cast<T>(value << 8 | static_cast<unsigned char>(text[i]));
  }
  return value;
}

inline absl::Span<const std::byte> AsBytes(absl::string_view text) {
  return absl::MakeSpan(reinterpret_cast<const std::byte*>(text.data()),
                        text.size());
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_WIRE_LITTLE_ENDIAN_H_
