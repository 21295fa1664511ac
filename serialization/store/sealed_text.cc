#include "sherd/serialization/store/sealed_text.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace {

// "crc32c ", 8 digits and a newline.
constexpr size_t kCrcLineBytes = 16;

std::string CrcLine(absl::string_view body) {
  return absl::StrFormat("crc32c %08x\n", Crc32c(AsBytes(body)));
}

}  // namespace

std::string SealedText::Seal(std::string body) {
  body += CrcLine(body);
  return body;
}

absl::StatusOr<absl::string_view> SealedText::Open(
    absl::string_view bytes, absl::string_view what) const {
  const size_t first = std::min(bytes.find('\n'), bytes.size());
  absl::string_view version_text = bytes.substr(0, first);
  uint32_t found = 0;
  if (static_cast<int64_t>(bytes.size()) > max_bytes ||
      !absl::ConsumePrefix(&version_text, magic) ||
      !absl::SimpleAtoi(version_text, &found) || found == 0) {
    return Damaged(what, "it does not begin as one");
  }
  if (found > version) {
    return absl::UnimplementedError(absl::StrCat(
        what, " has version ", found, ", but this build knows versions up to ",
        version, "; ", remedy));
  }
  const size_t body = bytes.size() - std::min(bytes.size(), kCrcLineBytes);
  if (bytes.substr(body) != CrcLine(bytes.substr(0, body))) {
    return Damaged(what, "its CRC-32C is not that of its contents");
  }
  const size_t lines = std::min(first + 1, body);
  return bytes.substr(lines, body - lines);
}

absl::Status SealedText::Damaged(absl::string_view what,
                                 absl::string_view problem) const {
  return absl::DataLossError(
      absl::StrCat(what, " is damaged or not ", name, ": ", problem));
}

}  // namespace sherd
