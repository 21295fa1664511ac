#ifndef SHERD_SERIALIZATION_CHECKPOINT_LOAD_CHUNK_LEDGER_H_
#define SHERD_SERIALIZATION_CHECKPOINT_LOAD_CHUNK_LEDGER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/serialization/checkpoint/extent_reader.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/safetensors/crc32c.h"

namespace sherd {

// An extent of a shard of a tensor.
struct ExtentOfShard {
  // A number that all ranks share, and one in the layout.
  int32_t tensor = 0;
  int64_t shard = 0;
  // Chunks of the shard in the extents before this one.
  int64_t chunks_before = 0;
  SavedExtent extent;
};

// A chunk of which a rank has read some bytes. Ranks send it as it is in
// memory.
struct PartialChunk {
  // In the shard: the chunks of each extent follow those of the extent before.
  int64_t shard = 0;
  int64_t chunk = 0;
  int32_t tensor = 0;
  // How many bytes, and their linear CRC (crc32c.h) with zeros in place of the
  // others.
  int32_t bytes = 0;
  uint32_t sum = 0;
  // The CRC that the chunk must have.
  uint32_t expected = 0;

  std::tuple<int32_t, int64_t, int64_t> Place() const {
    return {tensor, shard, chunk};
  }
};

// Checks that what was read has the CRCs of its chunks: at once where one rank
// has read all of a chunk, in any order and any pieces, and otherwise by
// collecting what the ranks have read of it. Not thread-safe.
//
// Cost. Some 50 to 100 bytes for each chunk that is not complete yet.
class ChunkLedger {
 public:
  using TensorOf = std::function<const ManifestTensor&(int32_t tensor)>;

  // `reader` is borrowed.
  ChunkLedger(ExtentReader& reader, TensorOf tensor_of)
      : reader_(reader), tensor_of_(std::move(tensor_of)) {}

  // Adds the bytes of an extent from `offset` in it on. Fast if they follow
  // those of the call before.
  //   kDataLoss  They complete a chunk that is damaged.
  absl::Status Add(const ExtentOfShard& place, int64_t offset,
                   absl::Span<const std::byte> data);

  // Call it after the last Add.
  absl::Status Finish();

  // Adds what another ledger of this rank, on which Finish was called, has
  // read. Threads that read for one rank have a ledger each.
  //   kDataLoss  Both together complete a chunk that is damaged.
  absl::Status Merge(ChunkLedger& other);

  // The chunks that are not complete, by Place().
  std::vector<PartialChunk> TakePartial();

  // Adds up what ranks have read of the same chunks, and checks them.
  //   kDataLoss  A chunk is damaged; the first by Place().
  //   kInternal  A chunk was not read completely, or a byte twice.
  absl::Status CheckTogether(std::vector<PartialChunk> chunks);

 private:
  // What was read of a chunk; see PartialChunk.
  struct Part {
    int32_t bytes;
    uint32_t sum;
    uint32_t expected;
  };

  absl::Status EndChunk();
  // Adds a part of a chunk, with its place, that has `length` bytes.
  absl::Status AddPart(PartialChunk chunk, const ExtentOfShard& place,
                       int64_t length);
  // The extent that has a chunk, and the length of the chunk; 0 if no extent
  // has it.
  std::pair<ExtentOfShard, int64_t> FindChunk(const PartialChunk& chunk) const;
  // `chunk` has all its bytes, which are of the extent.
  absl::Status Check(const PartialChunk& chunk, const ExtentOfShard& place);
  // The same for one of which all that was read has been added up.
  absl::Status CheckSum(const PartialChunk& chunk);

  ExtentReader& reader_;
  const TensorOf tensor_of_;
  LinearCrc32cShift shift_;
  // The chunk that is being read: its extent, to where in that, and the CRC.
  // bytes is 0 if there is none.
  PartialChunk current_;
  ExtentOfShard place_;
  int64_t end_ = 0;
  // The CRC of as many zeros, by which that of a chunk differs from its linear
  // one: mostly those of many chunks of one length are asked for.
  int32_t zeros_ = 0;
  uint32_t crc_of_zeros_ = 0;
  // By PartialChunk::Place.
  absl::flat_hash_map<std::tuple<int32_t, int64_t, int64_t>, Part> partial_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_LOAD_CHUNK_LEDGER_H_
