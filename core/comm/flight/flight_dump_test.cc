#include "sherd/core/comm/flight/flight_dump.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// A directory of this test alone.
std::string TestFolder() {
  const std::string path = absl::StrCat(
      ::testing::TempDir(), "/",
      ::testing::UnitTest::GetInstance()->current_test_info()->name(), "-",
      getpid());
  EXPECT_THAT(FileSystem::Posix().RemoveAll(path), IsOk());
  return path;
}

std::string Contents(const std::string& path) {
  absl::StatusOr<std::string> text =
      ReadFile(FileSystem::Posix(), path, 1 << 20);
  EXPECT_THAT(text, IsOk());
  return text.ok() ? *text : "";
}

// A dump without anything of this machine, with every kind of field.
FlightDump Example() {
  constexpr int64_t kSecond = 1'000'000'000;
  FlightDump dump = {.reason = FlightReason::kTimeout,
                     .detail = "all_reduce #3 did not end",
                     .rank = 5,
                     .pid = 4242,
                     .host = "host",
                     .boot = "boot"};
  FlightSnapshot& snapshot = dump.snapshot;
  snapshot.monotonic_ns = 100 * kSecond;
  snapshot.wall_ns = 1'700'000'000 * kSecond;
  snapshot.clock = "tsc";
  snapshot.capacity = 2048;
  snapshot.dropped = 1;
  FlightGroup alive = {.id = 1, .alive = true};
  alive.info = {.name = "default",
                .backend = "gloo",
                .rank = 1,
                .size = 2,
                .world_ranks = {4, 5}};
  alive.counters.operations[static_cast<size_t>(CollectiveOp::kBroadcast)] = {
      .calls = 1, .bytes = 64, .seconds = 0.5, .errors = 1};
  FlightGroup gone = {.id = 2, .instance = 1};
  gone.info = {.name = "odd \"name\"\xff", .backend = "local", .size = 1};
  snapshot.groups = {alive, gone};
  snapshot.entries = {{.id = 7,
                       .group = 1,
                       .state = FlightState::kFailed,
                       .status = absl::StatusCode::kUnavailable,
                       .op = CollectiveOp::kBroadcast,
                       .root = 1,
                       .bytes = 64,
                       .sequence = 2,
                       .enqueued = 60 * kSecond,
                       .started = 61 * kSecond,
                       .ended = 62 * kSecond},
                      {.id = 8,
                       .group = 1,
                       .state = FlightState::kStarted,
                       .op = CollectiveOp::kAllReduce,
                       .dtype = DType::kFloat32,
                       .reduction = ReduceOp::kSum,
                       .bytes = 4096,
                       .path = OperationPath::kEmulated,
                       .sequence = 3,
                       .enqueued = 68 * kSecond,
                       .started = 69 * kSecond,
                       .deadline = 99 * kSecond},
                      {.id = 9,
                       .group = 1,
                       .state = FlightState::kEnqueued,
                       .op = CollectiveOp::kRecv,
                       .root = 0,
                       .tag = 7,
                       .bytes = 8,
                       .sequence = 1,
                       .enqueued = 68 * kSecond,
                       .deadline = 130 * kSecond},
                      {.id = 10,
                       .group = 2,
                       .state = FlightState::kCompleted,
                       .op = CollectiveOp::kBarrier,
                       .sequence = 1,
                       .enqueued = 99 * kSecond,
                       .started = 99 * kSecond,
                       .ended = 99 * kSecond + 1}};
  return dump;
}

// The file is never edited: what was written once must be readable for ever.
TEST(FlightDumpTest, JsonIsThatOfTheGoldenFile) {
  EXPECT_EQ(FlightDumpToJson(Example()),
            Contents("core/comm/testdata/flight_dump.json"));
}

// The same of a group with a part on devices, whose second call is there.
FlightDump ExampleOnADevice() {
  FlightDump dump = Example();
  for (FlightGroup& group : dump.snapshot.groups) {
    group.info.device = "cuda:1";
    group.info.device_backend = "nccl";
  }
  dump.snapshot.entries[1].on_device = true;
  return dump;
}

TEST(FlightDumpTest, JsonOfADeviceIsThatOfTheGoldenFile) {
  EXPECT_EQ(FlightDumpToJson(ExampleOnADevice()),
            Contents("core/comm/testdata/flight_dump_device.json"));
}

// The same of RPC's workers.
FlightDump ExampleWithCalls() {
  constexpr int64_t kSecond = 1'000'000'000;
  FlightDump dump = Example();
  FlightGroup workers = {.id = 3, .alive = true};
  workers.info = {.name = "rpc", .backend = "rpc", .rank = 5, .size = 8};
  workers.calls = {{.peer = 1,
                    .peer_name = "worker1",
                    .number = 17,
                    .method = "scale",
                    .state = "sent",
                    .started = 98 * kSecond,
                    .deadline = 158 * kSecond},
                   {.incoming = true,
                    .peer = 7,
                    .peer_name = "worker7",
                    .number = 3,
                    .method = "echo",
                    .state = "running",
                    .started = 99 * kSecond}};
  dump.snapshot.groups = {workers};
  dump.snapshot.entries = {};
  return dump;
}

TEST(FlightDumpTest, JsonOfCallsIsThatOfTheGoldenFile) {
  EXPECT_EQ(FlightDumpToJson(ExampleWithCalls()),
            Contents("core/comm/testdata/flight_dump_calls.json"));
}

TEST(FlightDumpTest, CallsAreAskedForWhileTheirGroupLives) {
  FlightRecorder recorder(16);
  int asked = 0;
  const auto calls_in_a_dump = [&] {
    const FlightDump dump =
        TakeFlightDump(recorder, FlightReason::kRequest, "", 1);
    return dump.snapshot.groups.empty() || !dump.snapshot.groups[0].calls
               ? size_t{0}
               : dump.snapshot.groups[0].calls->size();
  };
  {
    GroupTag tag(recorder, {.name = "rpc", .rank = 1, .size = 2});
    EXPECT_EQ(calls_in_a_dump(), 0);
    tag.SetCalls(
        [&] { return std::vector<FlightCall>(static_cast<size_t>(++asked)); });
    EXPECT_EQ(calls_in_a_dump(), 1);
    EXPECT_EQ(calls_in_a_dump(), 2);
    tag.SetFailedRank(0);
  }
  EXPECT_EQ(calls_in_a_dump(), 0);
  EXPECT_EQ(asked, 2);
}

TEST(FlightDumpTest, StuckOperationsOnADeviceAreMarked) {
  EXPECT_EQ(DescribeStuck(ExampleOnADevice())[1],
            "group \"default\", rank 1: all_reduce #3, on cuda:1, 4096 bytes, "
            "started 31.0 s ago, deadline passed 1.0 s ago");
}

TEST(FlightDumpTest, AnEmptyDumpIsJsonToo) {
  const auto json =
      nlohmann::json::parse(FlightDumpToJson(FlightDump()), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["version"], kFlightFormatVersion);
  EXPECT_EQ(json["entries"], nlohmann::json::array());
  EXPECT_EQ(json["groups"], nlohmann::json::array());
}

TEST(FlightDumpTest, StuckOperationsComeLongestRunningFirst) {
  EXPECT_THAT(
      DescribeStuck(Example()),
      ElementsAre("group \"default\", rank 1: recv #1 from rank 0, tag 7, 8 "
                  "bytes, enqueued 32.0 s ago, deadline in 30.0 s",
                  "group \"default\", rank 1: all_reduce #3, 4096 bytes, "
                  "started 31.0 s ago, deadline passed 1.0 s ago"));
}

TEST(FlightDumpTest, ADumpHoldsOneRankOnly) {
  FlightRecorder recorder(16);
  const GroupTag zero(recorder, {.name = "g", .rank = 0, .size = 2});
  const GroupTag one(recorder, {.name = "g", .rank = 1, .size = 2});
  const GroupTag sub(recorder, {.name = "sub", .world_ranks = {1}});
  { const GroupTag gone(recorder, {.name = "gone", .rank = 1, .size = 2}); }
  for (const GroupTag* group : {&zero, &one, &sub}) {
    recorder.End(recorder.Begin(*group, {.sequence = 1}),
                 absl::StatusCode::kOk);
  }
  const FlightDump dump =
      TakeFlightDump(recorder, FlightReason::kRequest, "why", 1);
  std::vector<uint32_t> groups, of_entries;
  for (const FlightGroup& group : dump.snapshot.groups) {
    groups.push_back(group.id);
  }
  for (const FlightEntry& entry : dump.snapshot.entries) {
    of_entries.push_back(entry.group);
  }
  EXPECT_THAT(groups, ElementsAre(one.id(), sub.id()));
  EXPECT_THAT(of_entries, ElementsAre(one.id(), sub.id()));
  EXPECT_EQ(dump.detail, "why");
  EXPECT_EQ(dump.pid, getpid());
}

TEST(FlightWriterTest, ALaterDumpReplacesTheFormer) {
  const std::string folder = TestFolder();
  FlightWriter writer(FileSystem::Posix(), {.path = folder + "/a/b"}, 10);
  FlightDump dump = Example();
  const absl::StatusOr<std::string> first = writer.Write(dump);
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(*first, folder + "/a/b/flight.rank-5.json");
  dump.reason = FlightReason::kSignal;
  EXPECT_EQ(writer.Write(dump).value(), *first);
  EXPECT_THAT(Contents(*first), HasSubstr("\"reason\": \"signal\""));
  dump.rank = 6;
  EXPECT_EQ(writer.Write(dump).value(), folder + "/a/b/flight.rank-6.json");
  EXPECT_THAT(FileSystem::Posix().List(folder + "/a/b").value(),
              ElementsAre("flight.rank-5.json", "flight.rank-6.json"));
}

TEST(FlightWriterTest, TheFileOfAnotherProcessIsLeftAlone) {
  const std::string folder = TestFolder();
  FlightWriter former(FileSystem::Posix(), {.path = folder}, 10);
  FlightWriter latter(FileSystem::Posix(), {.path = folder}, 10);
  FlightDump dump = Example();
  ASSERT_THAT(former.Write(dump), IsOk());
  dump.pid = 77;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(latter.Write(dump).value(),
              folder + "/flight.rank-5.pid-77.json");
  }
  EXPECT_THAT(Contents(folder + "/flight.rank-5.json"),
              HasSubstr("\"pid\": 4242"));
}

TEST(FlightWriterTest, DumpsAreBounded) {
  const std::string folder = TestFolder();
  FlightWriter writer(FileSystem::Posix(), {.path = folder}, 2);
  EXPECT_THAT(writer.Write(Example()), IsOk());
  EXPECT_TRUE(writer.IsWanted());
  EXPECT_THAT(writer.Write(Example()), IsOk());
  EXPECT_FALSE(writer.IsWanted());
  EXPECT_THAT(writer.Write(Example()),
              StatusIs(absl::StatusCode::kCancelled, "all that it may"));
}

TEST(FlightWriterTest, NothingIsWrittenWithoutADirectory) {
  FlightWriter writer(FileSystem::Posix(), {}, 2);
  EXPECT_FALSE(writer.IsWanted());
  EXPECT_THAT(writer.Write(Example()),
              StatusIs(absl::StatusCode::kCancelled, "not wanted"));
}

TEST(FlightWriterTest, APrivateDirectoryIsForThisUserAlone) {
  const std::string folder = TestFolder();
  FlightWriter writer(FileSystem::Posix(), {.path = folder, .is_private = true},
                      10);
  ASSERT_THAT(writer.Write(Example()), IsOk());
  struct stat info;
  ASSERT_EQ(stat(folder.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST(FlightWriterTest, ALinkInThePlaceOfAPrivateDirectoryIsRefused) {
  const std::string folder = TestFolder();
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  const std::string link = folder + "/link";
  ASSERT_EQ(symlink(folder.c_str(), link.c_str()), 0);
  FlightWriter writer(FileSystem::Posix(), {.path = link, .is_private = true},
                      10);
  EXPECT_THAT(writer.Write(Example()),
              StatusIs(absl::StatusCode::kFailedPrecondition, link));
  EXPECT_THAT(FileSystem::Posix().List(folder).value(), ElementsAre("link"));
}

TEST(FlightWriterTest, AFailureLeavesNoFile) {
  const std::string folder = TestFolder();
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  // A directory where the file should be: it cannot be replaced.
  const std::string in_the_way = folder + "/flight.rank-5.pid-4242.json";
  ASSERT_EQ(mkdir(in_the_way.c_str(), 0700), 0);
  ASSERT_EQ(mkdir((folder + "/flight.rank-5.json").c_str(), 0700), 0);
  FlightWriter writer(FileSystem::Posix(), {.path = folder}, 10);
  EXPECT_FALSE(writer.Write(Example()).ok());
  EXPECT_THAT(FileSystem::Posix().List(folder).value(),
              UnorderedElementsAre("flight.rank-5.json",
                                   "flight.rank-5.pid-4242.json"));
}

TEST(FlightDirectoryTest, TheKnobDecides) {
  ASSERT_EQ(setenv("SHERD_FLIGHT_DIR", "/some/where", 1), 0);
  EXPECT_EQ(FlightDirectoryOfKnobs().path, "/some/where");
  EXPECT_FALSE(FlightDirectoryOfKnobs().is_private);
  ASSERT_EQ(setenv("SHERD_FLIGHT_DIR", "none", 1), 0);
  EXPECT_EQ(FlightDirectoryOfKnobs().path, "");
  ASSERT_EQ(unsetenv("SHERD_FLIGHT_DIR"), 0);
  ASSERT_EQ(unsetenv("TEST_TMPDIR"), 0);
  ASSERT_EQ(setenv("TMPDIR", "/elsewhere", 1), 0);
  const FlightDirectory own = FlightDirectoryOfKnobs();
  EXPECT_THAT(own.path, HasSubstr(absl::StrCat("/elsewhere/sherd-flight-",
                                               geteuid(), "-", getppid())));
  EXPECT_TRUE(own.is_private);
}

}  // namespace
}  // namespace sherd::internal
