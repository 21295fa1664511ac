// Each error that the factories of RPC document, and no other.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/rpc/rpc.h"
#include "sherd/testing/kits/contract_cards.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::ExpectCardsHold;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunRankThreads;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kPrecondition =
    absl::StatusCode::kFailedPrecondition;

using Edit = std::function<void(RpcOptions& options)>;

std::string In(const char* header, const char* phrase) {
  return std::string("rpc/") + header + ": " + phrase;
}

// The error of rank 0 of `n` workers; `edit` may look at the rank.
std::function<absl::Status()> InitOf(int n, const Edit& edit) {
  return [=] {
    const auto store = std::make_shared<HashStore>();
    absl::Status status;
    RunRankThreads(n, [&](int rank) {
      RpcOptions options;
      options.rank = rank;
      options.world_size = n;
      options.store = store;
      options.workers_are_threads = true;
      edit(options);
      const absl::Status own = InitRpc(options).status();
      if (rank == 0) status = own;
    });
    return status;
  };
}

TEST(RpcFactoryErrorsTest, OfInitRpc) {
  ExpectCardsHold({
      {"InitRpc",
       {In("rpc.h",
           "Joins the other workers, and makes the agent the default")},
       {{"no timeout", kInvalid,
         InitOf(1,
                [](RpcOptions& options) {
                  options.timeout = absl::ZeroDuration();
                })},
        {"a rank outside of the world", kInvalid,
         InitOf(1, [](RpcOptions& options) { options.rank = 1; })},
        {"not a name", kInvalid,
         InitOf(1, [](RpcOptions& options) { options.name = "two words"; })},
        {"no such transport", kInvalid,
         InitOf(1,
                [](RpcOptions& options) { options.transports = {"pigeon"}; })},
        {"a heartbeat that is longer than the patience", kInvalid,
         InitOf(1,
                [](RpcOptions& options) {
                  options.heartbeat_timeout = absl::Milliseconds(1);
                })},
        {"a device map of no worker", kInvalid,
         InitOf(2,
                [](RpcOptions& options) {
                  options.device_maps["nobody"] = {{"cuda:0", "cuda:0"}};
                })},
        {"two devices on one", kInvalid,
         InitOf(2,
                [](RpcOptions& options) {
                  options.device_maps["worker1"] = {{"cuda:0", "cuda:0"},
                                                    {"cuda:1", "cuda:0"}};
                })},
        {"RPC already", kPrecondition,
         [] {
           absl::Status status;
           RunRankThreads(1, [&](int) {
             RpcOptions options;
             options.rank = 0;
             options.world_size = 1;
             options.store = std::make_shared<HashStore>();
             options.workers_are_threads = true;
             const auto agent = InitRpc(options);
             ASSERT_THAT(agent, IsOk());
             status = InitRpc(options).status();
             EXPECT_THAT((*agent)->Shutdown(), IsOk());
           });
           return status;
         }},
        {"no transport in common", kPrecondition,
         InitOf(2,
                [](RpcOptions& options) {
                  options.transports = {options.rank == 0 ? "unix" : "tcp"};
                })},
        {"a name twice", absl::StatusCode::kAlreadyExists,
         InitOf(2, [](RpcOptions& options) { options.name = "same"; })},
        {"a worker that does not come", absl::StatusCode::kDeadlineExceeded,
         InitOf(1,
                [](RpcOptions& options) {
                  options.world_size = 2;
                  options.timeout = absl::Milliseconds(50);
                })},
        {"another secret: see links_test", absl::StatusCode::kPermissionDenied,
         nullptr},
        {"a worker that fails: see directory_test",
         absl::StatusCode::kUnavailable, nullptr},
        {"no descriptors: see bad_input_test",
         absl::StatusCode::kResourceExhausted, nullptr}}},
      {"DefaultRpcAgent",
       {In("rpc.h", "The agent that InitRpc or a test's fixture started")},
       {{"none", kPrecondition, [] { return DefaultRpcAgent().status(); }}}},
  });
}

}  // namespace
}  // namespace sherd
