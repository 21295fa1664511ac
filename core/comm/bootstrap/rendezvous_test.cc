#include "sherd/core/comm/bootstrap/rendezvous.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Deadline Soon() { return Deadline::After(absl::Seconds(60)); }

// One process of two that a launcher started; the other one shares `wire`.
class LaunchedBackend final : public Backend {
 public:
  LaunchedBackend(std::shared_ptr<Store> wire, LaunchedWorld world)
      : wire_(std::move(wire)), world_(world) {
    info_.name = "launched";
    info_.needs_launcher = true;
  }
  const BackendInfo& info() const override { return info_; }
  absl::Status Probe() const override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
      const CommunicatorOptions&) const override {
    return absl::UnimplementedError("not for this test");
  }
  absl::StatusOr<LaunchedWorld> FindLaunchedWorld() const override {
    return world_;
  }
  absl::StatusOr<std::string> Bootstrap(absl::string_view blob,
                                        Deadline deadline) const override {
    EXPECT_LE(blob.size(), kMaxBootstrapBytes);
    if (world_.rank == 0) {
      EXPECT_THAT(wire_->Set("blob", blob), IsOk());
    }
    return wire_->Get("blob", deadline);
  }

 private:
  BackendInfo info_;
  const std::shared_ptr<Store> wire_;
  const LaunchedWorld world_;
};

LaunchEnvironment PlaceOf(int rank, bool one_host) {
  LaunchEnvironment place;
  place.launcher = "a test";
  place.rank = rank;
  place.world_size = 2;
  place.one_host = one_host;
  return place;
}

// Results of `meet` on two threads.
std::vector<absl::StatusOr<Rendezvous>> OnBoth(
    const std::function<absl::StatusOr<Rendezvous>(int rank)>& meet) {
  std::vector<absl::StatusOr<Rendezvous>> results(
      2, absl::UnknownError("no result"));
  testing::RunRankThreads(2, [&](int rank) { results[rank] = meet(rank); });
  return results;
}

void ExpectShared(const std::vector<absl::StatusOr<Rendezvous>>& met) {
  for (const auto& rendezvous : met) ASSERT_THAT(rendezvous, IsOk());
  ASSERT_THAT(met[0]->session->store()->Set("key", "of rank 0"), IsOk());
  EXPECT_THAT(met[1]->session->store()->Get("key", Soon()),
              IsOkAndHolds("of rank 0"));
}

class RendezvousTest : public ::testing::Test {
 protected:
  RendezvousTest()
      : directory_(absl::StrCat(
            ::testing::TempDir(), "/",
            ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    FileSystem::Posix().RemoveAll(directory_).IgnoreError();
    EXPECT_THAT(FileSystem::Posix().CreateDirectories(directory_), IsOk());
    setenv("TMPDIR", directory_.c_str(), 1);
  }
  ~RendezvousTest() override {
    unsetenv("TMPDIR");
    unsetenv("SHERD_SOCKET_IFNAME");
    unsetenv("SHERD_SECRET_FILE");
  }

  std::string OwnDirectory() const {
    return absl::StrCat(directory_, "/sherd-", geteuid());
  }
  absl::StatusOr<Rendezvous> MeetInJobsFile(int rank) const {
    LaunchEnvironment place = PlaceOf(rank, true);
    place.job_id = "mpirun-77-abc";
    return Meet({.group = "g", .place = place, .deadline = Soon()});
  }

  const std::string directory_;
};

TEST_F(RendezvousTest, ABackendsBootstrapBringsTheAddressOfRank0) {
  const auto wire = std::make_shared<HashStore>();
  const LaunchedBackend backends[] = {{wire, {0, 2}}, {wire, {1, 2}}};
  const auto met = OnBoth([&](int rank) {
    return Meet({.group = "g",
                 .place = PlaceOf(rank, true),
                 .backend = &backends[rank],
                 .deadline = Soon()});
  });
  ExpectShared(met);
  EXPECT_EQ(met[1]->master, "127.0.0.1");
}

TEST_F(RendezvousTest, ABootstrapReportsToAllWhyRank0CannotListen) {
  setenv("SHERD_SOCKET_IFNAME", "no-such-interface", 1);
  const auto wire = std::make_shared<HashStore>();
  const LaunchedBackend backends[] = {{wire, {0, 2}}, {wire, {1, 2}}};
  for (const auto& result : OnBoth([&](int rank) {
         return Meet({.group = "g",
                      .place = PlaceOf(rank, false),
                      .backend = &backends[rank],
                      .deadline = Soon()});
       })) {
    EXPECT_THAT(result.status(),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr("rank 0 cannot listen"),
                               HasSubstr("no-such-interface"))));
    EXPECT_EQ(ErrorRank(result.status()), 0);
  }
}

TEST_F(RendezvousTest, ABackendThatWasLaunchedOtherwiseIsAnError) {
  const LaunchedBackend backend(std::make_shared<HashStore>(), {1, 3});
  EXPECT_THAT(Meet({.group = "g",
                    .place = PlaceOf(0, true),
                    .backend = &backend,
                    .deadline = Soon()})
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("this is rank 0 of 2, but the backend "
                                 "launched was launched as rank 1 of 3")));
}

TEST_F(RendezvousTest, RanksOfMpirunOnOneHostMeetInAFileOfTheirJob) {
  const auto met = OnBoth([&](int rank) { return MeetInJobsFile(rank); });
  ExpectShared(met);
  struct stat info;
  ASSERT_EQ(stat(OwnDirectory().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  EXPECT_THAT(FileSystem::Posix().List(OwnDirectory()),
              IsOkAndHolds(SizeIs(1)));
  for (const auto& rendezvous : met) rendezvous->session->Leave();
  EXPECT_THAT(FileSystem::Posix().List(OwnDirectory()),
              IsOkAndHolds(SizeIs(0)));
}

TEST_F(RendezvousTest, ADirectoryThatOthersCanEnterIsRefused) {
  ASSERT_EQ(mkdir(OwnDirectory().c_str(), 0700), 0);
  ASSERT_EQ(chmod(OwnDirectory().c_str(), 0750), 0);
  EXPECT_THAT(MeetInJobsFile(0).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(OwnDirectory())));
}

TEST_F(RendezvousTest, ALinkInPlaceOfTheDirectoryIsRefused) {
  const std::string elsewhere = absl::StrCat(directory_, "/elsewhere");
  ASSERT_EQ(mkdir(elsewhere.c_str(), 0700), 0);
  ASSERT_EQ(symlink(elsewhere.c_str(), OwnDirectory().c_str()), 0);
  EXPECT_THAT(MeetInJobsFile(0).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("not a directory")));
}

TEST_F(RendezvousTest, RanksOfMpirunOnSeveralHostsNeedAnAddress) {
  EXPECT_THAT(Meet({.group = "g", .place = PlaceOf(1, false)}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("where the ranks meet"),
                             HasSubstr("MASTER_ADDR"), HasSubstr("a test"))));
}

TEST_F(RendezvousTest, RanksOnOneHostMeetOnTheLoopbackWhateverItsName) {
  // The name is not resolved.
  LaunchEnvironment place = PlaceOf(1, true);
  place.master_addr = "no-such-host.invalid";
  place.master_port = 9;
  EXPECT_THAT(
      Meet({.group = "g",
            .place = place,
            .deadline = Deadline::After(absl::Milliseconds(50))})
          .status(),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("127.0.0.1:9")));
}

TEST_F(RendezvousTest, TheInterfaceForOthersIsTheOneThatWasNamed) {
  setenv("SHERD_SOCKET_IFNAME", "=lo", 1);
  EXPECT_THAT(AddressForOthers(""), IsOkAndHolds("127.0.0.1"));
  setenv("SHERD_SOCKET_IFNAME", "=no-such-interface", 1);
  EXPECT_THAT(AddressForOthers(""), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("no-such-interface")));
}

TEST_F(RendezvousTest, TheSecretIsTheFileWithoutTheEndOfItsLine) {
  EXPECT_THAT(ReadSecret(), IsOkAndHolds(""));
  const std::string path = absl::StrCat(directory_, "/secret");
  const std::string text = "two words\r\n";
  ASSERT_THAT(
      WriteFileAtomically(
          FileSystem::Posix(), path,
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                              text.size())),
      IsOk());
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  setenv("SHERD_SECRET_FILE", path.c_str(), 1);
  EXPECT_THAT(ReadSecret(), IsOkAndHolds("two words"));
}

}  // namespace
}  // namespace sherd::internal
