// What each call returns and sends. ownership_model_test.cc checks that values
// live exactly as long as their handles, whatever happens.

#include "sherd/rpc/ownership/reference_table.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"

namespace sherd::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

using Kind = ReferenceMessage::Kind;

constexpr int kOwner = 1;
constexpr int kCreator = 0;
constexpr int kThird = 2;

class ReferenceTableTest : public ::testing::Test {
 protected:
  // Worker 0 has a value on worker 1, both know it.
  ReferenceId MakeValue() {
    const ReferenceMessage creation = *creator_.Create(kOwner);
    EXPECT_EQ(Answer(owner_, kCreator, creation), Kind::kRegistered);
    owner_.SetValue(creation.id, value_, &effects_);
    EXPECT_EQ(
        creator_
            .OnMessage(kOwner,
                       {Kind::kRegistered, creation.id, creation.sequence},
                       &effects_)
            .code(),
        absl::StatusCode::kOk);
    effects_ = {};
    return creation.id;
  }

  // The kind of the one message with which `table` answers.
  Kind Answer(ReferenceTable& table, int from,
              const ReferenceMessage& message) {
    ReferenceEffects effects;
    EXPECT_TRUE(table.OnMessage(from, message, &effects).ok());
    EXPECT_THAT(effects.messages, SizeIs(1));
    return effects.messages.empty() ? Kind::kAccepted
                                    : effects.messages[0].message.kind;
  }

  ReferenceTable creator_{kCreator};
  ReferenceTable owner_{kOwner};
  ReferenceTable third_{kThird};
  ReferenceEffects effects_;
  std::shared_ptr<void> value_ = std::make_shared<int>(7);
};

TEST_F(ReferenceTableTest, TheLastHandleReleasesTheValue) {
  const ReferenceId id = MakeValue();
  EXPECT_EQ(owner_.Find(id), value_);
  creator_.DropHandle(id, &effects_);
  ASSERT_THAT(effects_.messages, SizeIs(1));
  EXPECT_EQ(effects_.messages[0].to, kOwner);
  const ReferenceMessage release = effects_.messages[0].message;
  EXPECT_EQ(release.kind, Kind::kRelease);
  ASSERT_TRUE(owner_.OnMessage(kCreator, release, &effects_).ok());
  ASSERT_THAT(effects_.released, SizeIs(1));
  EXPECT_EQ(effects_.released[0], value_);
  EXPECT_EQ(owner_.Find(id), nullptr);
  EXPECT_TRUE(owner_.empty());
  EXPECT_TRUE(creator_.empty());
}

TEST_F(ReferenceTableTest, AValueThatArrivesAfterItsHoldersIsReleased) {
  const ReferenceMessage creation = *creator_.Create(kOwner);
  ASSERT_TRUE(owner_.OnMessage(kCreator, creation, &effects_).ok());
  EXPECT_EQ(owner_.Find(creation.id), nullptr);
  owner_.WorkerLost(kCreator, absl::UnavailableError("end of file"), &effects_);
  owner_.SetValue(creation.id, value_, &effects_);
  EXPECT_THAT(effects_.released, SizeIs(1));
  EXPECT_TRUE(owner_.empty());
}

TEST_F(ReferenceTableTest, AReceiverOfAReleasedValueGetsAnError) {
  const ReferenceId id = MakeValue();
  const uint64_t transfer = third_.Receive(kCreator, 5, {id}, &effects_);
  ASSERT_THAT(effects_.messages, SizeIs(1));
  const ReferenceMessage request = effects_.messages[0].message;
  EXPECT_EQ(request.kind, Kind::kRegister);
  EXPECT_THAT(effects_.ready, SizeIs(0));
  // The sender dies, and the owner finds out before the receiver is listed.
  owner_.WorkerLost(kCreator, absl::UnavailableError("end of file"), &effects_);
  EXPECT_EQ(Answer(owner_, kThird, request), Kind::kUnknown);
  effects_ = {};
  ASSERT_TRUE(
      third_
          .OnMessage(kOwner, {Kind::kUnknown, id, request.sequence}, &effects_)
          .ok());
  ASSERT_THAT(effects_.ready, SizeIs(1));
  EXPECT_EQ(effects_.ready[0].transfer, transfer);
  EXPECT_EQ(effects_.ready[0].status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(effects_.ready[0].status.message(),
              HasSubstr("reference 1:0:1: worker 1 no longer has this value"));
  EXPECT_TRUE(third_.empty());
}

TEST_F(ReferenceTableTest, ReferencesToALostOwnerNameIt) {
  const ReferenceId id = MakeValue();
  EXPECT_TRUE(creator_.Check(id).ok());
  creator_.WorkerLost(kOwner, absl::UnavailableError("end of file"), &effects_);
  const absl::Status status = creator_.Check(id);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(),
            "reference 1:0:1: its owner, worker 1, is lost: end of file");
  EXPECT_EQ(FailedRank(status), kOwner);
  EXPECT_EQ(creator_.Create(kOwner).status().code(),
            absl::StatusCode::kUnavailable);
  creator_.Pass(kThird, {id}, &effects_);
  ASSERT_THAT(effects_.ready, SizeIs(1));
  EXPECT_EQ(effects_.ready[0].status, status);
  creator_.DropHandle(id, &effects_);
  EXPECT_THAT(effects_.messages, SizeIs(0));
  EXPECT_TRUE(creator_.empty());
}

TEST_F(ReferenceTableTest, NothingIsSentToALostWorker) {
  const ReferenceId id = MakeValue();
  const absl::Status why = absl::UnavailableError("no heartbeat");
  creator_.WorkerLost(kThird, why, &effects_);
  creator_.Pass(kThird, {id}, &effects_);
  ASSERT_THAT(effects_.ready, SizeIs(1));
  EXPECT_EQ(effects_.ready[0].status, why);
}

TEST_F(ReferenceTableTest, ACreationThatWasNotSentIsDeadWithItsReason) {
  const ReferenceMessage creation = *creator_.Create(kOwner);
  creator_.RequestNotSent(creation.id,
                          absl::ResourceExhaustedError("too large"), &effects_);
  EXPECT_EQ(creator_.Check(creation.id),
            absl::ResourceExhaustedError("too large"));
  // No other worker can know it; a worker that claims to is refused, too.
  creator_.Receive(kThird, 5, {creation.id}, &effects_);
  ASSERT_THAT(effects_.ready, SizeIs(1));
  EXPECT_EQ(effects_.ready[0].status,
            absl::ResourceExhaustedError("too large"));
  effects_ = {};
  creator_.DropHandle(creation.id, &effects_);
  EXPECT_THAT(effects_.messages, SizeIs(0));
  EXPECT_TRUE(creator_.empty());
}

// An owner does not send this; dead references stay dead, listed ones listed.
TEST_F(ReferenceTableTest, ARequestHasOneAnswer) {
  for (const Kind first : {Kind::kRegistered, Kind::kUnknown}) {
    const Kind second =
        first == Kind::kUnknown ? Kind::kRegistered : Kind::kUnknown;
    const ReferenceMessage creation = *creator_.Create(kOwner);
    for (const Kind answer : {first, second}) {
      ASSERT_TRUE(creator_
                      .OnMessage(kOwner,
                                 {answer, creation.id, creation.sequence},
                                 &effects_)
                      .ok());
      EXPECT_EQ(creator_.Check(creation.id).ok(), first == Kind::kRegistered);
    }
  }
}

TEST_F(ReferenceTableTest, AfterReleaseAllNothingBegins) {
  const ReferenceId id = MakeValue();
  const uint64_t waiting =
      creator_.Receive(kThird, 9, {{kOwner, 2, 1}}, &effects_);
  effects_ = {};
  creator_.ReleaseAll(&effects_);
  ASSERT_THAT(effects_.ready, SizeIs(1));
  EXPECT_EQ(effects_.ready[0].transfer, waiting);
  EXPECT_EQ(effects_.ready[0].status.code(),
            absl::StatusCode::kFailedPrecondition);
  // An acceptance to the sender, and a release to the owner.
  EXPECT_THAT(effects_.messages, SizeIs(2));
  EXPECT_EQ(creator_.Check(id).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(creator_.Create(kOwner).status().code(),
            absl::StatusCode::kFailedPrecondition);
  const ReferenceMessage creation = {Kind::kCreate, {kCreator, kThird, 1}, 1};
  EXPECT_EQ(creator_.OnMessage(kThird, creation, &effects_).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(effects_.messages.back().message.kind, Kind::kUnknown);
  effects_ = {};
  creator_.DropHandle(id, &effects_);
  creator_.ReleaseAll(&effects_);
  EXPECT_THAT(effects_.messages, SizeIs(0));
}

TEST_F(ReferenceTableTest, RemainingValuesAreListedWithTheirHolders) {
  const ReferenceId id = MakeValue();
  const ReferenceMessage request = {Kind::kRegister, id, 1};
  EXPECT_EQ(Answer(owner_, kThird, request), Kind::kRegistered);
  EXPECT_EQ(owner_.ToString(), "reference 1:0:1 owned, holders 0@1 2@1\n");
  owner_.WorkerLost(kCreator, absl::UnavailableError("end of file"), &effects_);
  EXPECT_EQ(owner_.ToString(), "reference 1:0:1 owned, holders 2@1\n");
}

TEST_F(ReferenceTableTest, RefusesMessagesThatTheSenderMayNotSend) {
  const ReferenceId id = MakeValue();
  struct {
    int from;
    ReferenceMessage message;
  } cases[] = {
      {kThird, {Kind::kRegister, {kThird, 0, 1}, 1}},         // Not my value.
      {kThird, {Kind::kRelease, {kCreator, 0, 1}, 1}},        // Not my value.
      {kThird, {Kind::kRegistered, {kCreator, 1, 1}, 1}},     // Not its value.
      {kThird, {Kind::kUnknown, {kOwner, 0, 1}, 1}},          // Not its value.
      {kThird, {Kind::kCreate, {kOwner, kCreator, 9}, 1}},    // Not its number.
      {kCreator, {Kind::kCreate, {kThird, kCreator, 9}, 1}},  // Not here.
      {kCreator, {Kind::kCreate, {kOwner, kCreator, 9}, 0}},  // No number.
      {kCreator, {Kind::kCreate, id, 9}},                     // Taken.
      {kCreator, {static_cast<Kind>(77), id, 9}},             // No such kind.
  };
  const std::string before = owner_.ToString();
  for (const auto& [from, message] : cases) {
    const absl::Status status = owner_.OnMessage(from, message, &effects_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
  EXPECT_EQ(owner_.ToString(), before);
  EXPECT_THAT(effects_.messages, SizeIs(0));
}

TEST_F(ReferenceTableTest, OnlyTheReceiverEndsATransfer) {
  const ReferenceId id = MakeValue();
  const uint64_t transfer = creator_.Pass(kThird, {id}, &effects_);
  creator_.DropHandle(id, &effects_);
  const ReferenceMessage accepted = {.kind = Kind::kAccepted,
                                     .sequence = transfer};
  ASSERT_TRUE(creator_.OnMessage(kOwner, accepted, &effects_).ok());
  EXPECT_THAT(effects_.messages, SizeIs(0));
  EXPECT_FALSE(creator_.empty());
  EXPECT_EQ(Answer(creator_, kThird, accepted), Kind::kRelease);
  EXPECT_TRUE(creator_.empty());
}

}  // namespace
}  // namespace sherd::internal
