#include "sherd/core/base/knobs.h"

#include <cstdlib>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::Eq;
using ::testing::HasSubstr;

class KnobsTest : public ::testing::Test {
 protected:
  ~KnobsTest() override {
    unsetenv("WORLD_SIZE");
    unsetenv("SHERD_TIMEOUT");
  }
};

TEST_F(KnobsTest, TheTableIsInTheOrderOfTheEnumWithoutDuplicates) {
  std::set<std::string> names;
  for (size_t i = 0; i < AllKnobs().size(); ++i) {
    const KnobInfo& info = AllKnobs()[i];
    EXPECT_EQ(static_cast<size_t>(info.knob), i) << info.variable;
    EXPECT_TRUE(names.insert(info.variable).second) << info.variable;
    EXPECT_STRNE(info.help, "");
  }
}

TEST_F(KnobsTest, AnAbsentOrEmptyNumberIsNullopt) {
  unsetenv("WORLD_SIZE");
  EXPECT_THAT(GetIntKnob(Knob::kWorldSize, 1, 8),
              IsOkAndHolds(Eq(std::nullopt)));
  setenv("WORLD_SIZE", "", 1);
  EXPECT_THAT(GetIntKnob(Knob::kWorldSize, 1, 8),
              IsOkAndHolds(Eq(std::nullopt)));
}

TEST_F(KnobsTest, NumbersAreCheckedWithVariableAndRange) {
  setenv("WORLD_SIZE", "8", 1);
  EXPECT_THAT(GetIntKnob(Knob::kWorldSize, 1, 8), IsOkAndHolds(Eq(8)));
  for (const char* bad : {"9", "0", "-1", "4x", " ", "99999999999999999999"}) {
    setenv("WORLD_SIZE", bad, 1);
    EXPECT_THAT(
        GetIntKnob(Knob::kWorldSize, 1, 8),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("WORLD_SIZE")))
        << bad;
  }
}

TEST_F(KnobsTest, DurationsHaveUnitsOrAreSeconds) {
  for (const auto& [text, expected] : {std::pair("30s", absl::Seconds(30)),
                                       {"500ms", absl::Milliseconds(500)},
                                       {"1m30s", absl::Seconds(90)},
                                       {"2.5", absl::Seconds(2.5)}}) {
    setenv("SHERD_TIMEOUT", text, 1);
    EXPECT_THAT(GetDurationKnob(Knob::kTimeout), IsOkAndHolds(Eq(expected)))
        << text;
  }
  for (const char* bad : {"soon", "0", "-1s", "10 parsecs"}) {
    setenv("SHERD_TIMEOUT", bad, 1);
    EXPECT_THAT(GetDurationKnob(Knob::kTimeout),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("SHERD_TIMEOUT")))
        << bad;
  }
}

}  // namespace
}  // namespace sherd
