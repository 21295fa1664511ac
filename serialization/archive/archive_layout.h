#ifndef SHERD_SERIALIZATION_ARCHIVE_ARCHIVE_LAYOUT_H_
#define SHERD_SERIALIZATION_ARCHIVE_ARCHIVE_LAYOUT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

// The bytes of an archive around its message; see FORMAT.md.
namespace sherd::internal {

inline constexpr int kArchiveVersion = 1;
// Magic number, version, and length of the message.
inline constexpr int64_t kArchivePrefixBytes = 20;
inline constexpr int64_t kCrcBytes = 4;

// Blocks of so many bytes begin at a multiple of it, smaller ones at one of
// kSmallBlockAlignment.
inline constexpr int64_t kLargeBlockBytes = 4096;
inline constexpr int64_t kSmallBlockAlignment = 64;

// What Sherd writes: a chunk stays in a core's cache between the CRC and the
// system call.
inline constexpr int64_t kArchiveChunkBytes = 262'144;

// Where the parts of an archive are.
struct ArchiveLayout {
  // Of each block.
  std::vector<int64_t> offsets;
  // Of each block, in the table.
  std::vector<int64_t> first_chunks;
  // The table of CRCs, and the CRC of that.
  int64_t table = 0;
  int64_t chunks = 0;
  // Of the archive.
  int64_t size = 0;
};

// `front`: the bytes up to and including the CRC of the message. Nothing if the
// size does not fit in 64 bits.
std::optional<ArchiveLayout> LayOutArchive(int64_t front,
                                           absl::Span<const int64_t> blocks,
                                           int64_t chunk_bytes);

// The bytes before the blocks.
std::string EncodeArchiveFront(absl::string_view message);

// The length of the message, from the first kArchivePrefixBytes,
// `text`.
//   kDataLoss       Not an archive.
//   kUnimplemented  A later version; the message has both.
absl::StatusOr<int64_t> ParseArchivePrefix(absl::string_view text);

}  // namespace sherd::internal

#endif  // SHERD_SERIALIZATION_ARCHIVE_ARCHIVE_LAYOUT_H_
