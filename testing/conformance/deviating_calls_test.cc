// Random sequences of collectives in which one rank deviates, between
// processes: the same outcome on every backend.

#include "sherd/testing/conformance/deviating_calls.h"

#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "sherd/core/base/knobs.h"
#include "sherd/testing/conformance/conformance_case.h"
#include "sherd/testing/distributed_test.h"

namespace sherd::testing::internal {
namespace {

class DeviatingCallsTest : public DistributedTest {
 protected:
  int world_size() const override { return 3; }
};

SHERD_DIST_TEST_F(DeviatingCallsTest, EndInRightDataOrNameTheRank) {
  const std::string backend = GetKnobOr(Knob::kTestBackend, "");
  // A group costs more where a vendor's library makes it.
  const bool is_costly = backend == "mpi" || backend == "nccl";
  ConformanceRank rank = {.group = group(),
                          .small_floats_rounded_once = backend != "nccl",
                          .dies_together = backend == "mpi"};
  const absl::Status status = TryRandomSequences(rank, is_costly ? 50 : 200);
  EXPECT_TRUE(status.ok()) << status.message();
}

}  // namespace
}  // namespace sherd::testing::internal
