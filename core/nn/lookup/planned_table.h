#ifndef SHERD_CORE_NN_LOOKUP_PLANNED_TABLE_H_
#define SHERD_CORE_NN_LOOKUP_PLANNED_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/bag_view.h"
#include "sherd/core/nn/lookup/row_pool.h"
#include "sherd/core/nn/lookup/table_layout.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd::internal {

// A table of a plan, and what a call looks up in it.
struct PlannedTable {
  // A table in the plan's group; otherwise this process has all of it.
  bool shared = false;
  DType dtype = kFloat32;
  int64_t rows = 0;
  int64_t columns = 0;
  // Of this rank's rows. Without an index where it has none, and the others
  // have theirs on devices of the type.
  Device device;
  // A Tensor, which has one box; its memory is taken in each call.
  bool plain = false;
  uint64_t fingerprint = 0;
  std::vector<PlacedBox> boxes;
  // This rank's shards that are not empty: their boxes, and what identifies
  // their memory without keeping it.
  struct OwnShard {
    size_t box = 0;
    std::weak_ptr<Storage> storage;
    ShardRows rows;
  };
  std::vector<OwnShard> own;
  // Of a sharded table. Identifies it where this rank has no shard of it.
  std::weak_ptr<const ShardedTensorState> state;
  // Of each box.
  std::vector<ShardRows> shards;
  // As this rank reads them, and once the addresses are known.
  std::vector<ColumnStrip> strips;
  std::vector<ReadableStrip> readable;

  // Of the running call.
  BagView bags;
  BagOptions options;
  Tensor output;

  // Whether it is this table, with the same memory.
  bool IsOf(const EmbeddingTable& table) const;
  //   Errors. As LookUp for a table, without its number.
  absl::Status Set(const EmbeddingTable& table, int rank);
  // Takes the addresses of `shards`.
  void SetAddresses();

 private:
  absl::Status SetPlain(const Tensor& table);
  absl::Status SetDevice(const ShardedTensor& table);
};

bool HasElements(const PlacedBox& box);

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_LOOKUP_PLANNED_TABLE_H_
