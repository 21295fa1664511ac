#ifndef SHERD_SERIALIZATION_KITS_DISTRIBUTED_SAVE_FIXTURE_H_
#define SHERD_SERIALIZATION_KITS_DISTRIBUTED_SAVE_FIXTURE_H_

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/checkpoint_place.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd {

// For tests whose ranks are processes, some of which die or are stopped while
// they save or load one checkpoint of a tensor "t".
class DistributedSaveFixture : public testing::DistributedTest {
 protected:
  static inline const Dims kSize = {1500, 61};

  std::string path() const {
    return CheckpointPlace(JoinPath(temp_dir(), "checkpoint"));
  }

  // In rows over all ranks.
  ShardedTensor MakeTensor(int seed) {
    auto spec = ChunkShardingSpec::Create(0, PlacementsOnRanks(world_size()));
    EXPECT_THAT(spec, testing::IsOk());
    auto tensor = ShardedTensor::Zeros(*spec, kSize);
    EXPECT_THAT(tensor, testing::IsOk());
    FillSample(*tensor, seed);
    return *std::move(tensor);
  }

  // Of which tensor the checkpoint is, which must be whole; 0: of none.
  int SeedOnDisk() {
    EXPECT_THAT(VerifyCheckpoint(path()), testing::IsOk());
    const auto reader = CheckpointReader::Open(path());
    EXPECT_THAT(reader, testing::IsOk());
    const auto tensor = reader->ReadTensor("t");
    EXPECT_THAT(tensor, testing::IsOk());
    for (const int seed : {1, 2, 3}) {
      if (CountWrong(*tensor, {0, 0}, kSize, seed) == 0) return seed;
    }
    return 0;
  }

  const testing::LeaveOutSyncs no_syncs_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_DISTRIBUTED_SAVE_FIXTURE_H_
