// Listings that take as long as many operations, and the largest numbers; for
// the order of operations see interleaving_test.cc.

#include "sherd/serialization/store/directory_index.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/kits/forwarding_store.h"
#include "sherd/serialization/kits/memory_store.h"
#include "sherd/serialization/store.h"
#include "sherd/serialization/store/index_table.h"
#include "sherd/serialization/wire/little_endian.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::StatusIs;
using ::testing::SizeIs;

constexpr char kRoot[] = "test:x";

absl::Status AddName(DirectoryIndex& index, const std::string& name) {
  return index.Update([&](IndexTable& table) {
    table.names[name] = absl::StrCat(name, "-object");
    return absl::OkStatus();
  });
}

// More than are kept, and twice as many are fewer than a table remembers.
void ChangeOften(DirectoryIndex& index, absl::string_view prefix) {
  constexpr uint64_t kChanges = DirectoryIndex::kKeptTables + 4;
  static_assert(2 * kChanges < kIndexHistory);
  for (uint64_t i = 0; i < kChanges; ++i) {
    ASSERT_THAT(AddName(index, absl::StrCat(prefix, i, ".sherd")), IsOk());
  }
}

// A store that lists as a directory is listed: the names at once, then it looks
// at each. After some looks of one listing it sleeps.
class SleepyStore final : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  void SleepInNextListing(size_t after_looks, std::function<void()> sleep) {
    after_looks_ = after_looks;
    sleep_ = std::move(sleep);
  }

  absl::StatusOr<std::vector<std::string>> List(
      absl::string_view prefix) override {
    ++listings_;
    const auto sleep = std::exchange(sleep_, nullptr);
    SHERD_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                           ForwardingStore::List(prefix));
    std::vector<std::string> there;
    for (size_t i = 0; i < names.size(); ++i) {
      if (sleep != nullptr && i == after_looks_) sleep();
      if (Stat(names[i]).ok()) there.push_back(names[i]);
    }
    return there;
  }

  int listings() const { return listings_; }

 private:
  int listings_ = 0;
  size_t after_looks_ = 0;
  std::function<void()> sleep_;
};

TEST(DirectoryIndexTest, AReaderWhoseListingTakesLongFindsTheDirectory) {
  MemoryStore store;
  DirectoryIndex others(store, kRoot);
  ASSERT_THAT(AddName(others, "first.sherd"), IsOk());
  SleepyStore view(store);
  view.SleepInNextListing(0, [&] { ChangeOften(others, "a"); });
  std::vector<std::string> objects;
  SHERD_ASSERT_OK_AND_ASSIGN(const IndexTable table,
                             DirectoryIndex(view, kRoot).Read(&objects));
  EXPECT_TRUE(table.names.contains("first.sherd"));
  EXPECT_THAT(objects, SizeIs(DirectoryIndex::kKeptTables));
}

// It sleeps before its put, which then is none of the order, and while it looks
// for the outcome, until all numbers but its own have gone, or that too.
TEST(DirectoryIndexTest, AnOperationThatSleepsInItsListingTooCountsOnce) {
  for (const size_t looks : {0, 1}) {
    SCOPED_TRACE(looks);
    MemoryStore store;
    DirectoryIndex others(store, kRoot);
    ASSERT_THAT(AddName(others, "first.sherd"), IsOk());
    SleepyStore view(store);
    int calls = 0;
    const auto change = [&](IndexTable& table) {
      if (calls++ == 0) {
        ChangeOften(others, "a");
        view.SleepInNextListing(looks, [&] { ChangeOften(others, "b"); });
      }
      table.names["sleeper.sherd"] = "sleeper.sherd-object";
      return absl::OkStatus();
    };
    EXPECT_THAT(DirectoryIndex(view, kRoot).Update(change), IsOk());
    EXPECT_EQ(calls, 2);
    SHERD_ASSERT_OK_AND_ASSIGN(const IndexTable table, others.Read());
    EXPECT_TRUE(table.names.contains("sleeper.sherd"));
    EXPECT_EQ(table.names.size(), table.number);
  }
}

TEST(DirectoryIndexTest, ADirectoryThatIsRemovedMeanwhileIsNotListedForever) {
  MemoryStore store;
  DirectoryIndex others(store, kRoot);
  ASSERT_THAT(AddName(others, "first.sherd"), IsOk());
  SleepyStore view(store);
  const auto change = [&](IndexTable& table) {
    table.names["x.sherd"] = "x.sherd-object";
    // That after the put.
    view.SleepInNextListing(0, [&] {
      const auto names = store.List("");
      ASSERT_THAT(names, IsOk());
      for (const std::string& name : *names) {
        EXPECT_THAT(store.Remove(name), IsOk());
      }
    });
    return absl::OkStatus();
  };
  EXPECT_THAT(DirectoryIndex(view, kRoot).Update(change),
              StatusIs(absl::StatusCode::kUnknown));
  EXPECT_LT(view.listings(), 1000);
}

TEST(DirectoryIndexTest, TheTableOfTheLargestNumberStays) {
  IndexTable last;
  last.number = std::numeric_limits<uint64_t>::max() - 2;
  last.nonces.assign(kIndexHistory, 7);
  MemoryStore store;
  ASSERT_THAT(store.PutIfAbsent(IndexObjectName(last.number),
                                AsBytes(EncodeIndexTable(last))),
              IsOk());
  DirectoryIndex index(store, kRoot);
  ASSERT_THAT(AddName(index, "a.sherd"), IsOk());
  ASSERT_THAT(AddName(index, "b.sherd"), IsOk());
  EXPECT_THAT(AddName(index, "c.sherd"),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  SHERD_ASSERT_OK_AND_ASSIGN(const IndexTable table, index.Read());
  EXPECT_THAT(table.names, SizeIs(2));
}

}  // namespace
}  // namespace sherd
