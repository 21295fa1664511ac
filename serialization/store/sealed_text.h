#ifndef SHERD_SERIALIZATION_STORE_SEALED_TEXT_H_
#define SHERD_SERIALIZATION_STORE_SEALED_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sherd {

// A kind of small file of text that proves itself: leases, tables of an index.
//
// Layout.
//     MAGIC VERSION\n
//     lines, as the kind has them
//     crc32c XXXXXXXX\n    CRC-32C of all bytes before, eight lower-case digits
struct SealedText {
  // With the space before the version.
  absl::string_view magic;
  uint32_t version;
  int64_t max_bytes;
  // For errors: "a lease", and what to do with a file of a later version.
  absl::string_view name;
  absl::string_view remedy;

  // Returns `body`, of MAGIC and lines, with the line of its CRC.
  static std::string Seal(std::string body);

  // Returns the lines between the first and the last, which lie in `bytes`.
  // `what` names the file.
  //   kDataLoss       "WHAT is damaged or not a lease: …": it is too long, does
  //                   not begin with MAGIC and a number above zero, or does not
  //                   have its CRC.
  //   kUnimplemented  A later version.
  absl::StatusOr<absl::string_view> Open(absl::string_view bytes,
                                         absl::string_view what) const;

  // The error of a file whose lines are wrong.
  absl::Status Damaged(absl::string_view what, absl::string_view problem) const;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_STORE_SEALED_TEXT_H_
