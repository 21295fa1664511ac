#ifndef SHERD_CORE_BASE_FINGERPRINT_H_
#define SHERD_CORE_BASE_FINGERPRINT_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace sherd {

// A 64-bit FNV-1a hash: the same for equal bytes on every rank and in every
// build, unlike absl::Hash. For fingerprints; no protection against malice.
class Fingerprint {
 public:
  Fingerprint& Add(absl::string_view bytes) {
    // The length keeps "ab","c" apart from "a","bc".
    Add(static_cast<int64_t>(bytes.size()));
    for (const char c : bytes) AddByte(static_cast<unsigned char>(c));
    return *this;
  }
  Fingerprint& Add(int64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      AddByte((number >> shift) & 0xff);
    }
    return *this;
  }
  uint64_t value() const { return value_; }

 private:
  void AddByte(uint64_t byte) { value_ = (value_ ^ byte) * 0x100000001b3; }

  uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace sherd

#endif  // SHERD_CORE_BASE_FINGERPRINT_H_
