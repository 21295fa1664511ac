#include "sherd/backends/shm/waiting.h"

#include <time.h>

#include <cstdint>
#include <memory>

#include "gtest/gtest.h"
#include "sherd/backends/shm/segment.h"

namespace sherd::internal {
namespace {

int64_t InTenSeconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t{now.tv_sec} + 10) * 1'000'000'000 + now.tv_nsec;
}

class ShmWaitingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(segment_.Create(2, /*nonce=*/1, &error_), SHERD_OK);
    waiting_ = std::make_unique<ShmWaiting>(segment_, 0,
                                            /*yields_at_once=*/true);
  }

  // Whether rank 0 is about to sleep, which is the last time it looks.
  bool IsAboutToSleep() { return segment_.rank(1).sleepers.load() != 0; }

  ShmSegment segment_;
  std::unique_ptr<ShmWaiting> waiting_;
  sherd_error_v0 error_ = {};
};

TEST_F(ShmWaitingTest, AMessageTakenAtTheLastCheckBeforeSleepIsNotLost) {
  int taken = 0;
  const auto take = [&] {
    if (taken > 0 || !IsAboutToSleep()) return false;
    ++taken;
    return true;
  };
  EXPECT_EQ(waiting_->Await(1, {InTenSeconds(), 0}, take, &error_), SHERD_OK);
  EXPECT_EQ(taken, 1);
}

TEST_F(ShmWaitingTest, AMessageTakenDuringTheOwnFailureIsNotLost) {
  int taken = 0;
  const auto take = [&] {
    if (taken > 0 || !IsAboutToSleep()) return false;
    ++taken;
    waiting_->Seal({.kind = ShmFate::kAborted});
    return true;
  };
  EXPECT_EQ(waiting_->Await(1, {InTenSeconds(), 0}, take, &error_), SHERD_OK);
  EXPECT_EQ(waiting_->Await(
                1, {InTenSeconds(), 0}, [] { return false; }, &error_),
            SHERD_ABORTED);
}

}  // namespace
}  // namespace sherd::internal
