#include "sherd/core/base/fingerprint.h"

#include "gtest/gtest.h"

namespace sherd {
namespace {

TEST(FingerprintTest, IsTheSameInEveryBuild) {
  EXPECT_EQ(Fingerprint().value(), 0xcbf29ce484222325u);
  // FNV-1a of eight zero bytes.
  EXPECT_EQ(Fingerprint().Add(int64_t{0}).value(), 0xa8c7f832281a39c5u);
}

TEST(FingerprintTest, KeepsNeighbouringStringsApart) {
  EXPECT_NE(Fingerprint().Add("ab").Add("c").value(),
            Fingerprint().Add("a").Add("bc").value());
}

}  // namespace
}  // namespace sherd
