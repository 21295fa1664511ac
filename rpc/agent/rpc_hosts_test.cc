// Workers on two hosts: their addresses, and how they reach each other.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/kits/several_hosts.h"

namespace sherd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kWarning[] = "without a shared secret";

class RpcHostsTest : public testing::SeveralHosts {
 protected:
  RpcHostsTest() : SeveralHosts("rpc/several_hosts_worker") {}

  std::string Secret(const std::string& name, const std::string& secret) {
    return absl::StrCat(" SHERD_SECRET_FILE=", WriteFile(name, secret));
  }

  // All have reached all, at the addresses of hosts a and b; those of one host
  // also by Unix sockets, if these are allowed.
  static void ExpectReached(const std::vector<std::string>& printed,
                            const std::string& on_a, const std::string& on_b,
                            bool unix_sockets = true) {
    for (size_t rank = 0; rank < printed.size(); ++rank) {
      const std::string& text = printed[rank];
      SCOPED_TRACE(absl::StrCat("rank ", rank));
      for (int to = 0; to < kRanks; ++to) {
        EXPECT_THAT(text, HasSubstr(absl::StrCat("elements at worker", to,
                                                 ": 100000\n")));
      }
      EXPECT_THAT(text, HasSubstr(absl::StrCat("listening on ",
                                               rank < 2 ? on_a : on_b, ":")));
      if (unix_sockets) {
        EXPECT_THAT(text, HasSubstr("listening on @sherd-rpc-"));
      } else {
        EXPECT_THAT(text, Not(HasSubstr("listening on @")));
      }
      EXPECT_THAT(text, HasSubstr("a small call among 8 large ones\n"));
      EXPECT_THAT(text, HasSubstr("shut down\n"));
    }
  }
};

TEST_F(RpcHostsTest, WorkersListenOnTheRouteToTheOthersAndWarn) {
  const auto printed = RunRanks("MASTER_ADDR=10.77.0.1");
  ExpectReached(printed, "10.77.0.1", "10.77.0.2");
  for (const std::string& text : printed) {
    EXPECT_THAT(text, HasSubstr(kWarning));
  }
}

TEST_F(RpcHostsTest, WithASecretTheyConnectWithoutAWarning) {
  const auto printed =
      RunRanks(absl::StrCat("MASTER_ADDR=fd77::1 SHERD_RPC_TRANSPORTS=tcp",
                            Secret("secret", "correct horse\n")));
  ExpectReached(printed, "[fd77::1]", "[fd77::2]", /*unix_sockets=*/false);
  for (const std::string& text : printed) {
    EXPECT_THAT(text, Not(HasSubstr(kWarning)));
  }
}

TEST_F(RpcHostsTest, ASharedFileServesTooAndTheInterfaceIsChosen) {
  ExpectReached(
      RunRanks(absl::StrCat("SHERD_SOCKET_IFNAME=v SHERD_INIT_METHOD=file://",
                            out(), "/meet")),
      "10.77.0.1", "10.77.0.2");
}

TEST_F(RpcHostsTest, AnotherSecretIsAnErrorThatNamesTheWorker) {
  // The file does not ask for it; the workers do.
  const auto printed =
      RunRanks(absl::StrCat("SHERD_INIT_METHOD=file://", out(), "/meet",
                            Secret("secret", "correct horse\n")),
               Secret("other", "battery staple\n"));
  EXPECT_THAT(printed[3], AllOf(HasSubstr("PERMISSION_DENIED"),
                                HasSubstr("worker0 (rank 0) is lost: "),
                                HasSubstr("secret")));
}

TEST_F(RpcHostsTest, UnixSocketsAloneDoNotReachAnotherHost) {
  for (const std::string& text :
       RunRanks("MASTER_ADDR=10.77.0.1 SHERD_RPC_TRANSPORTS=unix")) {
    EXPECT_THAT(text, HasSubstr("worker0 (rank 0) and worker2 (rank 2) cannot "
                                "reach each other: on two hosts"));
  }
}

}  // namespace
}  // namespace sherd
