#ifndef SHERD_SERIALIZATION_CHECKPOINT_CHUNK_LEDGER_H_
#define SHERD_SERIALIZATION_CHECKPOINT_CHUNK_LEDGER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/serialization/checkpoint/extent_reader.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/safetensors/crc32c.h"

namespace sherd {

// A chunk of which a rank has read some bytes. Ranks send it as it is in
// memory.
struct PartialChunk {
  SavedExtent extent;
  // In the extent, and the tensor that it belongs to, by a number that all
  // ranks share.
  int64_t chunk = 0;
  int64_t tensor = 0;
  // How many bytes, and their linear CRC (crc32c.h) with zeros in place of the
  // others.
  int64_t bytes = 0;
  uint32_t sum = 0;
  // The CRC that the chunk must have.
  uint32_t expected = 0;

  std::tuple<int64_t, int32_t, int64_t> Place() const {
    return {tensor, extent.file, extent.first_chunk + chunk};
  }
};

// Checks that what was read has the CRCs of its chunks: at once where one rank
// has read all of a chunk, in any order and any pieces, and otherwise by
// collecting what the ranks have read of it. Not thread-safe.
class ChunkLedger {
 public:
  using NameOf = std::function<absl::string_view(int64_t tensor)>;

  // `reader` is borrowed; `name_of` is called for messages.
  ChunkLedger(ExtentReader& reader, NameOf name_of)
      : reader_(reader), name_of_(std::move(name_of)) {}

  // Adds the bytes of an extent of a tensor from `offset` in it on. Fast if
  // they follow those of the call before.
  //   kDataLoss  They complete a chunk that is damaged.
  absl::Status Add(int64_t tensor, const SavedExtent& extent, int64_t offset,
                   absl::Span<const std::byte> data);

  // Call it after the last Add.
  absl::Status Finish();

  // The chunks that are not complete, by Place().
  std::vector<PartialChunk> TakePartial();

  // Adds up what ranks have read of the same chunks, and checks them.
  //   kDataLoss  A chunk is damaged; the first by Place().
  //   kInternal  A chunk was not read completely, or a byte twice.
  absl::Status CheckTogether(std::vector<PartialChunk> chunks) const;

 private:
  absl::Status EndChunk();
  absl::Status Check(const PartialChunk& chunk) const;

  ExtentReader& reader_;
  const NameOf name_of_;
  LinearCrc32cShift shift_;
  // The chunk that is being read: from where to where in its extent, and the
  // CRC of that. bytes is 0 if there is none.
  PartialChunk current_;
  int64_t end_ = 0;
  absl::flat_hash_map<std::tuple<int64_t, int32_t, int64_t>, PartialChunk>
      partial_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_CHUNK_LEDGER_H_
