// Trees as rows of bytes, from any source.

#include "sherd/serialization/checkpoint/state/state_blob.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/archive/state_codec.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::LeaveOutSyncs;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

StateDict StateOf(std::vector<StateEntry> entries) {
  auto state = StateDict::Unflatten(std::move(entries));
  EXPECT_THAT(state, IsOk());
  return state.value_or(StateDict());
}

std::vector<std::byte> RowOf(const StateDict& state, int64_t bytes) {
  const auto message = internal::EncodeTree(*StateTreeOf(state));
  EXPECT_THAT(message, IsOk());
  std::vector<std::byte> row(static_cast<size_t>(bytes));
  WriteStateRow(*message, absl::MakeSpan(row));
  return row;
}

TEST(StateBlobTest, RowsHaveRoomAndStayAsTheyAre) {
  for (int64_t bytes : {0, 1, 503, 504, 505, 4087, 4089, 100'000, 1 << 30}) {
    EXPECT_GE(StateRowBytes(bytes), bytes + 8) << bytes;
    EXPECT_LE(StateRowBytes(bytes), bytes + 8 + 512 + bytes / 8) << bytes;
  }
  EXPECT_EQ(StateRowBytes(100), StateRowBytes(140));
  EXPECT_EQ(StateRowBytes(1 << 20), StateRowBytes((1 << 20) + 5000));
}

TEST(StateBlobTest, ARowComesBack) {
  const StateDict state = StateOf({{"a.b", 3}, {"list", StateList{1, "x"}}});
  int64_t memory = 0;
  const auto read = ReadStateRow(RowOf(state, 600), memory);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->Difference(state), "");
  EXPECT_GT(memory, 0);
}

// Saves a tensor of these bytes, as many rows on each of two ranks, as a map
// may.
absl::Status SaveRows(const std::string& path, const std::string& name,
                      const std::vector<std::byte>& first,
                      const std::vector<std::byte>& second,
                      int64_t rows_per_rank = 1) {
  absl::Status saved;
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const int64_t bytes = static_cast<int64_t>(first.size()) / rows_per_rank;
    auto tensor = ShardedTensor::Zeros(
        *ChunkShardingSpec::Create(0, PlacementsOnRanks(2)),
        {2 * rows_per_rank, bytes}, {.dtype = kUInt8});
    ASSERT_THAT(tensor, IsOk());
    const auto& row = group.rank() == 0 ? first : second;
    std::copy(row.begin(), row.end(),
              static_cast<std::byte*>(
                  const_cast<void*>(tensor->local_shards()[0].tensor.data())));
    const absl::Status status = SaveCheckpoint(
        path, std::map<std::string, ShardedTensor>{{name, *tensor}});
    if (group.rank() == 0) saved = status;
  });
  return saved;
}

class StateBlobDamageTest : public ::testing::Test {
 protected:
  StateBlobDamageTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = JoinPath(::testing::TempDir(),
                     absl::StrCat("state_blob_", info->name()));
    std::filesystem::remove_all(path_);
  }

  // What a reader and a load of the state say.
  void ExpectLost(const std::string& phrase, int rank = -1) {
    const auto reader = CheckpointReader::Open(path_);
    ASSERT_THAT(reader, IsOk());
    EXPECT_THAT(rank < 0 ? reader->ReadState() : reader->ReadStateOf(rank),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr(path_), HasSubstr(phrase))));
    RunLocalRanks(2, [&](ProcessGroup&) {
      StateDict state;
      EXPECT_THAT(LoadCheckpointInto(path_, state),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr(phrase)));
      EXPECT_TRUE(state.empty());
    });
  }

  const LeaveOutSyncs no_syncs_;
  std::string path_;
};

TEST_F(StateBlobDamageTest, BytesThatAreNotAMessageAreNamed) {
  const auto good = RowOf(StateOf({{"a", 1}}), 64);
  auto bad = good;
  bad[1] = std::byte{1};
  ASSERT_THAT(SaveRows(path_, kSharedStateName, good, bad), IsOk());
  ExpectLost("\"sherd.state\", row 1: the message has ");
  bad = good;
  bad[8] = std::byte{0x7f};
  ASSERT_THAT(SaveRows(path_, kSharedStateName, bad, good), IsOk());
  ExpectLost("\"sherd.state\", row 0: ");
}

TEST_F(StateBlobDamageTest, MoreRowsThanRanksAreNotRead) {
  // Each without a message.
  const std::vector<std::byte> rows(128);
  ASSERT_THAT(SaveRows(path_, kSharedStateName, rows, rows, 2), IsOk());
  ExpectLost("\"sherd.state\" is uint8 [4, 64], expected rows of bytes");
  ASSERT_THAT(SaveRows(path_, kRankStateName, rows, rows, 2), IsOk());
  ExpectLost("at most one for each of the 2 ranks that saved", /*rank=*/0);
}

TEST_F(StateBlobDamageTest, RowsThatDisagreeAreNamed) {
  ASSERT_THAT(
      SaveRows(path_, kSharedStateName, RowOf(StateOf({{"a.b", 1}}), 64),
               RowOf(StateOf({{"a.c", 1}, {"a.b", 2}}), 64)),
      IsOk());
  ExpectLost("\"a.b\" is integer 1, but in row 1 integer 2");
  ASSERT_THAT(SaveRows(path_, kSharedStateName,
                       RowOf(StateOf({{"a", StateList{1}}}), 64),
                       RowOf(StateOf({{"a", StateList{1, 2}}}), 64)),
              IsOk());
  ExpectLost("but in row 1");
}

TEST_F(StateBlobDamageTest, ATensorThatIsNotThereIsNamed) {
  const auto row = RowOf(StateOf({{"model.w", Tensor()}}), 64);
  ASSERT_THAT(SaveRows(path_, kSharedStateName, row, row), IsOk());
  const auto reader = CheckpointReader::Open(path_);
  ASSERT_THAT(reader, IsOk());
  EXPECT_THAT(reader->ReadState(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("model.w")));
}

TEST_F(StateBlobDamageTest, AMapCannotHaveAnotherTensorOfTheseNames) {
  RunLocalRanks(2, [&](ProcessGroup&) {
    for (const char* name : {kSharedStateName, kRankStateName}) {
      const auto spec = ChunkShardingSpec::Create(0, PlacementsOnRanks(2));
      for (const DType dtype : {kUInt8, kFloat32}) {
        const Dims size = dtype == kUInt8 ? Dims{40} : Dims{2, 40};
        auto tensor = ShardedTensor::Zeros(*spec, size, {.dtype = dtype});
        ASSERT_THAT(tensor, IsOk());
        EXPECT_THAT(
            SaveCheckpoint(
                path_, std::map<std::string, ShardedTensor>{{name, *tensor}}),
            StatusIs(absl::StatusCode::kInvalidArgument,
                     AllOf(HasSubstr(name), HasSubstr("values of a state"))));
      }
    }
  });
}

}  // namespace
}  // namespace sherd
