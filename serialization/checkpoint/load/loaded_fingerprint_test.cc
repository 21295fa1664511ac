#include "sherd/serialization/checkpoint/load/loaded_fingerprint.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/wire/little_endian.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Even, since replicas that all were added would cancel one another.
constexpr int kRanks = 4;
constexpr int kLayouts = 8;

absl::Status NoProgress() { return absl::OkStatus(); }

TEST(LoadedFingerprintTest, TheRanksTogetherHaveTheCrcOfTheTensor) {
  const Dims size = {20, 7};
  for (int layout = 0; layout < kLayouts; ++layout) {
    SCOPED_TRACE(layout);
    std::vector<uint32_t> sums(kRanks);
    uint32_t whole = 0;
    RunLocalRanks(kRanks, [&](ProcessGroup& group) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          ShardedTensor tensor,
          ShardedTensor::Zeros(*SampleSpec(layout, size, kRanks), size));
      FillSample(tensor, 5);
      const int rank = group.rank();
      // As after tensors of which others have added more.
      std::vector<int64_t> load = {7, 0, 3, 1};
      SHERD_ASSERT_OK_AND_ASSIGN(
          sums[rank], LoadedFingerprint(tensor, /*has_replicas=*/true, rank,
                                        absl::MakeSpan(load), NoProgress));
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor all, tensor.AllGather());
      if (rank == 0) {
        whole = Crc32c({static_cast<const std::byte*>(all.data()),
                        static_cast<size_t>(all.nbytes())});
      }
    });
    EXPECT_EQ(
        Crc32cFromLinear(sums[0] ^ sums[1] ^ sums[2] ^ sums[3], 20 * 7 * 4),
        whole);
  }
}

TEST(LoadedFingerprintTest, ALoadThatChecksElementsNamesTheTensorThatDiffers) {
  const std::string path = JoinPath(::testing::TempDir(), "loaded_fingerprint");
  std::filesystem::remove_all(path);
  const Dims size = {20, 7};
  RunLocalRanks(2, [&](ProcessGroup&) {
    std::map<std::string, ShardedTensor> tensors;
    for (const char* const name : {"a", "b"}) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          tensors[name], ShardedTensor::Zeros(*SampleSpec(0, size, 2), size));
      FillSample(tensors[name], 5);
    }
    ASSERT_THAT(SaveCheckpoint(path, tensors), IsOk());
  });
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(path));
  SHERD_ASSERT_OK_AND_ASSIGN(Manifest manifest, reader.manifest().ReadAll());
  // As of elements that differ from those that are read.
  *manifest.tensors[1].fingerprint ^= 1;
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, EncodeManifest(manifest));
  ASSERT_THAT(
      WriteFileAtomically(FileSystem::Posix(),
                          JoinPath(path, kManifestFileName), AsBytes(bytes)),
      IsOk());
  RunLocalRanks(kRanks, [&](ProcessGroup&) {
    const auto load = [&](const std::string& name, bool check) {
      return LoadCheckpoint(path, {{name, *SampleSpec(7, size, kRanks)}},
                            nullptr, {.check_elements = check})
          .status();
    };
    EXPECT_THAT(load("a", true), IsOk());
    EXPECT_THAT(load("b", false), IsOk());
    EXPECT_THAT(load("b", true), StatusIs(absl::StatusCode::kDataLoss,
                                          AllOf(HasSubstr("tensor \"b\""),
                                                HasSubstr("expected"))));
  });
}

}  // namespace
}  // namespace sherd
