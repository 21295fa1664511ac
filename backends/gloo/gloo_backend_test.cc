#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/conformance.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

class GlooBackendTest : public sherd::testing::DistributedTest {};

SHERD_DIST_TEST_F(GlooBackendTest, Conforms) {
  EXPECT_EQ(group().backend().name, "gloo");
  CheckBarrier(group());
  CheckBroadcast(group());
  CheckAllGather(group());
  CheckAllToAllV(group());
  CheckOneSidedAllToAllV(group());
  CheckManyInFlight(group());
}

}  // namespace
}  // namespace sherd
