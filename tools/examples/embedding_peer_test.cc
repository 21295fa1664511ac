#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/tools/sherd/shell.h"

namespace sherd {
namespace {

using ::testing::HasSubstr;

// With the first python3 of PATH: --test_env=PATH=… names another.
TEST(EmbeddingPeerTest, EqualsPyTorch) {
  const ShellResult torch = Shell("python3 -c 'import torch'");
  if (torch.exit_code != 0) {
    GTEST_SKIP() << "python3 has no torch: " << torch.output;
  }
  const ShellResult result = Shell(
      absl::StrCat("python3 tools/examples/embedding_peer.py tools/sherd/sherd "
                   "tools/examples/embedding_collection ",
                   Quoted(ShellTestFolder())));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("12 cases as PyTorch "));
}

}  // namespace
}  // namespace sherd
