// A worker's reports about itself: calls under way, in dumps of the flight
// recorder, and statistics.

#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/flight/flight_dump.h"
#include "sherd/core/comm/flight/flight_recorder.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/rpc.h"
#include "sherd/testing/kits/publications.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::internal::FlightCall;
using ::sherd::internal::FlightDump;
using ::sherd::internal::FlightGroup;
using ::sherd::internal::FlightReason;
using ::sherd::internal::FlightRecorder;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunRankThreads;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Hang {
  static constexpr absl::string_view kName = "hang";
  using Signature = absl::Status();
};

RpcOptions Options(int rank, int size, const std::shared_ptr<Store>& store) {
  RpcOptions options;
  options.rank = rank;
  options.world_size = size;
  options.store = store;
  options.workers_are_threads = true;
  return options;
}

FlightDump DumpOf(int rank) {
  return TakeFlightDump(FlightRecorder::Global(), FlightReason::kRequest, "",
                        rank);
}

std::vector<FlightCall> CallsOf(int rank) {
  for (const FlightGroup& group : DumpOf(rank).snapshot.groups) {
    if (group.info.name == "rpc" && group.calls) return *group.calls;
  }
  return {};
}

MATCHER_P5(IsCall, incoming, peer, peer_name, method, state, "") {
  return arg.incoming == incoming && arg.peer == peer &&
         arg.peer_name == peer_name && arg.method == method &&
         arg.state == state && arg.started > 0 && arg.deadline > arg.started;
}

// Without a group too.
void ExpectDumpUponSignal() {
  const std::string path = absl::StrCat(internal::FlightDirectoryOfKnobs().path,
                                        "/flight.rank-1.json");
  EXPECT_EQ(kill(getpid(), SIGUSR1), 0);
  const Deadline deadline = Deadline::After(absl::Seconds(60));
  absl::StatusOr<std::string> text = absl::NotFoundError("");
  while (!text.ok() && !deadline.HasPassed()) {
    absl::SleepFor(absl::Milliseconds(1));
    text = ReadFile(FileSystem::Posix(), path, 1 << 20);
  }
  ASSERT_THAT(text, IsOk());
  EXPECT_THAT(*text, HasSubstr("\"direction\":\"in\""));
}

TEST(RpcReportsTest, ADumpHasTheCallsOfBothEnds) {
  absl::Notification runs;
  absl::Notification go_on;
  RegisterHandler<Hang>([&] {
    runs.Notify();
    go_on.WaitForNotification();
    return absl::OkStatus();
  });
  const std::shared_ptr<Store> store = std::make_shared<HashStore>();
  RunRankThreads(2, [&](int rank) {
    const auto agent = InitRpc(Options(rank, 2, store));
    ASSERT_THAT(agent, IsOk());
    if (rank == 0) {
      EXPECT_THAT(CallsOf(0), IsEmpty());
      const Future<void> hanging = (*agent)->CallAsync<Hang>(1);
      runs.WaitForNotification();
      const std::vector<FlightCall> out = CallsOf(0);
      const std::vector<FlightCall> in = CallsOf(1);
      EXPECT_THAT(out,
                  ElementsAre(IsCall(false, 1, "worker1", "hang", "sent")));
      EXPECT_THAT(in,
                  ElementsAre(IsCall(true, 0, "worker0", "hang", "running")));
      if (!out.empty() && !in.empty()) {
        EXPECT_EQ(out[0].number, in[0].number);
      }
      ExpectDumpUponSignal();
      go_on.Notify();
      EXPECT_THAT(hanging.Wait(), IsOk());
      EXPECT_THAT(CallsOf(0), IsEmpty());
      EXPECT_THAT(CallsOf(1), IsEmpty());
    }
    EXPECT_THAT((*agent)->Shutdown(), IsOk());
    EXPECT_THAT(CallsOf(rank), IsEmpty());
  });
  UnregisterHandler<Hang>();
}

TEST(RpcReportsTest, StatisticsCountTensorsThatArePublished) {
  const auto agent = InitRpc(Options(0, 1, std::make_shared<HashStore>()));
  ASSERT_THAT(agent, IsOk());
  const auto publications = [&] {
    return (*agent)->Statistics().at(0).publications;
  };
  EXPECT_EQ(publications(), 0);
  const Publication a = testing::PublicationOf("a", *Tensor::Zeros({2}, {}));
  EXPECT_THAT((*agent)->Publish(a), IsOk());
  EXPECT_THAT(
      (*agent)->Publish(testing::PublicationOf("b", *Tensor::Zeros({2}, {}))),
      IsOk());
  EXPECT_EQ(publications(), 2);
  EXPECT_THAT((*agent)->Withdraw(a.id), IsOk());
  EXPECT_EQ(publications(), 1);
  EXPECT_THAT((*agent)->Shutdown(), IsOk());
  EXPECT_EQ(publications(), 0);
}

}  // namespace
}  // namespace sherd
