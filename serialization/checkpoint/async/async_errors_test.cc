// Errors of saves that run beside the program; for processes that die see
// async_kill_test.cc.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/async/async_save.h"
#include "sherd/serialization/checkpoint_async.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/async_save_fixture.h"
#include "sherd/serialization/kits/sample_tensors.h"
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
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class AsyncErrorsTest : public AsyncSaveFixture {};

TEST_F(AsyncErrorsTest, AnErrorIsAtTheHandlesOfAllRanks) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    const Tensors tensors = MakeTensors(3, 1);
    ASSERT_THAT(SaveCheckpoint(Path(), tensors), IsOk());
    const FailFileOperation fault(
        "write", "*/shard-*", absl::ResourceExhaustedError("the disk is full"),
        {.rank = 1, .optional = group.rank() != 1});
    ASSERT_THAT(group.Barrier(), IsOk());
    auto save = SaveCheckpointAsync(Path(), MakeTensors(3, 2));
    ASSERT_THAT(save, IsOk());
    EXPECT_THAT(save->Copied(), IsOk());
    const auto full = StatusIs(
        absl::StatusCode::kResourceExhausted,
        AllOf(StartsWith(absl::StrCat("save \"", Path(), "\": rank 1: ")),
              HasSubstr("the disk is full")));
    EXPECT_THAT(save->Durable(), full);
    EXPECT_THAT(save->Durable(), full) << "each time";
    EXPECT_EQ(GetErrorInfo(save->Durable()).operation, "save_checkpoint");
    // It was returned, and the next save is not concerned.
    auto next = SaveCheckpointAsync(Path(1), tensors);
    ASSERT_THAT(next, IsOk());
    EXPECT_THAT(next->Durable(), IsOk());
    EXPECT_THAT(FlushSaves(), IsOk());
  });
  ExpectHolds(Path(), 1);
  ExpectHolds(Path(1), 1);
}

TEST_F(AsyncErrorsTest, AnUnreportedErrorIsReturnedByTheNextSaveOnce) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const Tensors tensors = MakeTensors(2, 1);
    const FailFileOperation fault("create", "*/shard-*",
                                  absl::InternalError("injected"),
                                  {.rank = 1, .optional = group.rank() != 1});
    ASSERT_THAT(group.Barrier(), IsOk());
    absl::Notification ended;
    auto first =
        StartAsyncSave({.path = Path(),
                        .tensors = std::make_shared<const Tensors>(tensors),
                        .group = DefaultGroup().value()},
                       {.ended = [&](const absl::Status&) { ended.Notify(); }});
    ASSERT_THAT(first, IsOk());
    const auto injected =
        StatusIs(absl::StatusCode::kInternal, HasSubstr("injected"));
    // Rank 0 looks at the handle, rank 1 does not; rank 1 learns of the error
    // from a save that saves nothing.
    if (group.rank() == 0) {
      EXPECT_THAT(first->Durable(), injected);
    } else {
      ended.WaitForNotification();
    }
    auto second = SaveCheckpointAsync(Path(1), tensors);
    if (group.rank() == 0) {
      ASSERT_THAT(second, IsOk());
      EXPECT_THAT(
          second->Durable(),
          AllOf(injected, StatusIs(absl::StatusCode::kInternal,
                                   HasSubstr("a former save of the group "
                                             "failed"))));
    } else {
      EXPECT_THAT(second, injected);
    }
    auto third = SaveCheckpointAsync(Path(2), tensors);
    ASSERT_THAT(third, IsOk());
    EXPECT_THAT(third->Durable(), IsOk());
    EXPECT_THAT(FlushSaves(), IsOk());
  });
  EXPECT_THAT(CheckpointExists(Path(1)), sherd::testing::IsOkAndHolds(false));
  ExpectHolds(Path(2), 1);
}

// Whose elements are copied while the one before it fails.
TEST_F(AsyncErrorsTest, AnErrorOfAnotherRankIsNotThatOfTheNextSave) {
  const std::string files = absl::StrCat(Path(), "/shard-*");
  const FailFileOperation fault(
      "write", files, absl::ResourceExhaustedError("the disk is full"),
      {.rank = 1});
  // The last write of a shard whose room the next save then takes. After it a
  // vote is due, by which rank 0 learns of the error while it copies: so much
  // that the vote ends meanwhile.
  absl::BlockingCounter started(2);
  const CallAt written("file/write",
                       [&] {
                         started.Wait();
                         absl::SleepFor(absl::Milliseconds(1100));
                       },
                       {.nth = 153, .rank = 0, .subject = files});
  const auto make = [](int64_t rows) {
    auto tensor = ShardedTensor::Zeros(*SampleSpec(0, {rows, 1000}, 2),
                                       {rows, 1000}, {.dtype = kFloat64});
    EXPECT_THAT(tensor, IsOk());
    FillSample(*tensor, 1);
    return *tensor;
  };
  RunLocalRanks(2, [&](ProcessGroup&) {
    const Tensors two = {{"a", make(10000)}, {"b", make(50)}};
    const Tensors one = {{"c", make(9500)}};
    // On each rank 40 MB, in 153 writes, and 0.2 MB; and 38 MB.
    const AsyncSaveOptions options = {.staging_budget = 42'000'000};
    auto failing = SaveCheckpointAsync(Path(), two, nullptr, options);
    ASSERT_THAT(failing, IsOk());
    auto next = SaveCheckpointAsync(Path(1), one, nullptr, options);
    ASSERT_THAT(next, IsOk());
    started.DecrementCount();
    EXPECT_THAT(failing->Durable(),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("the disk is full")));
    EXPECT_THAT(next->Copied(), IsOk());
    EXPECT_THAT(next->Durable(), IsOk());
    EXPECT_THAT(FlushSaves(), IsOk());
  });
  EXPECT_THAT(VerifyCheckpoint(Path(1)), IsOk());
}

// Of a program that looks at no result, whose ranks learn of the error at
// different calls.
TEST_F(AsyncErrorsTest, ASaveThatOnlyReportsAnErrorIsNotReported) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const auto tensors = std::make_shared<const Tensors>(MakeTensors(2, 1));
    const FailFileOperation fault("create", "*/checkpoint0/shard-*",
                                  absl::InternalError("injected"),
                                  {.rank = 1, .optional = group.rank() != 1});
    std::optional<WriterGate> gate;
    if (group.rank() == 0) gate.emplace("create", 0, "*/checkpoint0/lease*");
    ASSERT_THAT(group.Barrier(), IsOk());
    std::array<absl::Notification, 4> ended;
    const auto start = [&](size_t i) {
      return StartAsyncSave(
                 {.path = Path(static_cast<int>(i)),
                  .tensors = tensors,
                  .group = DefaultGroup().value()},
                 {.ended = [&ended,
                            i](const absl::Status&) { ended[i].Notify(); }})
          .status();
    };
    const auto injected =
        StatusIs(absl::StatusCode::kInternal, HasSubstr("injected"));
    EXPECT_THAT(start(0), IsOk());
    if (group.rank() == 0) {
      EXPECT_THAT(start(1), IsOk());
      gate->Open();
      ended[1].WaitForNotification();
      EXPECT_THAT(start(2), injected);
    } else {
      ended[0].WaitForNotification();
      EXPECT_THAT(start(1), injected);
      ended[1].WaitForNotification();
      EXPECT_THAT(start(2), IsOk());
    }
    ended[2].WaitForNotification();
    EXPECT_THAT(start(3), IsOk());
    ended[3].WaitForNotification();
    EXPECT_THAT(FlushSaves(), IsOk());
  });
  ExpectHolds(Path(3), 1);
}

TEST_F(AsyncErrorsTest, FlushReturnsAnUnreportedErrorAndSavesBeginAnew) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const Tensors tensors = MakeTensors(2, 1);
    {
      const FailFileOperation fault("create", "*/shard-*",
                                    absl::InternalError("injected"),
                                    {.rank = 1, .optional = group.rank() != 1});
      ASSERT_THAT(group.Barrier(), IsOk());
      ASSERT_THAT(SaveCheckpointAsync(Path(), tensors), IsOk());
      EXPECT_THAT(FlushSaves(),
                  StatusIs(absl::StatusCode::kInternal, HasSubstr("injected")));
      EXPECT_THAT(FlushSaves(), IsOk());
    }
    ASSERT_THAT(SaveCheckpointAsync(Path(), tensors), IsOk());
    EXPECT_THAT(FlushSaves(), IsOk());
  });
  ExpectHolds(Path(), 1);
}

TEST_F(AsyncErrorsTest, BadArgumentsOfOneRankAreTheErrorOfAllHandles) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    Tensors tensors = MakeTensors(3, 1);
    const auto expect = [&](const AsyncSaveOptions& options,
                            absl::StatusCode code, const std::string& text) {
      auto save = SaveCheckpointAsync(Path(), tensors, nullptr, options);
      ASSERT_THAT(save, IsOk());
      EXPECT_THAT(save->Durable(), StatusIs(code, HasSubstr(text)));
      EXPECT_THAT(save->Copied().code(),
                  group.rank() == 1 ? code : absl::StatusCode::kOk)
          << text;
    };
    expect({.staging_budget = group.rank() == 1 ? -1 : 0},
           absl::StatusCode::kInvalidArgument,
           "rank 1: AsyncSaveOptions::staging_budget is -1");
    {
      const sherd::testing::FailAllocationAt fault(
          {.rank = 1, .min_bytes = 64 << 10, .optional = group.rank() != 1});
      expect({}, absl::StatusCode::kResourceExhausted, "rank 1: ");
    }
    const ShardedTensor bias = tensors.at("bias");
    if (group.rank() == 1) tensors["bias"] = ShardedTensor();
    expect({}, absl::StatusCode::kFailedPrecondition,
           "rank 1: tensor \"bias\" is not defined");
    tensors["bias"] = bias;
    auto save = SaveCheckpointAsync(Path(), tensors);
    ASSERT_THAT(save, IsOk());
    EXPECT_THAT(save->Durable(), IsOk());
  });
  ExpectHolds(Path(), 1);
}

TEST_F(AsyncErrorsTest, RanksThatDifferGetBothNames) {
  RunLocalRanks(3, [&](ProcessGroup& group) {
    Tensors tensors = MakeTensors(3, 1);
    if (group.rank() == 2) {
      tensors.emplace("more", tensors.at("bias"));
    }
    auto save = SaveCheckpointAsync(Path(), tensors);
    ASSERT_THAT(save, IsOk());
    EXPECT_THAT(save->Durable(), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("tensor \"more\"")));
  });
}

TEST_F(AsyncErrorsTest, TheEndOfAFailedGroupEndsTheSaveThatRuns) {
  absl::Notification over;
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const Tensors tensors = MakeTensors(2, 1);
    auto first = SaveCheckpointAsync(Path(), tensors);
    ASSERT_THAT(first, IsOk());
    EXPECT_THAT(first->Durable(), IsOk());
    // Rank 1 never makes this call.
    if (group.rank() == 0) {
      auto save = SaveCheckpointAsync(Path(1), tensors);
      ASSERT_THAT(save, IsOk());
      EXPECT_THAT(save->Copied(), IsOk());
      group.Abort(absl::AbortedError("the program gives up"));
      EXPECT_THAT(group.Destroy(), IsOk());
      // In a collective of the save, or before the next one.
      const absl::Status status = save->Durable();
      EXPECT_THAT(status.code(), AnyOf(absl::StatusCode::kAborted,
                                       absl::StatusCode::kFailedPrecondition));
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("the program gives up"));
      over.Notify();
    }
    over.WaitForNotification();
  });
  ExpectHolds(Path(), 1);
}

TEST_F(AsyncErrorsTest, ARankWithoutProgressIsNamedAndTheGroupIsNotDisturbed) {
  RunLocalRanks(2, [&](ProcessGroup& group) {
    const Tensors tensors = MakeTensors(2, 1);
    const AsyncSaveOptions options = {
        .save = {.timeout = absl::Milliseconds(200)}};
    ASSERT_THAT(SaveCheckpointAsync(Path(), tensors), IsOk());
    EXPECT_THAT(FlushSaves(), IsOk());
    std::optional<WriterGate> gate;
    if (group.rank() == 1) gate.emplace("create", 1, "*/shard-*");
    ASSERT_THAT(group.Barrier(), IsOk());
    auto save = SaveCheckpointAsync(Path(), tensors, nullptr, options);
    ASSERT_THAT(save, IsOk());
    if (group.rank() == 0) {
      const absl::Status status = save->Durable();
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
      EXPECT_EQ(FailedRank(status), 1) << status;
      // The program knows no other group.
      EXPECT_EQ(GetErrorInfo(status).group, group.name());
      EXPECT_THAT(std::string(status.message()),
                  ::testing::Not(HasSubstr(group.name() + "/")));
    }
    EXPECT_THAT(group.Barrier(), IsOk());
    if (group.rank() == 1) {
      gate->Open();
      EXPECT_THAT(save->Durable(), ::testing::Not(IsOk()));
    }
    ASSERT_THAT(group.Barrier(), IsOk());
    FlushSaves().IgnoreError();
    auto next = SaveCheckpointAsync(Path(1), tensors);
    ASSERT_THAT(next, IsOk());
    EXPECT_THAT(next->Durable(), IsOk());
    EXPECT_THAT(group.Barrier(), IsOk());
  });
  ExpectHolds(Path(), 1);
  ExpectHolds(Path(1), 1);
}

TEST_F(AsyncErrorsTest, AnEmptyHandleIsAnError) {
  SaveHandle none;
  EXPECT_THAT(none.Copied(), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(none.Durable(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(AsyncErrorsTest, WithoutAGroupThereIsNoSave) {
  EXPECT_THAT(SaveCheckpointAsync(Path(), Tensors()),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(FlushSaves(), StatusIs(absl::StatusCode::kFailedPrecondition));
  RunLocalRanks(1, [](ProcessGroup&) { EXPECT_THAT(FlushSaves(), IsOk()); });
}

}  // namespace
}  // namespace sherd
