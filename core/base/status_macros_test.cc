#include "sherd/core/base/status_macros.h"

#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace sherd {
namespace {

absl::StatusOr<std::map<int, std::string>> MakeMap(int key, bool good) {
  if (!good) return absl::NotFoundError("no map");
  return std::map<int, std::string>{{key, "value"}};
}

absl::StatusOr<std::string> Find(int key, bool good) {
  SHERD_ASSIGN_OR_RETURN(std::map<int, std::string> map, MakeMap(key, good));
  return map.at(key);
}

absl::StatusOr<int> AddUp() {
  SHERD_ASSIGN_OR_RETURN(
      const auto [a, b, c],
      (absl::StatusOr<std::tuple<int, int, int>>(std::make_tuple(1, 2, 3))));
  int sum = 0;
  SHERD_ASSIGN_OR_RETURN(sum, absl::StatusOr<int>(a + b + c));
  return sum;
}

TEST(StatusMacrosTest, AssignsToATypeWithCommas) {
  EXPECT_EQ(*Find(3, true), "value");
  EXPECT_EQ(Find(3, false).status(), absl::NotFoundError("no map"));
}

TEST(StatusMacrosTest, AssignsToSeveralNamesAndToExistingVariables) {
  EXPECT_EQ(*AddUp(), 6);
}

}  // namespace
}  // namespace sherd
