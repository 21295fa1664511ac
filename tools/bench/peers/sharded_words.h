#ifndef SHERD_TOOLS_BENCH_PEERS_SHARDED_WORDS_H_
#define SHERD_TOOLS_BENCH_PEERS_SHARDED_WORDS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/tools/bench/peers/box_layout.h"

namespace sherd {

// In Sherd's type.
Dims SizeOf(const WordTensor& tensor);
absl::StatusOr<ShardingSpecPtr> SpecOf(const WordTensor& tensor,
                                       const BoxLayout& layout);

// `words`, spread over `group` in `layout`, without contents.
absl::StatusOr<ShardedTensor> MakeShardedWords(
    const WordTensor& words, const BoxLayout& layout,
    const std::shared_ptr<ProcessGroup>& group);

// This rank's shards, for Fill, Spoil and Check.
std::vector<StoredBox> StoredShards(const ShardedTensor& tensor);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_PEERS_SHARDED_WORDS_H_
