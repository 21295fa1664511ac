#ifndef SHERD_SERIALIZATION_KITS_INCREMENTAL_FIXTURE_H_
#define SHERD_SERIALIZATION_KITS_INCREMENTAL_FIXTURE_H_

#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint/incremental/save_base.h"
#include "sherd/serialization/checkpoint/save/saver.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/checkpoint_place.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {

// For tests of saves that write what has changed: states whose elements are
// known, and one of them that is saved by one rank.
class IncrementalFixture : public ::testing::Test {
 protected:
  using Tensors = std::map<std::string, ShardedTensor>;
  // Of each rank.
  using Bases = std::vector<std::shared_ptr<SaveBase>>;

  // Of a file: the header, and the CRCs of a few chunks.
  static constexpr int64_t kOverhead = 16 << 10;

  static Bases EmptyBases(int ranks) {
    Bases bases;
    for (int r = 0; r < ranks; ++r)
      bases.push_back(std::make_shared<SaveBase>());
    return bases;
  }

  // Of this rank; returns the bytes of all files.
  static absl::StatusOr<int64_t> Save(const std::string& path,
                                      const Tensors& tensors,
                                      std::shared_ptr<SaveBase> base,
                                      bool sync = false) {
    SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group,
                           DefaultGroup());
    Saver saver({.path = path,
                 .tensors = std::make_shared<const Tensors>(tensors),
                 .group = group,
                 .options = {.sync = sync},
                 .base = std::move(base)});
    SHERD_RETURN_IF_ERROR(saver.Run());
    return saver.stats().file_bytes;
  }

  // The elements of whole tensors, as the ranks of a test agree on them.
  struct State {
    struct Whole {
      DType dtype;
      Dims size;
      std::string bytes;
    };
    std::map<std::string, Whole> tensors;

    void Add(const std::string& name, DType dtype, const Dims& size,
             std::mt19937_64& random) {
      Whole& whole = tensors[name] = {dtype, size, ""};
      whole.bytes.resize(static_cast<size_t>(Volume(size)) * SizeOf(dtype));
      for (char& byte : whole.bytes) byte = static_cast<char>(random() % 2);
    }
  };

  static void Fill(const State::Whole& from, ShardedTensor& tensor) {
    for (const Shard& shard : tensor.local_shards()) {
      ForEachElement(shard.tensor, shard.metadata.offsets, tensor.size(),
                     [&](std::byte* element, int64_t index) {
                       const size_t n = SizeOf(from.dtype);
                       std::memcpy(element, &from.bytes[index * n], n);
                     });
    }
  }

  static int64_t CountDifferent(const State::Whole& expected,
                                const ShardedTensor& tensor) {
    int64_t different = 0;
    for (const Shard& shard : tensor.local_shards()) {
      ForEachElement(shard.tensor, shard.metadata.offsets, tensor.size(),
                     [&](std::byte* element, int64_t index) {
                       const size_t n = SizeOf(expected.dtype);
                       different +=
                           std::memcmp(element, &expected.bytes[index * n],
                                       n) != 0;
                     });
    }
    return different;
  }

  static void ExpectHolds(const std::string& path, const State& state) {
    EXPECT_THAT(VerifyCheckpoint(path), testing::IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                               CheckpointReader::Open(path));
    for (const auto& [name, whole] : state.tensors) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor, reader.ReadTensor(name));
      ASSERT_EQ(tensor.nbytes(), static_cast<int64_t>(whole.bytes.size()));
      EXPECT_TRUE(whole.bytes.empty() ||
                  std::memcmp(tensor.data(), whole.bytes.data(),
                              whole.bytes.size()) == 0)
          << name;
    }
  }

  IncrementalFixture()
      : path_(CheckpointPlace(JoinPath(
            ::testing::TempDir(),
            absl::StrCat("incremental_", ::testing::UnitTest::GetInstance()
                                             ->current_test_info()
                                             ->name())))) {
    RemoveAllPlaced(path_);
  }
  ~IncrementalFixture() override { RemoveAllPlaced(path_); }

  // The older ones first.
  std::vector<std::string> DataFiles() const {
    std::vector<std::string> names;
    const auto all = CheckpointFiles().List(path_);
    for (const std::string& name : *all) {
      if (absl::StartsWith(name, "shard-")) names.push_back(name);
    }
    return names;
  }

  // A vector of bytes in as many chunks on one rank, saved once.
  void SaveChunks(int64_t chunks) {
    std::mt19937_64 random(7);
    state_.Add("vector", kUInt8, {chunks * kChunkBytes}, random);
    EXPECT_THAT(SaveState(), testing::IsOk());
  }

  // The state, on one rank.
  absl::StatusOr<int64_t> SaveState(bool sync = false) {
    absl::StatusOr<int64_t> bytes = absl::UnknownError("not run");
    testing::RunLocalRanks(1, [&](ProcessGroup&) {
      Tensors tensors;
      for (const auto& [name, whole] : state_.tensors) {
        ShardedTensor& tensor =
            tensors
                .emplace(name, *ShardedTensor::Zeros(
                                   *SampleSpec(0, whole.size, 1), whole.size,
                                   {.dtype = whole.dtype}))
                .first->second;
        Fill(whole, tensor);
      }
      bytes = Save(path_, tensors, base_, sync);
    });
    return bytes;
  }

  void Change(int64_t chunk) {
    state_.tensors["vector"].bytes[chunk * kChunkBytes + 5] ^= 1;
  }

  static void FlipBit(const std::string& path, int64_t offset) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get() ^ 4);
    file.seekp(offset);
    file.put(byte);
  }

  const std::string path_;
  State state_;
  std::shared_ptr<SaveBase> base_ = std::make_shared<SaveBase>();
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_INCREMENTAL_FIXTURE_H_
