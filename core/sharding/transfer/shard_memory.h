#ifndef SHERD_CORE_SHARDING_TRANSFER_SHARD_MEMORY_H_
#define SHERD_CORE_SHARDING_TRANSFER_SHARD_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"

namespace sherd {

// The memory of a source or destination shard of this rank.
template <typename Pointer>
struct BasicShardMemory {
  // Position in the list `from` or `to` of the plan.
  int shard = 0;
  // The address of the element at `offsets` of the global tensor, and strides
  // in elements, which may be any.
  Dims offsets;
  Dims strides;
  Pointer data = nullptr;
  // Keeps the memory, if given. If this rank gives up while another rank copies
  // from it or into it, the memory is kept for the rest of the process, since
  // the end of the other rank's copy cannot be observed. If null, the caller
  // has to keep the memory after such an error.
  std::shared_ptr<const void> owner = nullptr;
  // Device of the memory, with an index if it is not the CPU.
  Device device = {};
  // Of memory of a device, if given: records the stream that uses it. Lives as
  // long as the memory.
  const Storage* storage = nullptr;
};
using SourceMemory = BasicShardMemory<const void*>;
using DestinationMemory = BasicShardMemory<void*>;

namespace internal {

// The shards of one side by their position in the plan's list. Refers to them.
template <typename Pointer>
class ShardTable {
 public:
  using Memory = BasicShardMemory<Pointer>;

  // `side`: "source" or "destination", for messages; a literal.
  //   kInvalidArgument  A shard is given twice.
  static absl::StatusOr<ShardTable> Create(absl::Span<const Memory> shards,
                                           absl::string_view side) {
    ShardTable table(side);
    table.shards_.reserve(shards.size());
    for (const Memory& shard : shards) {
      if (!table.shards_.try_emplace(shard.shard, &shard).second) {
        return absl::InvalidArgumentError(absl::StrCat(
            "memory of ", side, " shard ", shard.shard, " is given twice"));
      }
    }
    return table;
  }

  // The shard, which the plan needs.
  //   kInvalidArgument  It was not given, or not with `dims` dimensions.
  absl::StatusOr<const Memory*> Find(int shard, size_t dims) const {
    const auto found = shards_.find(shard);
    if (found == shards_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan needs memory of ", side_, " shard ", shard,
                       ", none given"));
    }
    const Memory& memory = *found->second;
    if (memory.offsets.size() != dims || memory.strides.size() != dims) {
      return absl::InvalidArgumentError(absl::StrCat(
          "memory of ", side_, " shard ", shard, " has ", memory.offsets.size(),
          " offsets and ", memory.strides.size(), " strides, expected ", dims,
          " of each"));
    }
    return &memory;
  }

 private:
  explicit ShardTable(absl::string_view side) : side_(side) {}

  absl::string_view side_;
  absl::flat_hash_map<int, const Memory*> shards_;
};

// The place of a shard: the CPU is one place, for any index.
template <typename Pointer>
Device PlaceOf(const BasicShardMemory<Pointer>& shard) {
  return shard.device.is_cpu() ? Device() : shard.device;
}

// The address of the element at `offsets` of the global tensor.
template <typename Pointer>
std::byte* AddressIn(const BasicShardMemory<Pointer>& shard,
                     absl::Span<const int64_t> offsets, size_t element_size) {
  const int64_t index = ElementOffset(offsets, shard.offsets, shard.strides);
  // Sources are only read; one type serves both directions.
  return const_cast<std::byte*>(static_cast<const std::byte*>(shard.data)) +
         index * static_cast<int64_t>(element_size);
}

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_CORE_SHARDING_TRANSFER_SHARD_MEMORY_H_
