// A test program with a main() of its own, for fixtures_harness_test. Its
// argument says how wrong that main() is.

#include <string>

#include "gtest/gtest.h"
#include "sherd/core/base/knobs.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/persistent_test.h"

namespace sherd::testing {
namespace {

class OwnMainTest : public DistributedTest {
 protected:
  int world_size() const override { return 2; }
};
SHERD_DIST_TEST_F(OwnMainTest, One) { EXPECT_EQ(group().size(), 2); }
SHERD_DIST_TEST_F(OwnMainTest, Two) { EXPECT_EQ(group().size(), 2); }

class PersistentOwnMainTest : public PersistentDistributedTest {
 protected:
  int world_size() const override { return 2; }
};
SHERD_DIST_TEST_F(PersistentOwnMainTest, One) { EXPECT_EQ(group().size(), 2); }
SHERD_DIST_TEST_F(PersistentOwnMainTest, Two) { EXPECT_EQ(group().size(), 2); }

}  // namespace
}  // namespace sherd::testing

int main(int argc, char** argv) {
  std::string mode;
  for (int i = 1; i < argc; ++i) {
    if (argv[i][0] != '-') mode = argv[i];
  }
  const bool is_rank = !sherd::GetKnobOr(sherd::Knob::kRank, "").empty();
  if (mode == "returns_at_once" && is_rank) return 0;
  if (mode != "forgets_arguments") ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
