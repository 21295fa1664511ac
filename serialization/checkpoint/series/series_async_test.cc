// A series that saves beside the program, and one that saves states.

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/blocking_counter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/serialization/checkpoint_async.h"
#include "sherd/serialization/checkpoint_series.h"
#include "sherd/serialization/kits/checkpoint_place.h"
#include "sherd/serialization/kits/series_fixture.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::CallAt;
using sherd::testing::FailFileOperation;
using sherd::testing::IsOk;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

class SeriesAsyncTest : public SeriesFixture {
 protected:
  template <typename Body>
  void WithSeries(const SeriesOptions& options, Body body) {
    RunLocalRanks(2, [&](ProcessGroup&) {
      SHERD_ASSERT_OK_AND_ASSIGN(
          CheckpointSeries series,
          CheckpointSeries::Open(path_, nullptr, options));
      body(series);
      EXPECT_THAT(FlushSaves(), IsOk());
    });
  }

  static void Fill(Tensors& tensors, int seed) {
    for (auto& [name, tensor] : tensors) FillSample(tensor, seed);
  }
};

TEST_F(SeriesAsyncTest, StepsHoldWhatTheTensorsHeldAndRetentionFollows) {
  for (const std::string& second : {std::string(), second_}) {
    SCOPED_TRACE(second);
    RemoveAllPlaced(path_);
    WithSeries({.keep_last = 2, .copy_to = second},
               [&](CheckpointSeries& series) {
                 Tensors tensors = MakeTensors(2, 0);
                 for (int64_t step = 0; step < 6; ++step) {
                   Fill(tensors, SeedOf(step));
                   SHERD_ASSERT_OK_AND_ASSIGN(SaveHandle save,
                                              series.SaveAsync(step, tensors));
                   ASSERT_THAT(save.Copied(), IsOk());
                   Fill(tensors, 9999);
                 }
                 EXPECT_THAT(series.Flush(), IsOk());
                 EXPECT_EQ(series.Latest()->step, 5);
               });
    ExpectExactly(path_, 2, {4, 5});
  }
  ExpectExactly(second_, 2, {4, 5});
}

TEST_F(SeriesAsyncTest, ASaveWaitsForTheOneBesideTheProgram) {
  WithSeries(
      {.keep_last = 1, .copy_to = second_}, [&](CheckpointSeries& series) {
        for (int64_t step = 0; step < 6; step += 2) {
          EXPECT_THAT(series.SaveAsync(step, MakeTensors(2, SeedOf(step))),
                      IsOk());
          EXPECT_THAT(series.Save(step + 1, MakeTensors(2, SeedOf(step + 1))),
                      IsOk());
        }
        EXPECT_THAT(series.SaveAsync(6, MakeTensors(2, SeedOf(6))), IsOk());
        EXPECT_THAT(series.RemoveAfter(5), IsOk());
      });
  ExpectExactly(path_, 2, {});
  ExpectExactly(second_, 2, {});
}

TEST_F(SeriesAsyncTest, AnErrorIsAtTheHandleAndOnceAtTheNextSave) {
  const FailFileOperation full("reserve", "*.safetensors",
                               absl::ResourceExhaustedError("disk full"),
                               {.rank = 1});
  WithSeries({}, [&](CheckpointSeries& series) {
    const auto failed =
        StatusIs(absl::StatusCode::kResourceExhausted,
                 AllOf(HasSubstr("step 1"), HasSubstr("disk full")));
    SHERD_ASSERT_OK_AND_ASSIGN(SaveHandle save,
                               series.SaveAsync(1, MakeTensors(2, SeedOf(1))));
    EXPECT_THAT(save.Durable(), failed);
    EXPECT_THAT(series.Save(2, MakeTensors(2, SeedOf(2))), failed);
    EXPECT_THAT(series.Save(2, MakeTensors(2, SeedOf(2))), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(save, series.SaveAsync(-1, MakeTensors(2, 1)));
    EXPECT_THAT(save.Durable(), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("0 or more, got -1")));
    EXPECT_THAT(series.Flush(), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(series.Flush(), IsOk());
  });
  ExpectExactly(path_, 2, {2});
}

TEST_F(SeriesAsyncTest,
       RanksThatLearnOfAFailedSaveDifferentlyContinueTogether) {
  absl::BlockingCounter begun(2);
  const CallAt hold("file/create", [&] { begun.Wait(); },
                    {.rank = 1, .subject = "*.safetensors"});
  const FailFileOperation full("reserve", "*.safetensors",
                               absl::ResourceExhaustedError("disk full"),
                               {.rank = 1});
  RunLocalRanks(2, [&](ProcessGroup& group) {
    SHERD_ASSERT_OK_AND_ASSIGN(CheckpointSeries series,
                               CheckpointSeries::Open(path_));
    const auto begin = [&](int64_t step) {
      return series.SaveAsync(step, MakeTensors(2, SeedOf(step)));
    };
    SHERD_ASSERT_OK_AND_ASSIGN(SaveHandle first, begin(1));
    SHERD_ASSERT_OK_AND_ASSIGN(SaveHandle second, begin(2));
    begun.DecrementCount();
    const auto failed =
        StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("disk full"));
    // The other rank learns of it by the next call.
    if (group.rank() == 0) {
      EXPECT_THAT(first.Durable(), failed);
    }
    ASSERT_THAT(second.Durable(), IsOk());
    EXPECT_EQ(begin(3).ok(), group.rank() == 0);
    EXPECT_THAT(series.Save(4, MakeTensors(2, SeedOf(4))), failed);
    EXPECT_THAT(series.Save(4, MakeTensors(2, SeedOf(4))), IsOk());
    EXPECT_THAT(FlushSaves(), IsOk());
  });
  ExpectExactly(path_, 2, {2, 4});
}

TEST_F(SeriesAsyncTest, AnErrorOfACopyComesWithFlush) {
  const FailFileOperation full("write", JoinPath(second_, "shard-*"),
                               absl::ResourceExhaustedError("disk full"),
                               {.rank = 1});
  WithSeries({.copy_to = second_}, [&](CheckpointSeries& series) {
    SHERD_ASSERT_OK_AND_ASSIGN(SaveHandle save,
                               series.SaveAsync(1, MakeTensors(2, SeedOf(1))));
    EXPECT_THAT(save.Durable(), IsOk());
    EXPECT_THAT(series.Flush(),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("copy \""), HasSubstr("step 1"))));
  });
  ExpectExactly(path_, 2, {1});
}

TEST_F(SeriesAsyncTest, StatesAreSavedAndLoaded) {
  WithSeries({.copy_to = second_}, [&](CheckpointSeries& series) {
    const auto make_state = [&](int64_t step) {
      StateDict state;
      EXPECT_THAT(state.Set("step", step), IsOk());
      EXPECT_THAT(
          state.Set("matrix", MakeTensors(2, SeedOf(step)).at("matrix")),
          IsOk());
      return state;
    };
    ASSERT_THAT(series.Save(7, make_state(7)), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(SaveHandle save,
                               series.SaveAsync(8, make_state(8)));
    ASSERT_THAT(save.Durable(), IsOk());
    for (const int64_t step : {7, 8}) {
      StateDict state = make_state(100);
      ASSERT_THAT(series.LoadInto(step, state), IsOk());
      EXPECT_THAT(state.Get<int64_t>("step"), testing::IsOkAndHolds(step));
      SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor matrix,
                                 state.Get<ShardedTensor>("matrix"));
      EXPECT_EQ(CountWrong(matrix, SeedOf(step)), 0);
    }
  });
}

}  // namespace
}  // namespace sherd
