#include "sherd/testing/emulated_gpu/plan/faults.h"

#include <signal.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace sherd::testing {
namespace {

void Set(const std::string& text) {
  std::string problem;
  ASSERT_TRUE(SetFaults(text, &problem)) << problem;
}

TEST(FaultsTest, GoWrongAtTheCallThatIsNamed) {
  Set("cuMemAlloc:2:700, ncclSend:3+:hang,cuInit:*:break=719,x:1:remote");
  EXPECT_FALSE(TakeFault("cuMemAlloc"));
  EXPECT_EQ(TakeFault("cuMemAlloc")->code, 700);
  EXPECT_FALSE(TakeFault("cuMemAlloc"));
  EXPECT_FALSE(TakeFault("ncclSend"));
  EXPECT_FALSE(TakeFault("ncclSend"));
  EXPECT_EQ(TakeFault("ncclSend")->kind, GpuFault::Kind::kHang);
  EXPECT_EQ(TakeFault("ncclSend")->kind, GpuFault::Kind::kHang);
  EXPECT_EQ(TakeFault("cuInit")->kind, GpuFault::Kind::kBreak);
  EXPECT_EQ(TakeFault("cuInit")->code, 719);
  EXPECT_EQ(TakeFault("x")->word, "remote");
  EXPECT_FALSE(TakeFault("cuMemFree"));
  Set("");
  EXPECT_FALSE(TakeFault("cuInit"));
}

TEST(FaultsTest, RefusesMalformedPlansAndChangesNothing) {
  Set("a:1:5");
  for (const char* text :
       {"a", "a:1", "a:1:", ":1:5", "a:0:5", "a:x:5", "a:1:5:6",
        "a:1:break=", "a:1:break=0", "a:-1:5", "b:*:1,a"}) {
    std::string problem;
    EXPECT_FALSE(SetFaults(text, &problem)) << text;
    EXPECT_NE(problem.find("expected FUNCTION:CALL:FAULT"), std::string::npos);
  }
  EXPECT_EQ(TakeFault("a")->code, 5);
}

TEST(FaultsTest, ACallIsNamedByItsFunctionOrByHowItBegins) {
  EXPECT_TRUE(IsCallOf("cuMemAlloc", "cuMemAlloc(8)"));
  EXPECT_TRUE(IsCallOf("cuMemAlloc", "cuMemAlloc"));
  EXPECT_FALSE(IsCallOf("cuMemAlloc", "cuMemAllocFromPoolAsync(8)"));
  EXPECT_TRUE(IsCallOf("ncclSend(work 1", "ncclSend(work 1, @8)"));
  EXPECT_FALSE(IsCallOf("ncclSend(work 2", "ncclSend(work 1, @8)"));
}

TEST(FaultsTest, PlansCanLookAtArguments) {
  Set("f(8:2:700");
  const auto call = [](const char* bytes) {
    return GpuCall("f", [bytes] { return std::string(bytes); });
  };
  EXPECT_FALSE(TakeFault(call("8")));
  EXPECT_FALSE(TakeFault(call("9")));
  EXPECT_EQ(TakeFault(call("8"))->code, 700);
}

TEST(FaultsTest, WhatIsAddedCountsFromNowOnAndGoesFirst) {
  Set("f:*:1");
  EXPECT_EQ(TakeFault("f")->code, 1);
  AddFault("f", 2, 2, {GpuFault::Kind::kReturn, 2, ""});
  EXPECT_EQ(TakeFault("f")->code, 1);
  EXPECT_EQ(TakeFault("f")->code, 2);
  EXPECT_EQ(TakeFault("f")->code, 1);
  DropFaults("f");
  EXPECT_FALSE(TakeFault("f"));
}

TEST(FaultsTest, NotesCallsAndRunsWhatATestWantsInThem) {
  Set("");
  TakeFault("before");
  RecordCalls(true);
  std::vector<std::string> seen;
  OnEachCall([&](const std::string& call) {
    seen.push_back(call);
    // It may call itself.
    if (call == "f()") TakeFault({"g", [] { return "1, " + AddressText(16); }});
  });
  TakeFault("f");
  OnEachCall(nullptr);
  EXPECT_EQ(seen, (std::vector<std::string>{"f()", "g(1, @16)"}));
  EXPECT_EQ(RecordedCalls(), seen);
  RecordCalls(true);
  EXPECT_TRUE(RecordedCalls().empty());
  RecordCalls(false);
  TakeFault("f");
  EXPECT_TRUE(RecordedCalls().empty());
}

TEST(FaultsTest, RunsWhatATestWantsWhereNothingIsPlannedOrNoted) {
  Set("");
  RecordCalls(false);
  std::vector<std::string> seen;
  OnEachCall([&](const std::string& call) { seen.push_back(call); });
  TakeFault("f");
  OnEachCall(nullptr);
  TakeFault("g");
  EXPECT_EQ(seen, std::vector<std::string>{"f()"});
}

TEST(FaultsTest, DieEndsTheProcess) {
  EXPECT_EXIT(
      {
        Set("a:1:die");
        TakeFault("a");
      },
      ::testing::KilledBySignal(SIGKILL), "");
}

}  // namespace
}  // namespace sherd::testing
