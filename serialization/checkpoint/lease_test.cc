#include "sherd/serialization/checkpoint/lease.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/kits/sample_lease.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::CallAt;
using sherd::testing::FailFileOperation;
using sherd::testing::IsOk;
using sherd::testing::IsOkAndHolds;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr char kGolden[] = "serialization/testdata/v1/lease.sherd";

absl::Span<const std::byte> AsBytes(absl::string_view text) {
  return absl::MakeSpan(reinterpret_cast<const std::byte*>(text.data()),
                        text.size());
}

TEST(LeaseCodecTest, TheGoldenFileIsWhatThisBuildWritesAndReads) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const std::string golden,
      ReadFile(FileSystem::Posix(), kGolden, kMaxLeaseBytes));
  EXPECT_EQ(EncodeLease(SampleLease()), golden);
  EXPECT_THAT(DecodeLease(golden, "golden"), IsOkAndHolds(SampleLease()));
}

TEST(LeaseCodecTest, RenewingAndEndingKeepsTheLength) {
  LeaseRecord record = SampleLease();
  const size_t size = EncodeLease(record).size();
  record.renewed += absl::Hours(20000);
  EXPECT_EQ(EncodeLease(record).size(), size);
  record.duration = absl::ZeroDuration();
  EXPECT_EQ(EncodeLease(record).size(), size);
  EXPECT_THAT(DecodeLease(EncodeLease(record), "x"), IsOkAndHolds(record));
}

TEST(LeaseCodecTest, EveryChangedOrMissingByteIsRefused) {
  const std::string good = EncodeLease(SampleLease());
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_FALSE(DecodeLease(bad, "x").ok()) << i;
    EXPECT_THAT(DecodeLease(good.substr(0, i), "x"),
                StatusIs(absl::StatusCode::kDataLoss, "x is damaged"));
  }
  EXPECT_THAT(DecodeLease(good + "\n", "x"),
              StatusIs(absl::StatusCode::kDataLoss));
}

// With a correct CRC.
TEST(LeaseCodecTest, EveryValueOutOfRangeIsRefused) {
  const std::string good = EncodeLease(SampleLease());
  const std::string body = good.substr(0, good.size() - 16);
  struct Row {
    const char* from;
    const char* to;
  };
  for (const Row& row : {
           Row{"lease 1\n", "lease 0\n"},
           Row{"lease 1\n", "lease 01\n"},
           Row{"lease 1\n", "lease -1\n"},
           Row{"host ", "Host "},
           Row{" 4711 ", " 0 "},
           Row{" 4711 ", " -4711 "},
           Row{" 4711 ", " 04711 "},
           Row{" 987654\n", "\n"},
           Row{"18c2", "18C2"},
           Row{"18c2", "8c2"},
           Row{"18c2", "../2"},
           Row{"generation 3", "generation 0"},
           Row{"generation 3", "generation 18446744073709551616"},
           Row{"generation 3", "generation 3 "},
           Row{"since 2026-11-23", "since 2026-11-32"},
           Row{"since 2026", "since 99999"},
           Row{"since 2026", "since 1969"},
           Row{".123Z\nrenewed", "Z\nrenewed"},
           Row{"renewed 2026-11-23T", "renewed 2026-11-23 "},
           Row{"0000000120000", "120000"},
           Row{"0000000120000", "-000000120000"},
           Row{"0000000120000", "9999999999999"},
           Row{"duration_ms", "\nduration_ms"},
       }) {
    const std::string bad = absl::StrReplaceAll(body, {{row.from, row.to}});
    ASSERT_NE(bad, body) << row.from;
    EXPECT_THAT(
        DecodeLease(
            bad + absl::StrFormat("crc32c %08x\n", Crc32c(AsBytes(bad))), "x"),
        StatusIs(absl::StatusCode::kDataLoss, "x is damaged"))
        << row.to;
  }
  EXPECT_THAT(
      DecodeLease(absl::StrReplaceAll(good, {{"lease 1", "lease 2"}}), "x"),
      StatusIs(absl::StatusCode::kUnimplemented,
               "x has version 2, but this build knows versions up to 1"));
  EXPECT_THAT(DecodeLease(std::string(kMaxLeaseBytes + 1, 'x'), "x"),
              StatusIs(absl::StatusCode::kDataLoss));
}

// A child that ends with this test at the latest.
class Child {
 public:
  Child() : pid_(fork()) {
    while (pid_ == 0) pause();
    record_ = SampleLease();
    record_.holder = {BootId(), OwnNamespace("pid"), ProcessIdentity::Of(pid_)};
  }
  ~Child() { Kill(); }

  // A lease that the child holds.
  const LeaseRecord& record() const { return record_; }

  void Stop() {
    kill(pid_, SIGSTOP);
    int status;
    waitpid(pid_, &status, WUNTRACED);
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_;
  LeaseRecord record_;
};

TEST(LeaseIsOverTest, AProcessThatRunsKeepsItsLeaseHoweverSlowItsDisk) {
  Child child;
  EXPECT_FALSE(LeaseIsOver(child.record(), absl::InfiniteFuture()));
}

TEST(LeaseIsOverTest, AProcessThatEndedHasNone) {
  Child child;
  child.Kill();
  EXPECT_TRUE(LeaseIsOver(child.record(), child.record().renewed));
}

TEST(LeaseIsOverTest, AnotherProcessWithItsNumberIsNotTheHolder) {
  Child child;
  LeaseRecord record = child.record();
  ++record.holder.process.start_time;
  EXPECT_TRUE(LeaseIsOver(record, record.renewed));
}

TEST(LeaseIsOverTest, AStoppedProcessKeepsItForItsDuration) {
  Child child;
  child.Stop();
  const LeaseRecord& record = child.record();
  EXPECT_FALSE(LeaseIsOver(record, record.renewed + absl::Seconds(119)));
  EXPECT_TRUE(LeaseIsOver(record, record.renewed + absl::Seconds(120)));
}

TEST(LeaseIsOverTest, AProcessOutOfSightKeepsItForItsDuration) {
  LeaseRecord record = SampleLease();
  EXPECT_FALSE(LeaseIsOver(record, record.renewed - absl::Hours(1)))
      << "the clocks of hosts differ";
  EXPECT_FALSE(LeaseIsOver(record, record.renewed + absl::Seconds(119)));
  EXPECT_TRUE(LeaseIsOver(record, record.renewed + absl::Seconds(120)));
  record.duration = absl::ZeroDuration();
  EXPECT_TRUE(LeaseIsOver(record, record.renewed)) << "it says so";
}

class LeaseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_THAT(files_.RemoveAll(directory_), IsOk());
    ASSERT_THAT(files_.CreateDirectories(directory_), IsOk());
  }

  std::string Path() const { return JoinPath(directory_, kLeaseFileName); }

  void Write(absl::string_view text) {
    ASSERT_THAT(WriteFileAtomically(files_, Path(), AsBytes(text)), IsOk());
  }

  absl::StatusOr<LeaseRecord> Read() {
    SHERD_ASSIGN_OR_RETURN(const std::string bytes,
                           ReadFile(files_, Path(), kMaxLeaseBytes));
    return DecodeLease(bytes, Path());
  }

  absl::StatusOr<std::unique_ptr<CheckpointLease>> Take(
      int number, absl::Duration duration = absl::Hours(1)) {
    return CheckpointLease::Take(files_, directory_,
                                 absl::StrFormat("%016x", number),
                                 {.duration = duration, .sync = false});
  }

  FileSystem& files_ = FileSystem::Posix();
  const std::string directory_ = JoinPath(
      ::testing::TempDir(),
      absl::StrCat(
          "lease_",
          ::testing::UnitTest::GetInstance()->current_test_info()->name()));
};

TEST_F(LeaseTest, IsHeldUntilItIsReleased) {
  SHERD_ASSERT_OK_AND_ASSIGN(auto lease, Take(1));
  SHERD_ASSERT_OK_AND_ASSIGN(const LeaseRecord record, Read());
  EXPECT_EQ(record.holder.process, ProcessIdentity::Own());
  EXPECT_EQ(record.generation, 1u);
  EXPECT_EQ(record.duration, absl::Hours(1));
  EXPECT_THAT(lease->Check(), IsOk());
  EXPECT_THAT(Take(2),
              StatusIs(absl::StatusCode::kAborted,
                       AllOf(HasSubstr(Path()),
                             HasSubstr(absl::StrCat("is held by process ",
                                                    getpid(), " of host ")),
                             HasSubstr("save 0000000000000001 since 2"),
                             HasSubstr("wait until it is done"))));
  EXPECT_THAT(lease->Check(), IsOk()) << "a refusal changes nothing";
  EXPECT_THAT(files_.List(directory_),
              IsOkAndHolds(ElementsAre(kLeaseFileName)));
  lease.reset();
  EXPECT_THAT(files_.List(directory_), IsOkAndHolds(IsEmpty()));
  SHERD_ASSERT_OK_AND_ASSIGN(lease, Take(2));
  EXPECT_EQ(lease->generation(), 1u);
}

TEST_F(LeaseTest, OneThatIsOverIsTakenOverWithAHigherGeneration) {
  Write(EncodeLease(SampleLease()));
  SHERD_ASSERT_OK_AND_ASSIGN(const auto lease, Take(1));
  EXPECT_EQ(lease->generation(), 4u);
  SHERD_ASSERT_OK_AND_ASSIGN(const LeaseRecord record, Read());
  EXPECT_EQ(record.generation, 4u);
  EXPECT_EQ(record.holder.process, ProcessIdentity::Own());
}

TEST_F(LeaseTest, OneOutOfSightIsRefusedWithTheTimeOfItsEnd) {
  LeaseRecord record = SampleLease();
  record.renewed =
      absl::FromUnixMillis(absl::ToUnixMillis(absl::Now())) + absl::Hours(1);
  record.host = "node\x1b[31m-8";
  Write(EncodeLease(record));
  EXPECT_THAT(Take(1), StatusIs(absl::StatusCode::kAborted,
                                AllOf(HasSubstr("process 4711 of host"),
                                      HasSubstr("generation 3"),
                                      HasSubstr("unless it is renewed"),
                                      ::testing::Not(HasSubstr("\x1b")))));
  EXPECT_THAT(Read(), IsOkAndHolds(record));
}

TEST_F(LeaseTest, ADamagedLeaseHasNoHolder) {
  for (const std::string& text :
       {std::string(), std::string(300, '\0'), std::string(5000, 'x'),
        EncodeLease(SampleLease()).substr(0, 100)}) {
    Write(text);
    SHERD_ASSERT_OK_AND_ASSIGN(const auto lease, Take(1));
    EXPECT_THAT(lease->Check(), IsOk());
  }
}

// It may be anyone's.
TEST_F(LeaseTest, OneThatCannotBeReadForWantOfADescriptorIsNotTakenOver) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto lease, Take(1));
  {
    const FailFileOperation fault("open_for_read", Path(),
                                  ErrnoStatus(EMFILE, "opening", Path()));
    EXPECT_THAT(Take(2), StatusIs(absl::StatusCode::kResourceExhausted));
  }
  EXPECT_THAT(lease->Check(), IsOk());
}

TEST_F(LeaseTest, OneIsSeenUnderAnyNameOfItsDirectory) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto lease, Take(1));
  EXPECT_THAT(lease->IsIn(directory_ + "/."), IsOkAndHolds(true));
  const std::string other = directory_ + "_other";
  EXPECT_THAT(lease->IsIn(other), IsOkAndHolds(false));
  ASSERT_THAT(files_.CreateDirectories(other), IsOk());
  for (const std::string& text :
       {EncodeLease(SampleLease()), std::string("damaged"),
        std::string("sherd lease 2\nwhatever\n")}) {
    ASSERT_THAT(WriteFileAtomically(files_, JoinPath(other, kLeaseFileName),
                                    AsBytes(text)),
                IsOk());
    EXPECT_THAT(lease->IsIn(other), IsOkAndHolds(false));
  }
}

TEST_F(LeaseTest, OneOfALaterVersionIsRefused) {
  Write("sherd lease 2\nwhatever\n");
  EXPECT_THAT(Take(1), StatusIs(absl::StatusCode::kUnimplemented, "version 2"));
}

TEST_F(LeaseTest, AHolderThatLostItLearnsWhoHasItAndLeavesItAlone) {
  SHERD_ASSERT_OK_AND_ASSIGN(auto lease, Take(1));
  LeaseRecord other = SampleLease();
  Write(EncodeLease(other));
  EXPECT_THAT(lease->Check(), StatusIs(absl::StatusCode::kAborted,
                                       AllOf(HasSubstr("this save has lost"),
                                             HasSubstr("process 4711 of host"),
                                             HasSubstr("node-7.cluster"))));
  lease.reset();
  EXPECT_THAT(Read(), IsOkAndHolds(other));
}

TEST_F(LeaseTest, AHolderWhoseFileIsRemovedHasLostIt) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto lease, Take(1));
  ASSERT_THAT(files_.Remove(Path()), IsOk());
  EXPECT_THAT(lease->Check(),
              StatusIs(absl::StatusCode::kAborted, "the file was removed"));
}

TEST_F(LeaseTest, IsRenewedInPlaceWhileItIsHeld) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto lease, Take(1, absl::Milliseconds(40)));
  SHERD_ASSERT_OK_AND_ASSIGN(const LeaseRecord first, Read());
  // A reader may meet a renewal half done.
  absl::StatusOr<LeaseRecord> now = first;
  while (!now.ok() || now->renewed == first.renewed) now = Read();
  EXPECT_GT(now->renewed, first.renewed);
  EXPECT_EQ(now->since, first.since);
  EXPECT_THAT(lease->Check(), IsOk());
}

TEST_F(LeaseTest, ARenewalDoesNotTakeALostOneBack) {
  SHERD_ASSERT_OK_AND_ASSIGN(const auto lease, Take(1, absl::Milliseconds(4)));
  const LeaseRecord other = SampleLease();
  Write(EncodeLease(other));
  const sherd::testing::CountPassages renewals("file/write");
  while (renewals.count() < 3) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_THAT(Read(), IsOkAndHolds(other));
  EXPECT_THAT(lease->Check(), StatusIs(absl::StatusCode::kAborted));
}

TEST_F(LeaseTest, OfManyThatTakeItAtOnceOneHoldsIt) {
  for (const bool dead_holder : {false, true}) {
    if (dead_holder) Write(EncodeLease(SampleLease()));
    std::vector<absl::StatusOr<std::unique_ptr<CheckpointLease>>> leases(8);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < leases.size(); ++i) {
      threads.emplace_back([&, i] { leases[i] = Take(static_cast<int>(i)); });
    }
    for (std::thread& thread : threads) thread.join();
    int holders = 0;
    for (const auto& lease : leases) {
      if (lease.ok()) holders += (*lease)->Check().ok() ? 1 : 0;
    }
    EXPECT_EQ(holders, 1) << dead_holder;
    leases.clear();
    EXPECT_THAT(files_.List(directory_), IsOkAndHolds(IsEmpty()));
  }
}

TEST_F(LeaseTest, OneWhoseTemporaryFileAHolderRemovesLooksAgain) {
  std::unique_ptr<CheckpointLease> other;
  const CallAt at("file/rename_new", [&] {
    // As a holder that removes leftovers.
    SHERD_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names,
                               files_.List(directory_));
    for (const std::string& name : names) {
      EXPECT_THAT(files_.Remove(JoinPath(directory_, name)), IsOk());
    }
    SHERD_ASSERT_OK_AND_ASSIGN(other, Take(2));
  });
  EXPECT_THAT(Take(1), StatusIs(absl::StatusCode::kAborted,
                                HasSubstr("save 0000000000000002")));
  EXPECT_THAT(other->Check(), IsOk());
}

TEST_F(LeaseTest, OneThatCannotBeRemovedIsMarkedAsOver) {
  {
    const FailFileOperation fault("remove", "*/lease.sherd",
                                  absl::InternalError("injected"));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto lease, Take(2));
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const LeaseRecord record, Read());
  EXPECT_EQ(record.duration, absl::ZeroDuration());
  SHERD_ASSERT_OK_AND_ASSIGN(const auto lease, Take(3));
  EXPECT_EQ(lease->generation(), 2u);
}

TEST_F(LeaseTest, AProcessTakesOverItsOwnFormerLease) {
  LeaseRecord record = SampleLease();
  record.holder = {BootId(), OwnNamespace("pid"), ProcessIdentity::Own()};
  record.renewed = absl::FromUnixMillis(absl::ToUnixMillis(absl::Now()));
  Write(EncodeLease(record));
  EXPECT_THAT(Take(1), IsOk());
}

TEST_F(LeaseTest, WhicheverOperationFailsNoLeaseIsLeftHeld) {
  bool hit = true;
  for (int64_t call = 1; hit; ++call) {
    SCOPED_TRACE(call);
    {
      const FailFileOperation fault("*", "*", absl::InternalError("injected"),
                                    {.nth = call, .optional = true});
      const auto lease = Take(static_cast<int>(call));
      EXPECT_TRUE(lease.ok() || absl::IsInternal(lease.status()))
          << lease.status();
      hit = fault.happened();
    }
    EXPECT_THAT(Take(1000), IsOk());
  }
}

TEST_F(LeaseTest, ADurationOutsideOfTheLimitsIsRefused) {
  for (const absl::Duration duration :
       {absl::ZeroDuration(), -absl::Seconds(1), absl::Microseconds(999),
        absl::Hours(24 * 366), absl::InfiniteDuration()}) {
    EXPECT_THAT(Take(1, duration), StatusIs(absl::StatusCode::kInvalidArgument,
                                            "expected 1ms to 8760h"));
  }
  EXPECT_THAT(files_.List(directory_), IsOkAndHolds(IsEmpty()));
}

}  // namespace
}  // namespace sherd
