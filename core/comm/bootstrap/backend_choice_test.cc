#include "sherd/core/comm/bootstrap/backend_choice.h"

#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

TEST(BackendChoiceTest, OneNameServesAllDevices) {
  for (const char* text : {"gloo", "GLOO", " Gloo "}) {
    const auto choice = BackendChoice::Parse(text);
    ASSERT_THAT(choice, IsOk());
    EXPECT_EQ(choice->cpu, "gloo");
    EXPECT_EQ(choice->cuda, "");
    EXPECT_EQ(choice->text, "gloo");
  }
}

TEST(BackendChoiceTest, PairsAreReadInAnyOrder) {
  for (const char* text :
       {"cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo", "CPU:Gloo , cuda:NCCL"}) {
    const auto choice = BackendChoice::Parse(text);
    ASSERT_THAT(choice, IsOk()) << text;
    EXPECT_EQ(choice->cpu, "gloo");
    EXPECT_EQ(choice->cuda, "nccl");
    EXPECT_EQ(choice->text, "cpu:gloo,cuda:nccl");
  }
  const auto cpu_only = BackendChoice::Parse("cpu:auto");
  ASSERT_THAT(cpu_only, IsOk());
  EXPECT_EQ(cpu_only->cpu, "auto");
  EXPECT_EQ(cpu_only->text, "auto");
}

TEST(BackendChoiceTest, NcclAloneHasAHostPartToo) {
  const auto choice = BackendChoice::Parse("NCCL");
  ASSERT_THAT(choice, IsOk());
  EXPECT_EQ(choice->cpu, "auto");
  EXPECT_EQ(choice->cuda, "nccl");
  EXPECT_EQ(choice->text, "cpu:auto,cuda:nccl");
}

TEST(BackendChoiceTest, RejectsEverythingElse) {
  for (const auto& [text, words] :
       {std::pair("", "is empty"),
        {" ", "is empty"},
        {"gloo,nccl", "Invalid device:backend pairing: \"gloo\""},
        {"cpu:gloo,", "Invalid device:backend pairing: \"\""},
        {"cpu:", "Invalid device:backend pairing: \"cpu:\""},
        {":gloo", "Invalid device:backend pairing: \":gloo\""},
        {"cpu:gloo:0", "Invalid device:backend pairing: \"cpu:gloo:0\""},
        {"cpu:gloo,xpu:ccl", "expected the device cpu or cuda"},
        {"cpu:gloo,cpu:mpi", "Duplicate device type cpu"},
        {"cuda:nccl", "has no backend for cpu"},
        {"cpu:gloo,cuda:auto", "auto is for cpu"}}) {
    EXPECT_THAT(BackendChoice::Parse(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words)))
        << text;
  }
}

}  // namespace
}  // namespace sherd
