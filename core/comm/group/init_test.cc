#include "sherd/core/comm/init.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/comm/store/file_store.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/comm/store/tcp_store.h"
#include "sherd/testing/kits/rank_threads.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::Contains;
using ::testing::HasSubstr;

using GroupOrError = absl::StatusOr<std::shared_ptr<ProcessGroup>>;

// Sets a variable for one test.
class ScopedVariable {
 public:
  ScopedVariable(std::string name, const std::string& value)
      : name_(std::move(name)) {
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~ScopedVariable() { unsetenv(name_.c_str()); }

 private:
  const std::string name_;
};

// A backend for groups of one rank, whose Probe returns `obstacle`.
class LonelyBackend final : public Backend {
 public:
  explicit LonelyBackend(std::string name) {
    info_.name = std::move(name);
    info_.origin = "this test";
  }
  const BackendInfo& info() const override { return info_; }
  absl::Status Probe() const override { return obstacle; }
  absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
      const CommunicatorOptions&) const override {
    return absl::UnimplementedError("it is lonely");
  }

  absl::Status obstacle;

 private:
  BackendInfo info_;
};

// Registered once for all tests.
LonelyBackend& RegisteredBackend(const char* name) {
  auto backend = std::make_unique<LonelyBackend>(name);
  LonelyBackend& registered = *backend;
  EXPECT_THAT(BackendRegistry::Global().Register(std::move(backend)), IsOk());
  return registered;
}
LonelyBackend& Shm() {
  static LonelyBackend& shm = RegisteredBackend("shm");
  return shm;
}
LonelyBackend& Gloo() {
  static LonelyBackend& gloo = RegisteredBackend("gloo");
  return gloo;
}

std::string FreshPath() {
  const std::string path = absl::StrCat(
      ::testing::TempDir(), "/",
      ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::remove(path.c_str());
  return path;
}

std::string WriteSecret(const std::string& path, const std::string& secret,
                        int mode) {
  EXPECT_THAT(
      WriteFileAtomically(
          FileSystem::Posix(), path,
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(secret.data()),
                              secret.size())),
      IsOk());
  EXPECT_EQ(chmod(path.c_str(), mode), 0);
  return path;
}

// Holds a port of the loopback, so that no other program gets it; a server that
// sets SO_REUSEADDR may listen there nevertheless until this one does.
class ReservedPort {
 public:
  ReservedPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(
        getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size),
        0);
    number_ = ntohs(address.sin_port);
  }

  void Listen() { EXPECT_EQ(listen(fd_.get(), 8), 0); }
  // Sends `text` to the next caller and keeps the connection.
  void Answer(const std::string& text) {
    caller_ = UniqueFd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_EQ(send(caller_.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }

  int number() const { return number_; }
  std::string url() const { return absl::StrCat("tcp://127.0.0.1:", number_); }

 private:
  UniqueFd fd_;
  UniqueFd caller_;
  int number_ = 0;
};

// Returns the result of `init` on each of `n` ranks, which are threads, after
// all of them have left the group again.
std::vector<absl::Status> OnThreads(
    int n, const std::function<GroupOrError(int rank)>& init) {
  std::vector<absl::Status> results(n);
  testing::RunRankThreads(n, [&](int rank) {
    const GroupOrError group = init(rank);
    results[rank] = group.status();
    if (!group.ok()) return;
    EXPECT_EQ((*group)->rank(), rank);
    EXPECT_THAT((*group)->Barrier(), IsOk());
    EXPECT_THAT((*group)->Destroy(), IsOk());
  });
  return results;
}

class InitTest : public ::testing::Test {
 protected:
  InitTest() {
    for (const KnobInfo& info : AllKnobs()) {
      const std::string name = info.variable;
      // Variables under which the test itself runs.
      if (name.rfind("TEST_", 0) == 0 || name == "TMPDIR") continue;
      unsetenv(info.variable);
    }
  }
};

TEST_F(InitTest, WithoutALauncherAProgramIsAWorldOfOneWithAWarning) {
  std::vector<std::string> lines;
  SetLogSink([&](const LogEntry& entry) { lines.emplace_back(entry.message); });
  const auto group = Init({.backend = "local"});
  SetLogSink(nullptr);
  ASSERT_THAT(group, IsOk());
  EXPECT_EQ((*group)->size(), 1);
  EXPECT_THAT((*group)->Destroy(), IsOk());
  EXPECT_THAT(lines, Contains(HasSubstr("a world of one rank; \"sherd run")));
}

TEST_F(InitTest, NamesTheMissingVariable) {
  {
    const ScopedVariable address("MASTER_ADDR", "127.0.0.1");
    EXPECT_THAT(Init(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("WORLD_SIZE expected, but not set")));
  }
  EXPECT_THAT(Init({.world_size = 2}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("RANK expected, but not set")));
}

TEST_F(InitTest, RejectsMalformedVariables) {
  const ScopedVariable size("WORLD_SIZE", "two");
  EXPECT_THAT(Init(), StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("WORLD_SIZE is \"two\"")));
}

TEST_F(InitTest, RejectsARankOutsideTheWorld) {
  const ScopedVariable size("WORLD_SIZE", "2"), rank("RANK", "2");
  EXPECT_THAT(
      Init(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("RANK is \"2\", expected a number from 0 to 1")));
  EXPECT_THAT(Init({.rank = 5, .world_size = 4}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank is 5, expected 0 to 3")));
}

TEST_F(InitTest, RejectsBadInitMethods) {
  const auto init = [](std::string method) {
    return Init({.backend = "local",
                 .rank = 0,
                 .world_size = 2,
                 .init_method = std::move(method)});
  };
  EXPECT_THAT(init(""), StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("where the ranks meet")));
  EXPECT_THAT(init("foo://x"), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("No rendezvous handler")));
  EXPECT_THAT(init("file://"), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("path missing")));
  EXPECT_THAT(init("file://relative"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(init("tcp://host"), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("port number missing")));
  EXPECT_THAT(init("tcp://no-such-host.invalid:29500"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("no-such-host.invalid")));
  EXPECT_THAT(init("env://"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("MASTER_ADDR expected, but not set")));
  const ScopedVariable host("MASTER_ADDR", "127.0.0.1");
  EXPECT_THAT(init("env://"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("MASTER_PORT expected, but not set")));
  EXPECT_THAT(init(""), StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("MASTER_PORT expected")));
}

TEST_F(InitTest, RejectsAUrlThatContradictsTheOptions) {
  EXPECT_THAT(Init({.backend = "local",
                    .rank = 0,
                    .world_size = 2,
                    .init_method = "file:///f?rank=1"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("InitOptions::rank is 0, but")));
  EXPECT_THAT(Init({.backend = "local",
                    .rank = 0,
                    .world_size = 2,
                    .init_method = "file:///f?world_size=3"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("InitOptions::world_size is 2, but")));
}

TEST_F(InitTest, RejectsStoreAndMethodTogetherAndBadTimeouts) {
  EXPECT_THAT(Init({.backend = "local",
                    .rank = 0,
                    .world_size = 1,
                    .init_method = "file:///x",
                    .store = std::make_shared<HashStore>()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("mutually exclusive")));
  EXPECT_THAT(
      Init({.backend = "local",
            .rank = 0,
            .world_size = 1,
            .store = std::make_shared<HashStore>(),
            .timeout = absl::ZeroDuration()}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout")));
}

TEST_F(InitTest, ASingleRankNeedsNoPlaceToMeet) {
  const auto group = Init({.backend = "local", .rank = 0, .world_size = 1});
  ASSERT_THAT(group, IsOk());
  EXPECT_THAT((*group)->Destroy(), IsOk());
}

TEST_F(InitTest, AnUnknownBackendListsTheSearchedPaths) {
  const ScopedVariable path("SHERD_PLUGIN_PATH", "/some/place");
  for (const char* name : {"warp", "hccl", "oneccl", "ucc", "WARP"}) {
    const std::string lower =
        name == std::string("WARP") ? "warp" : std::string(name);
    EXPECT_THAT(
        Init({.backend = name, .rank = 0, .world_size = 1}),
        StatusIs(
            absl::StatusCode::kNotFound,
            AllOf(HasSubstr(absl::StrCat("Backend ", lower, " not supported!")),
                  HasSubstr(absl::StrCat("/some/place/libsherd_backend_", lower,
                                         ".so")))));
  }
}

TEST_F(InitTest, NcclIsKnownAndReportsWhyItIsNotAvailable) {
  EXPECT_THAT(
      Init({.backend = "nccl", .rank = 0, .world_size = 1}),
      StatusIs(absl::StatusCode::kNotFound,
               AllOf(HasSubstr("Backend nccl not supported!"),
                     HasSubstr("libsherd_backend_nccl.so"),
                     HasSubstr("nccl moves the memory of NVIDIA GPUs"))));
}

TEST_F(InitTest, APartForCudaThatCannotBeMadeIsNamed) {
  EXPECT_THAT(
      Init({.backend = "cpu:local,cuda:nccl", .rank = 0, .world_size = 1}),
      StatusIs(absl::StatusCode::kNotFound,
               AllOf(HasSubstr("the cuda part of \"cpu:local,cuda:nccl\""),
                     HasSubstr("Backend nccl not supported!"))));
  EXPECT_THAT(
      Init({.backend = "cpu:local,cuda:local", .rank = 0, .world_size = 1}),
      StatusIs(
          absl::StatusCode::kFailedPrecondition,
          AllOf(HasSubstr("the cuda part"), HasSubstr("ask for \"local\""))));
  const auto cpu_only =
      Init({.backend = "cpu:local", .rank = 0, .world_size = 1});
  ASSERT_THAT(cpu_only, IsOk());
  EXPECT_EQ((*cpu_only)->backend().name, "local");
  EXPECT_THAT((*cpu_only)->Destroy(), IsOk());
}

TEST_F(InitTest, ADeviceNeedsAPartThatWorksOnIt) {
  EXPECT_THAT(Init({.backend = "local",
                    .rank = 0,
                    .world_size = 1,
                    .device = Device{DeviceType::kCuda, 0}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("InitOptions::device is cuda:0"),
                             HasSubstr("works on host memory only"))));
}

TEST_F(InitTest, RejectsMalformedPairs) {
  for (const auto& [text, words] :
       {std::pair("cpu:gloo,cpu:mpi", "Duplicate device type cpu"),
        {"cpu=gloo,cuda", "Invalid device:backend pairing"}}) {
    EXPECT_THAT(Init({.backend = text, .rank = 0, .world_size = 1}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words)));
  }
}

TEST_F(InitTest, AutoIsSharedMemoryIfItsProbeAllows) {
  Gloo().obstacle = Shm().obstacle = absl::OkStatus();
  const auto group = Init({.rank = 0, .world_size = 1});
  ASSERT_THAT(group, IsOk());
  EXPECT_EQ((*group)->backend().name, "shm");
  EXPECT_THAT((*group)->Destroy(), IsOk());
}

TEST_F(InitTest, AutoIsGlooIfSharedMemoryIsNotThere) {
  Gloo().obstacle = absl::OkStatus();
  Shm().obstacle = absl::UnavailableError("no /dev/shm");
  const auto group = Init({.backend = "AUTO", .rank = 0, .world_size = 1});
  ASSERT_THAT(group, IsOk());
  EXPECT_EQ((*group)->backend().name, "gloo");
  EXPECT_THAT((*group)->Destroy(), IsOk());
}

TEST_F(InitTest, AutoReportsWhyNeitherWorks) {
  Shm().obstacle = absl::UnavailableError("no /dev/shm");
  Gloo().obstacle = absl::UnavailableError("no network");
  EXPECT_THAT(
      Init({.rank = 0, .world_size = 1}),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no network")));
}

TEST_F(InitTest, TakesRankSizeAndMethodFromTheEnvironment) {
  const ScopedVariable size("WORLD_SIZE", "1"), rank("RANK", "0");
  const ScopedVariable backend("SHERD_BACKEND", "local");
  const ScopedVariable method("SHERD_INIT_METHOD",
                              absl::StrCat("file://", FreshPath()));
  const auto group = Init();
  ASSERT_THAT(group, IsOk());
  EXPECT_EQ((*group)->size(), 1);
  EXPECT_EQ((*group)->backend().name, "local");
  EXPECT_THAT((*group)->Barrier(), IsOk());
  EXPECT_THAT((*group)->Destroy(), IsOk());
}

TEST_F(InitTest, TakesRankAndSizeFromTheUrl) {
  const std::string path = FreshPath();
  for (const absl::Status& status : OnThreads(2, [&](int rank) {
         return Init({.backend = "local",
                      .init_method = absl::StrCat("file://", path,
                                                  "?world_size=2&rank=", rank),
                      .timeout = absl::Seconds(60)});
       })) {
    EXPECT_THAT(status, IsOk());
  }
}

TEST_F(InitTest, TheDefaultGroupLivesFromInitToDestroy) {
  EXPECT_THAT(DefaultGroup(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                       HasSubstr("has not been initialized")));
  const InitOptions options = {.backend = "local",
                               .rank = 0,
                               .world_size = 1,
                               .store = std::make_shared<HashStore>()};
  const auto group = Init(options);
  ASSERT_THAT(group, IsOk());
  const auto found = DefaultGroup();
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->get(), group->get());
  EXPECT_THAT(Init(options), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("twice")));
  EXPECT_THAT((*group)->Destroy(), IsOk());
  EXPECT_THAT(DefaultGroup(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(InitTest, OneFileServesManyGenerationsAndIsRemovedAtTheEnd) {
  const std::string path = FreshPath();
  testing::RunRankThreads(3, [&path](int rank) {
    for (int session = 0; session < 20; ++session) {
      const auto group = Init({.backend = "local",
                               .rank = rank,
                               .world_size = 3,
                               .init_method = absl::StrCat("file://", path),
                               .timeout = absl::Seconds(60)});
      ASSERT_THAT(group, IsOk());
      EXPECT_THAT((*group)->Barrier(), IsOk());
      EXPECT_THAT((*group)->Destroy(), IsOk());
    }
  });
  EXPECT_THAT(FileSystem::Posix().Exists(path), IsOkAndHolds(false));
}

TEST_F(InitTest, OneStoreServesManyGenerations) {
  const auto store = std::make_shared<HashStore>();
  for (int session = 0; session < 20; ++session) {
    for (const absl::Status& status : OnThreads(3, [&](int rank) {
           return Init({.backend = "local",
                        .rank = rank,
                        .world_size = 3,
                        .store = store,
                        .timeout = absl::Seconds(60)});
         })) {
      ASSERT_THAT(status, IsOk()) << "session " << session;
    }
  }
}

TEST_F(InitTest, OneAddressServesManyGenerations) {
  const ReservedPort port;
  for (int session = 0; session < 20; ++session) {
    for (const absl::Status& status : OnThreads(3, [&](int rank) {
           return Init({.backend = "local",
                        .rank = rank,
                        .world_size = 3,
                        .init_method = port.url(),
                        .timeout = absl::Seconds(60)});
         })) {
      ASSERT_THAT(status, IsOk()) << "session " << session;
    }
  }
}

TEST_F(InitTest, OneServerOfTheProgramServesManyGenerationsOfNewClients) {
  const auto server = TcpStoreServer::Start({});
  ASSERT_THAT(server, IsOk());
  for (int session = 0; session < 5; ++session) {
    for (const absl::Status& status :
         OnThreads(2, [&](int rank) -> GroupOrError {
           const auto store = TcpStore::Connect(
               {.host = "127.0.0.1", .port = (*server)->port()});
           if (!store.ok()) return store.status();
           return Init({.backend = "local",
                        .rank = rank,
                        .world_size = 2,
                        .store = *store,
                        .timeout = absl::Seconds(60)});
         })) {
      ASSERT_THAT(status, IsOk()) << "session " << session;
    }
  }
}

TEST_F(InitTest, MeetsWhereMasterAddrAndPortSay) {
  const ReservedPort port;
  const ScopedVariable host("MASTER_ADDR", "localhost");
  const ScopedVariable number("MASTER_PORT", absl::StrCat(port.number()));
  const ScopedVariable size("WORLD_SIZE", "2");
  for (const char* method : {"", "env://"}) {
    for (const absl::Status& status : OnThreads(2, [&](int rank) {
           return Init({.backend = "local",
                        .rank = rank,
                        .init_method = method,
                        .timeout = absl::Seconds(60)});
         })) {
      EXPECT_THAT(status, IsOk()) << method;
    }
  }
}

TEST_F(InitTest, NamesTheMissingRanks) {
  const auto alone = Init({.backend = "local",
                           .rank = 1,
                           .world_size = 3,
                           .store = std::make_shared<HashStore>(),
                           .timeout = absl::Milliseconds(20)});
  EXPECT_THAT(alone, StatusIs(absl::StatusCode::kDeadlineExceeded,
                              HasSubstr("ranks 0, 2 of 3 did not join")));
  const ErrorInfo info = GetErrorInfo(alone.status());
  EXPECT_EQ(info.operation, "init");
  EXPECT_EQ(info.group, "default");
  EXPECT_EQ(info.rank, 0);
}

TEST_F(InitTest, RanksMeetAfterOneGaveUp) {
  const auto store = std::make_shared<HashStore>();
  const auto init = [&](int rank, absl::Duration timeout) {
    return Init({.backend = "local",
                 .rank = rank,
                 .world_size = 2,
                 .store = store,
                 .timeout = timeout});
  };
  EXPECT_THAT(init(0, absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  for (const absl::Status& status :
       OnThreads(2, [&](int rank) { return init(rank, absl::Seconds(60)); })) {
    EXPECT_THAT(status, IsOk());
  }
}

TEST_F(InitTest, AFileOfAnotherRunIsAnErrorThatNamesIt) {
  const std::string path = FreshPath();
  // A run of two ranks of which one was killed: it never left.
  ASSERT_THAT(FileStore(path).Add("group/default/1/holder/0", 1), IsOk());
  EXPECT_THAT(Init({.backend = "local",
                    .rank = 0,
                    .world_size = 2,
                    .init_method = absl::StrCat("file://", path),
                    .timeout = absl::Seconds(60)}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(path),
                             HasSubstr("left over from another run"))));
}

TEST_F(InitTest, AMissingDirectoryIsReportedAtOnce) {
  EXPECT_THAT(
      Init({.backend = "local",
            .rank = 1,
            .world_size = 2,
            .init_method = "file:///no/such/place/file",
            .timeout = absl::Seconds(60)}),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/place/file")));
}

TEST_F(InitTest, DifferentBackendsAreTheSameErrorOnAllRanks) {
  Gloo().obstacle = absl::OkStatus();
  const auto store = std::make_shared<HashStore>();
  for (const absl::Status& status : OnThreads(3, [&](int rank) {
         return Init({.backend = rank == 1 ? "gloo" : "local",
                      .rank = rank,
                      .world_size = 3,
                      .store = store,
                      .timeout = absl::Seconds(60)});
       })) {
    EXPECT_THAT(
        status,
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr("backends differ: rank 1 asked for \"gloo\"; "
                           "ranks 0, 2 asked for \"local\"")));
    EXPECT_EQ(ErrorRank(status), 1);
  }
}

TEST_F(InitTest, DifferentWorldSizesAreTheSameErrorOnAllRanks) {
  for (const int odd : {0, 2}) {
    const auto store = std::make_shared<HashStore>();
    for (const absl::Status& status : OnThreads(3, [&](int rank) {
           return Init({.backend = "local",
                        .rank = rank,
                        .world_size = rank == odd ? 4 : 3,
                        .store = store,
                        .timeout = absl::Seconds(60)});
         })) {
      EXPECT_THAT(
          status,
          StatusIs(absl::StatusCode::kInvalidArgument,
                   HasSubstr(absl::StrCat("world sizes differ: rank ", odd,
                                          " asked for 4; ranks "))));
      const ErrorInfo info = GetErrorInfo(status);
      EXPECT_EQ(info.failed_rank, odd);
      EXPECT_EQ(info.operation, "init");
      EXPECT_EQ(info.group, "default");
    }
  }
}

TEST_F(InitTest, ABackendMissingOnOneRankIsAnErrorOnAllRanks) {
  for (int unable : {0, 2}) {
    const auto store = std::make_shared<HashStore>();
    for (const absl::Status& status : OnThreads(3, [&](int rank) {
           return Init({.backend = rank == unable ? "warp" : "local",
                        .rank = rank,
                        .world_size = 3,
                        .store = store,
                        .timeout = absl::Seconds(60)});
         })) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound,
                                   HasSubstr("Backend warp not supported!")));
      EXPECT_EQ(ErrorRank(status), unable);
    }
  }
}

TEST_F(InitTest, APortInUseIsReported) {
  ReservedPort port;
  port.Listen();
  const auto group = Init({.backend = "local",
                           .rank = 0,
                           .world_size = 2,
                           .init_method = port.url(),
                           .timeout = absl::Seconds(60)});
  EXPECT_THAT(group, StatusIs(absl::StatusCode::kUnavailable,
                              HasSubstr(absl::StrCat("rank 0 cannot listen on "
                                                     "127.0.0.1:",
                                                     port.number()))));
  EXPECT_EQ(ErrorRank(group.status()), 0);
}

TEST_F(InitTest, NoListenerIsAnErrorWithinTheTimeout) {
  const ReservedPort port;
  const absl::Time start = absl::Now();
  const auto group = Init({.backend = "local",
                           .rank = 1,
                           .world_size = 2,
                           .init_method = port.url(),
                           .timeout = absl::Milliseconds(200)});
  EXPECT_THAT(group,
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr(absl::StrCat("127.0.0.1:", port.number()))));
  EXPECT_EQ(ErrorRank(group.status()), 0);
  EXPECT_EQ(GetErrorInfo(group.status()).operation, "init");
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
}

TEST_F(InitTest, AStoreThatEndsWhileRanksMeetNamesRankZero) {
  auto server = TcpStoreServer::Start({});
  ASSERT_THAT(server, IsOk());
  const int port = (*server)->port();
  absl::Status status;
  std::thread one([&] {
    status = Init({.backend = "local",
                   .rank = 1,
                   .world_size = 2,
                   .init_method = absl::StrCat("tcp://127.0.0.1:", port),
                   .timeout = absl::Seconds(60)})
                 .status();
  });
  const auto store = TcpStore::Connect({.host = "127.0.0.1", .port = port});
  ASSERT_THAT(store, IsOk());
  EXPECT_THAT((*store)->Get("group/default/1/member/1",
                            Deadline::After(absl::Seconds(60))),
              IsOk());
  (*server)->Shutdown(Deadline::After(absl::ZeroDuration())).IgnoreError();
  one.join();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               HasSubstr("the store of rank 0: ")));
  EXPECT_EQ(FailedRank(status), 0);
}

TEST_F(InitTest, SomethingElseOnThePortIsAnErrorWithinTheTimeout) {
  for (const char* answer :
       {"HTTP/1.1 400 Bad Request\r\n\r\n", "\0\0\0\0\0\0\0\0", ""}) {
    ReservedPort port;
    port.Listen();
    std::thread stranger([&] { port.Answer(answer); });
    const auto group = Init({.backend = "local",
                             .rank = 1,
                             .world_size = 2,
                             .init_method = port.url(),
                             .timeout = absl::Seconds(1)});
    stranger.join();
    EXPECT_FALSE(group.ok());
    EXPECT_THAT(group.status().message(),
                HasSubstr(absl::StrCat("127.0.0.1:", port.number())));
    EXPECT_EQ(ErrorRank(group.status()), 0);
  }
}

TEST_F(InitTest, ASecretThatOthersCanReadIsRefused) {
  const ReservedPort port;
  const auto init = [&](const std::string& file) {
    const ScopedVariable variable("SHERD_SECRET_FILE", file);
    return Init({.backend = "local",
                 .rank = 0,
                 .world_size = 2,
                 .init_method = port.url(),
                 .timeout = absl::Milliseconds(100)});
  };
  const std::string path = FreshPath();
  EXPECT_THAT(init(WriteSecret(path, "secret", 0604)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(path), HasSubstr("other users"))));
  EXPECT_THAT(
      init(WriteSecret(path, "\n", 0600)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is empty")));
  const std::string pipe = path + ".pipe";
  std::remove(pipe.c_str());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(init(pipe), StatusIs(absl::StatusCode::kInvalidArgument,
                                   AllOf(HasSubstr("SHERD_SECRET_FILE"),
                                         HasSubstr("it is a pipe"))));
  EXPECT_THAT(
      init("/no/such/secret"),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("SHERD_SECRET_FILE")));
}

TEST_F(InitTest, RanksWithOneSecretMeetAndOthersAreRejected) {
  const ReservedPort port;
  const std::string path = WriteSecret(FreshPath(), "secret\n", 0600);
  {
    const ScopedVariable variable("SHERD_SECRET_FILE", path);
    for (const absl::Status& status : OnThreads(2, [&](int rank) {
           return Init({.backend = "local",
                        .rank = rank,
                        .world_size = 2,
                        .init_method = port.url(),
                        .timeout = absl::Seconds(60)});
         })) {
      EXPECT_THAT(status, IsOk());
    }
  }
  EXPECT_THAT(
      Init({.backend = "local",
            .rank = 1,
            .world_size = 2,
            .init_method = port.url(),
            .timeout = absl::Seconds(60)}),
      StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("secret")));
}

}  // namespace
}  // namespace sherd
