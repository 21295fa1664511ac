// Failures of ranks that are threads: one is slow, or fails.

#include <ostream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "sherd/testing/conformance/conformance_case.h"
#include "sherd/testing/faults/fault_matrix.h"
#include "sherd/testing/local_ranks.h"

namespace sherd::testing::internal {
namespace {

struct LocalCase {
  absl::string_view name;
  absl::Status (*run)(ConformanceRank&, const FaultCase&);
  FaultCase fault;
};

void PrintTo(const LocalCase& local, std::ostream* out) { *out << local.name; }

class LocalFaultMatrix : public ::testing::TestWithParam<LocalCase> {};

TEST_P(LocalFaultMatrix, NamesTheRankAndEnds) {
  RunLocalRanks(3, [](ProcessGroup& group) {
    ConformanceRank rank = {.group = group, .ranks_are_threads = true};
    const absl::Status status = GetParam().run(rank, GetParam().fault);
    EXPECT_TRUE(status.ok()) << status.message();
    // No rank leaves while another one still calls.
    EXPECT_TRUE(group.Barrier().ok());
  });
}

constexpr FaultKind kSlow = FaultKind::kSlow;
constexpr FaultKind kError = FaultKind::kError;

INSTANTIATE_TEST_SUITE_P(
    Points, LocalFaultMatrix,
    ::testing::Values(
        LocalCase{"collective",
                  FaultInACollective,
                  {"comm/before_comparison", kSlow}},
        LocalCase{"collective",
                  FaultInACollective,
                  {"comm/before_comparison", kError}},
        LocalCase{
            "collective", FaultInACollective, {"comm/before_post", kSlow}},
        LocalCase{
            "collective", FaultInACollective, {"comm/before_post", kError}},
        LocalCase{"collective", FaultInACollective, {"plugin/post", kError}},
        LocalCase{"collective", FaultInACollective, {"comm/after_post", kSlow}},
        LocalCase{
            "collective", FaultInACollective, {"comm/after_post", kError}},
        LocalCase{"collective",
                  FaultInACollective,
                  {"comm/after_completion", kError}},
        LocalCase{"message", FaultInAMessage, {"comm/before_post", kSlow}},
        LocalCase{"message", FaultInAMessage, {"comm/before_post", kError}},
        LocalCase{"message", FaultInAMessage, {"plugin/post", kError}},
        LocalCase{"message", FaultInAMessage, {"comm/after_post", kError}},
        LocalCase{
            "message", FaultInAMessage, {"comm/after_completion", kError}},
        LocalCase{"new_group", FaultInANewGroup, {"comm/new_group", kSlow}},
        LocalCase{"new_group", FaultInANewGroup, {"comm/new_group", kError}},
        LocalCase{
            "new_group", FaultInANewGroup, {"comm/before_connecting", kError}},
        LocalCase{
            "new_group", FaultInANewGroup, {"comm/after_connecting", kError}},
        LocalCase{"end", FaultAtTheEnd, {"comm/destroy", kSlow}},
        LocalCase{"end", FaultAtTheEnd, {"comm/abort", kSlow}}),
    [](const auto& info) {
      return absl::StrCat(info.param.name, "_", Name(info.param.fault));
    });

}  // namespace
}  // namespace sherd::testing::internal
