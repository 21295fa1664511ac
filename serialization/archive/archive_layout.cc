#include "sherd/serialization/archive/archive_layout.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/serialization/archive/state_codec.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd::internal {
namespace {

constexpr char kMagic[] = {'S', 'H', 'E', 'R', 'A', '\r', '\n', '\x1a'};

}  // namespace

std::optional<ArchiveLayout> LayOutArchive(int64_t front,
                                           absl::Span<const int64_t> blocks,
                                           int64_t chunk_bytes) {
  ArchiveLayout layout;
  int64_t end = front;
  for (const int64_t bytes : blocks) {
    const int64_t alignment =
        bytes >= kLargeBlockBytes ? kLargeBlockBytes : kSmallBlockAlignment;
    const auto padded = CheckedAdd(end, alignment - 1);
    if (!padded) return std::nullopt;
    const int64_t begin = *padded / alignment * alignment;
    const auto next = CheckedAdd(begin, bytes);
    if (!next) return std::nullopt;
    layout.offsets.push_back(begin);
    layout.first_chunks.push_back(layout.chunks);
    // Not more than the bytes of the blocks, which fit.
    layout.chunks += 1 + (bytes - 1) / chunk_bytes;
    end = *next;
  }
  layout.table = end;
  const auto table_bytes = CheckedMul(layout.chunks + 1, kCrcBytes);
  const auto size = table_bytes ? CheckedAdd(end, *table_bytes) : std::nullopt;
  if (!size) return std::nullopt;
  layout.size = *size;
  return layout;
}

std::string EncodeArchiveFront(absl::string_view message) {
  std::string front(kMagic, sizeof(kMagic));
  AppendLittleEndian(static_cast<uint32_t>(kArchiveVersion), front);
  AppendLittleEndian(static_cast<uint64_t>(message.size()), front);
  absl::StrAppend(&front, message);
  AppendLittleEndian(Crc32c(AsBytes(front)), front);
  return front;
}

absl::StatusOr<int64_t> ParseArchivePrefix(absl::string_view text) {
  if (text.size() < static_cast<size_t>(kArchivePrefixBytes) ||
      !absl::StartsWith(text, absl::string_view(kMagic, sizeof(kMagic)))) {
    return absl::DataLossError(
        "it is not an archive of Sherd, which begins with \"SHERA\"");
  }
  const uint32_t version = ReadLittleEndian<uint32_t>(text.substr(8));
  if (version == 0 || version > static_cast<uint32_t>(kArchiveVersion)) {
    return absl::UnimplementedError(absl::StrCat(
        "it is an archive of version ", version, ", this build reads 1 to ",
        kArchiveVersion, "; use a later Sherd, or it is damaged at offset 8"));
  }
  const uint64_t length = ReadLittleEndian<uint64_t>(text.substr(12));
  if (length > static_cast<uint64_t>(kMaxStateBytes)) {
    return absl::DataLossError(
        absl::StrCat("it claims at offset 12 to have a message of ", length,
                     " bytes, expected at most ", kMaxStateBytes));
  }
  return static_cast<int64_t>(length);
}

}  // namespace sherd::internal
