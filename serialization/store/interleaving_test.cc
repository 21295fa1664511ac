// Operations of several processes on one directory in an object store, in every
// order of their steps: each operation of the store is one. Some of the tests
// bound how often a process that could go on makes way for another.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/kits/forwarding_store.h"
#include "sherd/serialization/kits/memory_store.h"
#include "sherd/serialization/kits/stepped_stores.h"
#include "sherd/serialization/store.h"
#include "sherd/serialization/store/directory_index.h"
#include "sherd/serialization/store/index_table.h"
#include "sherd/serialization/store/store_files.h"
#include "sherd/serialization/wire/little_endian.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::IsOkAndHolds;
using sherd::testing::StatusIs;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Actor = SteppedActors::Actor;

constexpr char kRoot[] = "test:x";
constexpr int kAnyNumber = 1 << 30;

std::string In(absl::string_view name) {
  return absl::StrCat(kRoot, "/", name);
}

// Closed, so that it may be renamed.
absl::Status Write(StoreFiles& files, const std::string& name,
                   absl::string_view bytes) {
  SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                         files.Create(In(name)));
  SHERD_RETURN_IF_ERROR(file->WriteAt(0, AsBytes(bytes)));
  return file->Close();
}

absl::StatusOr<std::string> Read(StoreFiles& files, const std::string& name) {
  return ReadFile(files, In(name), 1000);
}

std::unique_ptr<CheckpointStore> NewStore() {
  return std::make_unique<MemoryStore>();
}

absl::Status AddName(DirectoryIndex& index, const std::string& name) {
  return index.Update([&](IndexTable& table) {
    table.names[name] = absl::StrCat(name, "-object");
    return absl::OkStatus();
  });
}

TEST(InterleavingTest, EachOperationOnTheIndexCountsOnce) {
  const int64_t runs = SteppedActors::RunAll(
      NewStore,
      [](CheckpointStore&) {
        std::vector<Actor> actors;
        for (const char* name : {"a.sherd", "b.sherd"}) {
          actors.push_back([name](CheckpointStore& store) {
            DirectoryIndex index(store, kRoot);
            EXPECT_THAT(AddName(index, name), IsOk());
          });
        }
        return actors;
      },
      [](CheckpointStore& store) {
        DirectoryIndex index(store, kRoot);
        SHERD_ASSERT_OK_AND_ASSIGN(const IndexTable table, index.Read());
        EXPECT_EQ(table.number, 2u);
        EXPECT_THAT(table.names, SizeIs(2));
      },
      kAnyNumber);
  EXPECT_GT(runs, 20);
}

TEST(InterleavingTest, ThreeThatChangeTheIndexTwiceEach) {
  SteppedActors::RunAll(
      NewStore,
      [](CheckpointStore&) {
        std::vector<Actor> actors;
        for (const char* name : {"a", "b", "c"}) {
          actors.push_back([name](CheckpointStore& store) {
            DirectoryIndex index(store, kRoot);
            EXPECT_THAT(AddName(index, absl::StrCat(name, "1.sherd")), IsOk());
            EXPECT_THAT(AddName(index, absl::StrCat(name, "2.sherd")), IsOk());
          });
        }
        return actors;
      },
      [](CheckpointStore& store) {
        DirectoryIndex index(store, kRoot);
        SHERD_ASSERT_OK_AND_ASSIGN(const IndexTable table, index.Read());
        EXPECT_EQ(table.number, 6u);
        EXPECT_THAT(table.names, SizeIs(6));
      },
      /*max_switches=*/2);
}

// One sleeps before each of its steps in turn, while another one changes the
// directory so often that the table it has read, and that which it is about to
// put, are gone.
TEST(InterleavingTest, OneThatSleepsFindsOutWhetherItsOperationCounts) {
  constexpr uint64_t kKept = DirectoryIndex::kKeptTables;
  for (const uint64_t others :
       {uint64_t{1}, kKept - 1, kKept, kKept + 1, kKept + 2, kIndexHistory - 1,
        kIndexHistory, kIndexHistory + 1, uint64_t{2} * kIndexHistory}) {
    int unknown = 0;
    // Of the first run all steps are counted.
    for (size_t sleeps_at = 0, steps = 1; sleeps_at < steps; ++sleeps_at) {
      SCOPED_TRACE(absl::StrCat(others, " others, at step ", sleeps_at));
      MemoryStore store;
      DirectoryIndex setup(store, kRoot);
      ASSERT_THAT(AddName(setup, "first.sherd"), IsOk());
      absl::Status status;
      size_t step = 0;
      SteppedActors::Run(
          store,
          {[&](CheckpointStore& view) {
             DirectoryIndex index(view, kRoot);
             status = AddName(index, "sleeper.sherd");
           },
           [&](CheckpointStore& view) {
             DirectoryIndex index(view, kRoot);
             for (uint64_t i = 0; i < others; ++i) {
               ASSERT_THAT(AddName(index, absl::StrCat(i, ".sherd")), IsOk());
             }
           }},
          [&](const std::vector<size_t>& ready) -> size_t {
            const bool both = ready.size() == 2;
            if (both && step == sleeps_at) return 1;
            if (ready[0] == 0) ++step;
            return 0;
          });
      steps = std::max(steps, step);
      SHERD_ASSERT_OK_AND_ASSIGN(const IndexTable table, setup.Read());
      const bool counts = table.names.contains("sleeper.sherd");
      if (absl::IsUnknown(status)) {
        ++unknown;
        EXPECT_TRUE(others >= kIndexHistory);
      } else {
        EXPECT_THAT(status, IsOk());
        EXPECT_TRUE(counts);
      }
      EXPECT_THAT(table.names, SizeIs(1 + others + (counts ? 1 : 0)));
      EXPECT_EQ(table.number, 1 + others + (counts ? 1 : 0));
      // What it put in vain goes with the next operation.
      ASSERT_THAT(AddName(setup, "last.sherd"), IsOk());
      EXPECT_THAT(store.List("index-"),
                  IsOkAndHolds(SizeIs(std::min(table.number + 1, kKept))));
    }
    EXPECT_EQ(unknown > 0, others >= kIndexHistory) << others;
  }
}

TEST(InterleavingTest, OfARenameAndARemovalOfOneFileOneSucceeds) {
  absl::Status renamed, removed;
  std::set<bool> seen;
  const int64_t runs = SteppedActors::RunAll(
      NewStore,
      [&](CheckpointStore& store) {
        StoreFiles files(store, kRoot);
        EXPECT_THAT(Write(files, "a.tmp", "a"), IsOk());
        return std::vector<Actor>{
            [&](CheckpointStore& view) {
              renamed =
                  StoreFiles(view, kRoot).Rename(In("a.tmp"), In("a.sherd"));
            },
            [&](CheckpointStore& view) {
              removed = StoreFiles(view, kRoot).Remove(In("a.tmp"));
            }};
      },
      [&](CheckpointStore& store) {
        StoreFiles files(store, kRoot);
        EXPECT_NE(renamed.ok(), removed.ok()) << renamed << removed;
        EXPECT_THAT(renamed.ok() ? removed : renamed,
                    StatusIs(absl::StatusCode::kNotFound));
        seen.insert(renamed.ok());
        if (renamed.ok()) {
          EXPECT_THAT(Read(files, "a.sherd"), IsOkAndHolds("a"));
          EXPECT_THAT(files.List(kRoot), IsOkAndHolds(ElementsAre("a.sherd")));
        } else {
          EXPECT_THAT(files.List(kRoot), IsOkAndHolds(IsEmpty()));
        }
      },
      kAnyNumber);
  EXPECT_GT(runs, 500);
  EXPECT_THAT(seen, SizeIs(2));
}

TEST(InterleavingTest, OfTwoRenamesToANewNameOneSucceeds) {
  std::vector<absl::Status> renamed(2);
  std::set<bool> seen;
  SteppedActors::RunAll(
      NewStore,
      [&](CheckpointStore& store) {
        StoreFiles files(store, kRoot);
        std::vector<Actor> actors;
        for (const int i : {0, 1}) {
          const std::string name = absl::StrCat(i, ".tmp");
          EXPECT_THAT(Write(files, name, name), IsOk());
          actors.push_back([&renamed, i, name](CheckpointStore& view) {
            renamed[static_cast<size_t>(i)] =
                StoreFiles(view, kRoot).RenameNew(In(name), In("x.sherd"));
          });
        }
        return actors;
      },
      [&](CheckpointStore& store) {
        StoreFiles files(store, kRoot);
        EXPECT_NE(renamed[0].ok(), renamed[1].ok());
        const int loser = renamed[0].ok() ? 1 : 0;
        EXPECT_THAT(renamed[static_cast<size_t>(loser)],
                    StatusIs(absl::StatusCode::kAlreadyExists));
        EXPECT_THAT(Read(files, "x.sherd"),
                    IsOkAndHolds(absl::StrCat(1 - loser, ".tmp")));
        EXPECT_THAT(
            files.List(kRoot),
            IsOkAndHolds(ElementsAre(absl::StrCat(loser, ".tmp"), "x.sherd")));
        seen.insert(renamed[0].ok());
      },
      kAnyNumber);
  EXPECT_THAT(seen, SizeIs(2));
}

TEST(InterleavingTest, AReaderFindsTheOldOneOrTheNewOne) {
  absl::StatusOr<std::string> read;
  std::set<std::string> seen;
  SteppedActors::RunAll(
      NewStore,
      [&](CheckpointStore& store) {
        StoreFiles files(store, kRoot);
        EXPECT_THAT(Write(files, "1.tmp", "old"), IsOk());
        EXPECT_THAT(files.Rename(In("1.tmp"), In("x.sherd")), IsOk());
        EXPECT_THAT(Write(files, "2.tmp", "new"), IsOk());
        EXPECT_THAT(Write(files, "3.tmp", "newest"), IsOk());
        return std::vector<Actor>{
            [&](CheckpointStore& view) {
              StoreFiles own(view, kRoot);
              EXPECT_THAT(own.Rename(In("2.tmp"), In("x.sherd")), IsOk());
              EXPECT_THAT(own.Rename(In("3.tmp"), In("x.sherd")), IsOk());
            },
            [&](CheckpointStore& view) {
              StoreFiles own(view, kRoot);
              read = Read(own, "x.sherd");
            }};
      },
      [&](CheckpointStore&) {
        EXPECT_THAT(read, IsOkAndHolds(AnyOf("old", "new", "newest")));
        seen.insert(read.value_or(""));
      },
      /*max_switches=*/4);
  EXPECT_THAT(seen, SizeIs(3));
}

// The proof of lease.h: a holder checks its lease and switches, while another
// one takes it over, removes what is staged, and reads the manifest. A third
// one only reads.
TEST(InterleavingTest, AFormerHolderSwitchesBeforeTheTakeoverOrNotAtAll) {
  absl::Status switched;
  absl::StatusOr<std::string> found;
  std::set<bool> seen;
  SteppedActors::RunAll(
      NewStore,
      [&](CheckpointStore& store) {
        StoreFiles files(store, kRoot);
        EXPECT_THAT(Write(files, "lease1.tmp", "1"), IsOk());
        EXPECT_THAT(files.RenameNew(In("lease1.tmp"), In("lease.sherd")),
                    IsOk());
        EXPECT_THAT(Write(files, "manifest0.tmp", "none"), IsOk());
        EXPECT_THAT(files.Rename(In("manifest0.tmp"), In("manifest.sherd")),
                    IsOk());
        EXPECT_THAT(Write(files, "manifest1.tmp", "of 1"), IsOk());
        EXPECT_THAT(Write(files, "lease2.tmp", "2"), IsOk());
        return std::vector<Actor>{
            [&](CheckpointStore& view) {
              StoreFiles own(view, kRoot);
              const auto holder = Read(own, "lease.sherd");
              switched = holder.status();
              if (holder.ok() && *holder != "1") {
                switched = absl::AbortedError("lost");
              }
              if (!switched.ok()) return;
              switched = own.Rename(In("manifest1.tmp"), In("manifest.sherd"));
            },
            [&](CheckpointStore& view) {
              StoreFiles own(view, kRoot);
              EXPECT_THAT(own.Rename(In("lease2.tmp"), In("lease.sherd")),
                          IsOk());
              const auto names = own.List(kRoot);
              EXPECT_THAT(names, IsOk());
              for (const std::string& name : *names) {
                if (name != "manifest1.tmp") continue;
                const absl::Status removed = own.Remove(In(name));
                EXPECT_TRUE(removed.ok() || absl::IsNotFound(removed));
              }
              found = Read(own, "manifest.sherd");
            }};
      },
      [&](CheckpointStore& store) {
        StoreFiles files(store, kRoot);
        EXPECT_TRUE(switched.ok() || absl::IsAborted(switched) ||
                    absl::IsNotFound(switched))
            << switched;
        EXPECT_THAT(found, IsOkAndHolds(switched.ok() ? "of 1" : "none"));
        EXPECT_THAT(Read(files, "manifest.sherd"),
                    IsOkAndHolds(switched.ok() ? "of 1" : "none"));
        EXPECT_THAT(files.List(kRoot),
                    IsOkAndHolds(ElementsAre("lease.sherd", "manifest.sherd")));
        seen.insert(switched.ok());
      },
      /*max_switches=*/3);
  EXPECT_THAT(seen, SizeIs(2));
}

TEST(InterleavingTest, ARenewalNeverChangesAnothersLease) {
  SteppedActors::RunAll(
      NewStore,
      [&](CheckpointStore& store) {
        StoreFiles files(store, kRoot);
        EXPECT_THAT(Write(files, "2.tmp", "second"), IsOk());
        return std::vector<Actor>{
            [&](CheckpointStore& view) {
              StoreFiles own(view, kRoot);
              const auto file = own.Create(In("1.tmp"));
              ASSERT_THAT(file, IsOk());
              EXPECT_THAT((*file)->WriteAt(0, AsBytes("first ")), IsOk());
              const absl::Status placed =
                  own.RenameNew(In("1.tmp"), In("lease.sherd"));
              EXPECT_TRUE(placed.ok() || absl::IsAlreadyExists(placed));
              EXPECT_THAT((*file)->WriteAt(0, AsBytes("again ")), IsOk());
            },
            [&](CheckpointStore& view) {
              StoreFiles own(view, kRoot);
              EXPECT_THAT(own.Rename(In("2.tmp"), In("lease.sherd")), IsOk());
              EXPECT_THAT(Read(own, "lease.sherd"), IsOkAndHolds("second"));
            }};
      },
      [&](CheckpointStore& store) {
        StoreFiles files(store, kRoot);
        EXPECT_THAT(Read(files, "lease.sherd"), IsOkAndHolds("second"));
      },
      /*max_switches=*/4);
}

// A process ends before any of its steps; then another one finds the state
// before or after the operation, and can go on.
TEST(InterleavingTest, AfterAProcessEndsAnywhereTheDirectoryIsOneOfTwoStates) {
  const auto operation = [](StoreFiles& files) {
    return files.Rename(In("2.tmp"), In("x.sherd"));
  };
  bool ended = true;
  std::set<std::string> seen;
  for (int end = 0; ended; ++end) {
    SCOPED_TRACE(end);
    MemoryStore store;
    StoreFiles files(store, kRoot);
    ASSERT_THAT(Write(files, "1.tmp", "old"), IsOk());
    ASSERT_THAT(files.Rename(In("1.tmp"), In("x.sherd")), IsOk());
    ASSERT_THAT(Write(files, "2.tmp", "new"), IsOk());
    int step = 0;
    ended = false;
    WatchedStore view(store, [&](absl::string_view) -> absl::Status {
      if (step++ < end) return absl::OkStatus();
      ended = true;
      return absl::CancelledError("the process has ended");
    });
    StoreFiles dying(view, kRoot);
    operation(dying).IgnoreError();
    const auto now = Read(files, "x.sherd");
    ASSERT_THAT(now, IsOkAndHolds(AnyOf("old", "new")));
    seen.insert(*now);
    SHERD_ASSERT_OK_AND_ASSIGN(const auto names, files.List(kRoot));
    if (*now == "old") {
      EXPECT_THAT(names, ElementsAre("2.tmp", "x.sherd"));
      EXPECT_THAT(operation(files), IsOk());
    } else {
      EXPECT_THAT(names, ElementsAre("x.sherd"));
    }
    ASSERT_THAT(Write(files, "3.tmp", "newest"), IsOk());
    EXPECT_THAT(files.Rename(In("3.tmp"), In("x.sherd")), IsOk());
    EXPECT_THAT(Read(files, "x.sherd"), IsOkAndHolds("newest"));
    ASSERT_THAT(Write(files, "4.tmp", "x"), IsOk());
    EXPECT_THAT(files.Remove(In("4.tmp")), IsOk());
    // Beside the tables: one object, that of the name.
    SHERD_ASSERT_OK_AND_ASSIGN(const auto all, store.List(""));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto tables, store.List("index-"));
    EXPECT_EQ(all.size(), tables.size() + 1) << ::testing::PrintToString(all);
  }
  EXPECT_THAT(seen, SizeIs(2));
}

// A put that is reported as failed, whether it is done, is not, or is done
// later, when others have put something.
class UnsureStore final : public ForwardingStore {
 public:
  enum class Outcome { kNot, kDone, kLater };

  UnsureStore(CheckpointStore& store, Outcome outcome)
      : ForwardingStore(store), outcome_(outcome) {}

  absl::Status PutIfAbsent(const std::string& name,
                           absl::Span<const std::byte> data) override {
    if (calls_++ > 0) return ForwardingStore::PutIfAbsent(name, data);
    name_ = name;
    bytes_.assign(data.begin(), data.end());
    if (outcome_ == Outcome::kDone) Do();
    return absl::DeadlineExceededError("no answer");
  }

  // The request arrives.
  void Do() { ForwardingStore::PutIfAbsent(name_, bytes_).IgnoreError(); }

 private:
  const Outcome outcome_;
  int calls_ = 0;
  std::string name_;
  std::vector<std::byte> bytes_;
};

TEST(InterleavingTest, AnOperationThatReturnsAnErrorNeverTakesEffect) {
  using Outcome = UnsureStore::Outcome;
  for (const Outcome outcome :
       {Outcome::kNot, Outcome::kDone, Outcome::kLater}) {
    for (const bool between : {false, true}) {
      MemoryStore store;
      DirectoryIndex setup(store, kRoot);
      ASSERT_THAT(AddName(setup, "first.sherd"), IsOk());
      UnsureStore unsure(store, outcome);
      DirectoryIndex index(unsure, kRoot);
      bool asked = false;
      const absl::Status status = index.Update([&](IndexTable& table) {
        table.names["x.sherd"] = "object";
        // So that another one is faster, or comes behind.
        if (between && !asked) {
          EXPECT_THAT(AddName(setup, "y.sherd"), IsOk());
        }
        asked = true;
        return absl::OkStatus();
      });
      unsure.Do();
      SHERD_ASSERT_OK_AND_ASSIGN(const IndexTable table, setup.Read());
      EXPECT_EQ(status.ok(), table.names.contains("x.sherd")) << status;
      EXPECT_EQ(status.ok(), outcome == Outcome::kDone && !between);
      if (!status.ok()) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
      }
    }
  }
}

}  // namespace
}  // namespace sherd
