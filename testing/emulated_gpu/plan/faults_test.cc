#include "sherd/testing/emulated_gpu/plan/faults.h"

#include <signal.h>

#include <string>

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
  EXPECT_EQ(TakeFault("ncclSend")->kind, Fault::Kind::kHang);
  EXPECT_EQ(TakeFault("ncclSend")->kind, Fault::Kind::kHang);
  EXPECT_EQ(TakeFault("cuInit")->kind, Fault::Kind::kBreak);
  EXPECT_EQ(TakeFault("cuInit")->code, 719);
  EXPECT_EQ(TakeFault("x")->word, "remote");
  EXPECT_FALSE(TakeFault("cuMemFree"));
  Set("");
  EXPECT_FALSE(TakeFault("cuInit"));
}

TEST(FaultsTest, RefusesWhatIsNotUnderstoodAndChangesNothing) {
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
