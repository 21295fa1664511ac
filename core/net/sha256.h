#ifndef SHERD_CORE_NET_SHA256_H_
#define SHERD_CORE_NET_SHA256_H_

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace sherd {

using Sha256Digest = std::array<uint8_t, 32>;

// SHA-256 of `data` (FIPS 180-4).
Sha256Digest Sha256(absl::string_view data);

// HMAC-SHA256 (RFC 2104), for keys of any length, the empty one too.
Sha256Digest HmacSha256(absl::string_view key, absl::string_view message);

// True if equal. The time it takes depends on the sizes only, not on where two
// strings differ, so that a secret cannot be guessed byte by byte.
bool EqualInConstantTime(absl::string_view a, absl::string_view b);

}  // namespace sherd

#endif  // SHERD_CORE_NET_SHA256_H_
