#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/rpc/rpc.h"
#include "sherd/testing/distributed_test.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/persistent_test.h"
#include "sherd/testing/requirements.h"
#include "sherd/testing/threaded_test.h"

// The agents of fixtures, and agents that test bodies start.

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RequiresRpc;
using ::sherd::testing::StatusIs;

constexpr absl::StatusCode kFailed = absl::StatusCode::kFailedPrecondition;

struct AddOne {
  static constexpr absl::string_view kName = "add_one";
  using Signature = absl::StatusOr<int64_t>(int64_t);
};

[[maybe_unused]] const bool registered = [] {
  RegisterHandler<AddOne>(
      [](int64_t x) -> absl::StatusOr<int64_t> { return x + 1; });
  return true;
}();

// Every worker calls every one.
void ExpectCalls(RpcAgent& agent) {
  for (const std::string& worker : agent.workers()) {
    EXPECT_THAT(agent.Call<AddOne>(worker, 41), IsOkAndHolds(42)) << worker;
  }
}

// The agent that the fixture started is the default on `rank`.
void ExpectDefaultAgent(const RemoteAccess& access, int rank, int world_size) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto agent, DefaultRpcAgent());
  EXPECT_EQ(agent.get(), &access);
  EXPECT_EQ(agent->rank(), rank);
  EXPECT_EQ(agent->name(), absl::StrCat("worker", rank));
  EXPECT_EQ(static_cast<int>(agent->workers().size()), world_size);
  ExpectCalls(*agent);
}

class ProcessesTest : public testing::DistributedTest {};

SHERD_DIST_TEST_F(ProcessesTest, TheFixturesAgentIsTheDefault,
                  WithComms{.init_rpc = true}, RequiresRpc()) {
  ExpectDefaultAgent(remote_access(), rank(), world_size());
}

SHERD_DIST_TEST_F(ProcessesTest, AfterAFailedCallTheTestEndsNormally,
                  WithComms{.init_rpc = true}) {
  EXPECT_THAT(
      (*DefaultRpcAgent())->Call<AddOne>("nobody", 1),
      StatusIs(absl::StatusCode::kInvalidArgument, "Invalid worker name"));
}

SHERD_DIST_TEST_F(ProcessesTest, WithoutCommsInitRpcFindsEverything,
                  WithoutComms{}) {
  EXPECT_THAT(DefaultRpcAgent(), StatusIs(kFailed, "has not been initialized"));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto agent, InitRpc({}));
  EXPECT_EQ(agent->rank(), rank());
  EXPECT_EQ(static_cast<int>(agent->workers().size()), world_size());
  ExpectCalls(*agent);
  EXPECT_THAT(agent->Shutdown(), IsOk());
}

// On one file, in each order of starting and of ending.
SHERD_DIST_TEST_F(ProcessesTest, GroupAndAgentShareTheFileInAnyOrder,
                  WithoutComms{}) {
  for (const bool agent_first : {true, false}) {
    for (const bool agent_ends_first : {true, false}) {
      std::shared_ptr<RpcAgent> agent;
      std::shared_ptr<ProcessGroup> group;
      if (agent_first) {
        SHERD_ASSERT_OK_AND_ASSIGN(agent, InitRpc({}));
        SHERD_ASSERT_OK_AND_ASSIGN(group, Init({}));
      } else {
        SHERD_ASSERT_OK_AND_ASSIGN(group, Init({}));
        SHERD_ASSERT_OK_AND_ASSIGN(agent, InitRpc({}));
      }
      EXPECT_EQ(agent->rank(), group->rank());
      ASSERT_THAT(group->Barrier(), IsOk());
      ExpectCalls(*agent);
      if (agent_ends_first) {
        EXPECT_THAT(agent->Shutdown(), IsOk());
        ASSERT_THAT(group->Barrier(), IsOk());
        EXPECT_THAT(group->Destroy(), IsOk());
      } else {
        EXPECT_THAT(group->Destroy(), IsOk());
        ExpectCalls(*agent);
        EXPECT_THAT(agent->Shutdown(), IsOk());
      }
    }
  }
}

SHERD_DIST_TEST_F(ProcessesTest, AnotherRankThanTheOneFoundIsTaken,
                  WithoutComms{}) {
  const int other = (rank() + 1) % world_size();
  SHERD_ASSERT_OK_AND_ASSIGN(const auto agent, InitRpc({.rank = other}));
  EXPECT_EQ(agent->rank(), other);
  EXPECT_EQ(agent->name(), absl::StrCat("worker", other));
  ExpectCalls(*agent);
  EXPECT_THAT(agent->Shutdown(), IsOk());
}

class PersistentTest : public testing::PersistentDistributedTest {};

SHERD_DIST_TEST_F(PersistentTest, TheFixturesAgentIsTheDefault,
                  WithComms{.init_rpc = true}) {
  ExpectDefaultAgent(remote_access(), rank(), world_size());
}

SHERD_DIST_TEST_F(PersistentTest, TheNextTestHasItsOwn,
                  WithComms{.init_rpc = true}) {
  ExpectDefaultAgent(remote_access(), rank(), world_size());
}

SHERD_DIST_TEST_F(PersistentTest, WithoutInitRpcThereIsNone) {
  EXPECT_THAT(DefaultRpcAgent(), StatusIs(kFailed, "has not been initialized"));
}

// Of this process, which it would outlive.
std::shared_ptr<RpcAgent>& LeftOver() {
  static auto* const agent = new std::shared_ptr<RpcAgent>;
  return *agent;
}

SHERD_DIST_TEST_F(PersistentTest, AnAgentMayBeLeftOver) {
  SHERD_ASSERT_OK_AND_ASSIGN(LeftOver(), InitRpc({}));
  ExpectCalls(*LeftOver());
}

SHERD_DIST_TEST_F(PersistentTest, AndDoesNotDisturbTheNextTest,
                  WithComms{.init_rpc = true}) {
  EXPECT_EQ(LeftOver(), nullptr);
  ExpectDefaultAgent(remote_access(), rank(), world_size());
}

class ThreadsTest : public testing::ThreadedDistributedTest {
 protected:
  RpcOptions Options() {
    RpcOptions options;
    options.rank = rank();
    options.world_size = world_size();
    options.store = shared_store();
    options.workers_are_threads = true;
    return options;
  }
};

SHERD_DIST_TEST_F(ThreadsTest, EachHasItsOwnAgent,
                  WithComms{.init_rpc = true}) {
  ExpectDefaultAgent(remote_access(), rank(), world_size());
}

SHERD_DIST_TEST_F(ThreadsTest, ABodyMayStartAGroupAndAnAgentInOneStore,
                  WithoutComms{}) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto agent, InitRpc(Options()));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto group, Init({.backend = "local",
                                                     .rank = rank(),
                                                     .world_size = world_size(),
                                                     .store = shared_store()}));
  EXPECT_EQ(*DefaultRpcAgent(), agent);
  ExpectCalls(*agent);
  EXPECT_THAT(group->Destroy(), IsOk());
  EXPECT_THAT(agent->Shutdown(), IsOk());
}

}  // namespace
}  // namespace sherd
