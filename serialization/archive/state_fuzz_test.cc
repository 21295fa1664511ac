// Any bytes as the message of an archive, as an archive, and as the tree of a
// checkpoint: an error, or a state that survives encoding and decoding
// unchanged, and whose archive loads or is refused.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/logging.h"
#include "sherd/serialization/archive.h"
#include "sherd/serialization/archive/archive_layout.h"
#include "sherd/serialization/archive/state_codec.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd::internal {
namespace {

// Elements of a fuzzed state may have any number of bytes.
constexpr int64_t kMaxArchive = 1 << 20;

// A sound archive around a message, with zeros as elements.
std::optional<std::string> ArchiveOf(const SavedState& state,
                                     const std::string& message) {
  std::string archive = EncodeArchiveFront(message);
  const auto layout = LayOutArchive(static_cast<int64_t>(archive.size()),
                                    state.blocks, state.chunk_bytes);
  if (!layout || layout->size > kMaxArchive) return std::nullopt;
  archive.resize(static_cast<size_t>(layout->table));
  std::string table;
  for (const int64_t bytes : state.blocks) {
    for (int64_t begin = 0; begin < bytes; begin += state.chunk_bytes) {
      const int64_t length = std::min(state.chunk_bytes, bytes - begin);
      AppendLittleEndian(
          Crc32c(AsBytes(std::string(static_cast<size_t>(length), '\0'))),
          table);
    }
  }
  AppendLittleEndian(Crc32c(AsBytes(table)), table);
  return archive + table;
}

void TryMessage(absl::string_view bytes) {
  const absl::StatusOr<SavedState> state = DecodeState(bytes);
  if (!state.ok()) {
    SHERD_CHECK(absl::IsDataLoss(state.status()) ||
                absl::IsUnimplemented(state.status()))
        << state.status().ToString();
    return;
  }
  const absl::StatusOr<std::string> written = EncodeState(*state);
  SHERD_CHECK(written.ok()) << written.status().ToString();
  const absl::StatusOr<SavedState> again = DecodeState(*written);
  SHERD_CHECK(again.ok()) << again.status().ToString();
  SHERD_CHECK(*EncodeState(*again) == *written);
  const std::optional<std::string> archive = ArchiveOf(*state, *written);
  if (!archive) return;
  // Tensors may be on devices that are not here, and have groups.
  const absl::StatusOr<StateDict> loaded =
      LoadFromString(*archive, {.device = Device()});
  SHERD_CHECK(loaded.ok() || !absl::IsDataLoss(loaded.status()))
      << loaded.status().ToString();
}

void TryTree(absl::string_view bytes) {
  int64_t memory = 0;
  const absl::StatusOr<SavedState> tree = DecodeTree(bytes, memory);
  if (!tree.ok()) {
    SHERD_CHECK(absl::IsDataLoss(tree.status()) ||
                absl::IsUnimplemented(tree.status()))
        << tree.status().ToString();
    return;
  }
  const absl::StatusOr<std::string> written = EncodeTree(tree->values);
  SHERD_CHECK(written.ok()) << written.status().ToString();
  const absl::StatusOr<SavedState> again = DecodeTree(*written, memory);
  SHERD_CHECK(again.ok()) << again.status().ToString();
  SHERD_CHECK(*EncodeTree(again->values) == *written);
  const absl::StatusOr<StateValue> built =
      BuildValue(*tree, 0, [](size_t) { return Tensor(); });
  SHERD_CHECK(built.ok()) << built.status().ToString();
}

}  // namespace
}  // namespace sherd::internal

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  sherd::internal::TryMessage(bytes);
  sherd::internal::TryTree(bytes);
  sherd::LoadFromString(bytes, {.device = sherd::Device()}).IgnoreError();
  return 0;
}
