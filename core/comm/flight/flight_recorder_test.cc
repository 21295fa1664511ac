#include "sherd/core/comm/flight/flight_recorder.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sherd::internal {
namespace {

using ::testing::ElementsAre;

Collective Call(uint64_t sequence) {
  return {.op = CollectiveOp::kBroadcast,
          .root = 0,
          .bytes = 10 * sequence,
          .sequence = sequence};
}

std::vector<uint64_t> Sequences(const FlightSnapshot& snapshot) {
  std::vector<uint64_t> sequences;
  for (const FlightEntry& entry : snapshot.entries) {
    sequences.push_back(entry.sequence);
  }
  return sequences;
}

TEST(FlightRecorderTest, AnEntryHoldsAllOfItsCall) {
  FlightRecorder recorder(16);
  const GroupTag group(recorder, {.name = "g",
                                  .backend = "local",
                                  .rank = 1,
                                  .size = 2,
                                  .world_ranks = {3, 5}});
  const Deadline deadline = Deadline::After(absl::Seconds(7));
  const FlightTicket ticket = recorder.Begin(group,
                                             {.op = CollectiveOp::kReduce,
                                              .root = 1,
                                              .bytes = uint64_t{1} << 40,
                                              .dtype = DType::kBFloat16,
                                              .reduction = ReduceOp::kMax,
                                              .tag = -4,
                                              .sequence = 12345678901,
                                              .deadline = deadline},
                                             OperationPath::kEmulated,
                                             /*started=*/false);
  FlightSnapshot snapshot = recorder.Snapshot();
  ASSERT_EQ(snapshot.entries.size(), 1u);
  FlightEntry entry = snapshot.entries[0];
  EXPECT_EQ(entry.group, group.id());
  EXPECT_EQ(entry.state, FlightState::kEnqueued);
  EXPECT_EQ(entry.op, CollectiveOp::kReduce);
  EXPECT_EQ(entry.dtype, DType::kBFloat16);
  EXPECT_EQ(entry.reduction, ReduceOp::kMax);
  EXPECT_EQ(entry.root, 1);
  EXPECT_EQ(entry.tag, -4);
  EXPECT_EQ(entry.bytes, uint64_t{1} << 40);
  EXPECT_EQ(entry.path, OperationPath::kEmulated);
  EXPECT_EQ(entry.sequence, 12345678901u);
  EXPECT_EQ(entry.deadline, deadline.when().time_since_epoch().count());
  EXPECT_FALSE(entry.started.has_value());
  EXPECT_FALSE(entry.ended.has_value());
  ASSERT_EQ(snapshot.groups.size(), 1u);
  EXPECT_EQ(snapshot.groups[0].info.world_rank(), 5);

  recorder.MarkStarted(ticket);
  entry = recorder.Snapshot().entries.at(0);
  EXPECT_EQ(entry.state, FlightState::kStarted);
  ASSERT_TRUE(entry.started.has_value());
  EXPECT_GE(*entry.started, entry.enqueued);

  recorder.End(ticket, absl::StatusCode::kUnavailable);
  snapshot = recorder.Snapshot();
  entry = snapshot.entries.at(0);
  EXPECT_EQ(entry.state, FlightState::kFailed);
  EXPECT_EQ(entry.status, absl::StatusCode::kUnavailable);
  ASSERT_TRUE(entry.ended.has_value());
  EXPECT_GE(*entry.ended, *entry.started);
  EXPECT_LE(*entry.ended, snapshot.monotonic_ns + 1'000'000);
  EXPECT_EQ(group.counters().Of(CollectiveOp::kReduce).errors, 1u);
  EXPECT_EQ(group.counters().Of(CollectiveOp::kReduce).bytes,
            uint64_t{1} << 40);
}

TEST(FlightRecorderTest, FieldsThatACallDoesNotHaveStayUnset) {
  FlightRecorder recorder(16);
  const GroupTag group(recorder, {.name = "g"});
  recorder.End(recorder.Begin(group, {}), absl::StatusCode::kOk);
  const FlightEntry entry = recorder.Snapshot().entries.at(0);
  EXPECT_FALSE(entry.dtype.has_value());
  EXPECT_FALSE(entry.reduction.has_value());
  EXPECT_FALSE(entry.deadline.has_value());
  EXPECT_EQ(entry.root, -1);
  EXPECT_EQ(entry.state, FlightState::kCompleted);
}

TEST(FlightRecorderTest, AnEntryHoldsTheFormAndTheTypeOfElements) {
  FlightRecorder recorder(16);
  const GroupTag group(recorder, {.name = "g", .size = 2});
  const std::byte memory[12] = {};
  const ConstBytes sends[] = {{memory, 4}, {memory + 4, 8}};
  const Collective calls[] = {{.op = CollectiveOp::kAllToAllV,
                               .bytes = 6,
                               .dtype = DType::kInt16,
                               .typed = true,
                               .even = true},
                              {.op = CollectiveOp::kReduceScatter,
                               .bytes = 8,
                               .sends = sends,
                               .dtype = DType::kFloat32}};
  for (const Collective& call : calls) {
    recorder.End(recorder.Begin(group, call, OperationPath::kEmulated),
                 absl::StatusCode::kOk);
  }
  const std::vector<FlightEntry> entries = recorder.Snapshot().entries;
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_TRUE(entries[0].is_even);
  EXPECT_EQ(entries[0].dtype, DType::kInt16);
  EXPECT_FALSE(entries[0].reduction.has_value());
  EXPECT_EQ(entries[0].bytes, 6u);
  EXPECT_EQ(entries[0].path, OperationPath::kEmulated);
  EXPECT_FALSE(entries[1].is_even);
  // All that is sent: the same on all ranks.
  EXPECT_EQ(entries[1].bytes, 12u);
}

TEST(FlightRecorderTest, TheRingKeepsTheLastEntriesInOrder) {
  FlightRecorder recorder(3);
  ASSERT_EQ(recorder.capacity(), 4u);
  const GroupTag group(recorder, {.name = "g"});
  for (uint64_t i = 1; i <= 11; ++i) {
    recorder.End(recorder.Begin(group, Call(i)), absl::StatusCode::kOk);
  }
  EXPECT_THAT(Sequences(recorder.Snapshot()), ElementsAre(8, 9, 10, 11));
  EXPECT_EQ(group.counters().Total().calls, 11u);
}

TEST(FlightRecorderTest, AnOutstandingOperationIsNeverOverwritten) {
  FlightRecorder recorder(4);
  const GroupTag group(recorder, {.name = "g"});
  const FlightTicket stuck = recorder.Begin(group, Call(1));
  for (uint64_t i = 2; i <= 100; ++i) {
    recorder.End(recorder.Begin(group, Call(i)), absl::StatusCode::kOk);
  }
  EXPECT_THAT(Sequences(recorder.Snapshot()), ElementsAre(1, 98, 99, 100));
  recorder.End(stuck, absl::StatusCode::kOk);
  recorder.End(recorder.Begin(group, Call(101)), absl::StatusCode::kOk);
  recorder.End(recorder.Begin(group, Call(102)), absl::StatusCode::kOk);
  EXPECT_THAT(Sequences(recorder.Snapshot()), ElementsAre(99, 100, 101, 102));
}

TEST(FlightRecorderTest, AFullRingCountsDroppedEntriesAndRecovers) {
  FlightRecorder recorder(2);
  const GroupTag group(recorder, {.name = "g"});
  std::vector<FlightTicket> tickets;
  for (uint64_t i = 1; i <= 5; ++i) {
    tickets.push_back(recorder.Begin(group, Call(i)));
  }
  EXPECT_THAT(Sequences(recorder.Snapshot()), ElementsAre(1, 2));
  EXPECT_EQ(recorder.Snapshot().dropped, 3u);
  for (const FlightTicket& ticket : tickets) {
    recorder.MarkStarted(ticket);
    recorder.End(ticket, absl::StatusCode::kOk);
  }
  EXPECT_EQ(group.counters().Total().calls, 5u);
  recorder.End(recorder.Begin(group, Call(6)), absl::StatusCode::kOk);
  EXPECT_THAT(Sequences(recorder.Snapshot()), ::testing::Contains(6));
}

TEST(FlightRecorderTest, ATicketThatWasNeverBegunMayEnd) {
  FlightRecorder recorder(2);
  recorder.MarkStarted(FlightTicket());
  recorder.End(FlightTicket(), absl::StatusCode::kOk);
  EXPECT_TRUE(recorder.Snapshot().entries.empty());
}

TEST(FlightRecorderTest, VisitSeesOutstandingOperationsOnly) {
  FlightRecorder recorder(8);
  const GroupTag group(recorder, {.name = "g"});
  const FlightTicket first = recorder.Begin(group, Call(1));
  const FlightTicket second = recorder.Begin(group, Call(2));
  recorder.End(first, absl::StatusCode::kOk);
  std::vector<uint64_t> seen;
  recorder.VisitOutstanding(
      [&](const FlightEntry& entry) { seen.push_back(entry.sequence); });
  EXPECT_THAT(seen, ElementsAre(2));
  recorder.End(second, absl::StatusCode::kOk);
}

TEST(FlightRecorderTest, AGroupThatIsDestroyedEndsItsOperations) {
  FlightRecorder recorder(8);
  const GroupTag other(recorder, {.name = "other", .rank = 1, .size = 3});
  const FlightTicket running = recorder.Begin(other, Call(9));
  {
    const GroupTag group(recorder, {.name = "g"});
    (void)recorder.Begin(group, Call(1));
    recorder.End(recorder.Begin(group, Call(2)), absl::StatusCode::kOk);
  }
  const FlightSnapshot snapshot = recorder.Snapshot();
  ASSERT_EQ(snapshot.entries.size(), 3u);
  EXPECT_EQ(snapshot.entries[0].state, FlightState::kStarted);
  EXPECT_EQ(snapshot.entries[1].state, FlightState::kFailed);
  EXPECT_EQ(snapshot.entries[1].status, absl::StatusCode::kCancelled);
  EXPECT_EQ(snapshot.entries[2].state, FlightState::kCompleted);
  ASSERT_EQ(snapshot.groups.size(), 2u);
  EXPECT_TRUE(snapshot.groups[0].alive);
  EXPECT_FALSE(snapshot.groups[1].alive);
  EXPECT_EQ(snapshot.groups[1].info.name, "g");
  EXPECT_THAT(recorder.LiveWorldRanks(), ElementsAre(1));
  recorder.End(running, absl::StatusCode::kOk);
}

TEST(FlightRecorderTest, GroupsOfOneNameAreCountedPerRank) {
  FlightRecorder recorder(8);
  const GroupTag a0(recorder, {.name = "a", .rank = 0, .size = 2});
  const GroupTag a1(recorder, {.name = "a", .rank = 1, .size = 2});
  const GroupTag again(recorder, {.name = "a", .rank = 0, .size = 2});
  const FlightSnapshot snapshot = recorder.Snapshot();
  EXPECT_EQ(snapshot.groups.at(0).instance, 0u);
  EXPECT_EQ(snapshot.groups.at(1).instance, 0u);
  EXPECT_EQ(snapshot.groups.at(2).instance, 1u);
}

TEST(FlightRecorderTest, MemoryOfDestroyedGroupsIsBounded) {
  FlightRecorder recorder(4);
  for (int i = 0; i < 100; ++i) {
    const GroupTag group(recorder, {.name = std::to_string(i)});
  }
  EXPECT_EQ(recorder.Snapshot().groups.size(), 4u);
}

// Every field of an entry follows from its sequence number, so that a mixture
// of two entries shows. For ThreadSanitizer, too.
TEST(FlightRecorderTest, ASnapshotNeverMixesEntries) {
  constexpr int kWriters = 3;
  FlightRecorder recorder(8);
  std::atomic<int> running = kWriters;
  std::vector<std::thread> writers;
  for (int t = 0; t < kWriters; ++t) {
    writers.emplace_back([&, t] {
      const GroupTag group(recorder,
                           {.name = "g", .rank = t, .size = kWriters});
      for (uint64_t i = 1; i <= 30'000; ++i) {
        const FlightTicket ticket =
            recorder.Begin(group,
                           {.op = static_cast<CollectiveOp>(i % 12),
                            .root = static_cast<int>(i % 1000),
                            .bytes = 7 * i,
                            .dtype = static_cast<DType>(i % 17),
                            .reduction = static_cast<ReduceOp>(i % 8),
                            .tag = static_cast<int64_t>(3 * i),
                            .sequence = i},
                           OperationPath::kNative, i % 2 == 0);
        recorder.MarkStarted(ticket);
        recorder.End(ticket, static_cast<absl::StatusCode>(i % 5));
      }
      EXPECT_EQ(group.counters().Total().calls, 30'000u);
      running.fetch_sub(1);
    });
  }
  size_t checked = 0;
  while (running.load() > 0) {
    const FlightSnapshot snapshot = recorder.Snapshot();
    for (const FlightEntry& entry : snapshot.entries) {
      const uint64_t i = entry.sequence;
      ASSERT_EQ(static_cast<uint64_t>(entry.op), i % 12);
      ASSERT_EQ(entry.dtype.has_value(), IsReduction(entry.op));
      if (entry.dtype) {
        ASSERT_EQ(static_cast<uint64_t>(*entry.dtype), i % 17);
        ASSERT_EQ(static_cast<uint64_t>(entry.reduction.value()), i % 8);
      }
      ASSERT_EQ(entry.root,
                HasRoot(entry.op) ? static_cast<int>(i % 1000) : -1);
      ASSERT_EQ(entry.tag, static_cast<int64_t>(3 * i));
      ASSERT_EQ(entry.bytes, 7 * i);
      if (!entry.outstanding()) {
        ASSERT_EQ(static_cast<uint64_t>(entry.status), i % 5);
        ASSERT_GE(*entry.ended, *entry.started);
      }
      ++checked;
    }
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_GT(checked, 0u);
}

}  // namespace
}  // namespace sherd::internal
