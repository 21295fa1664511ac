#include "sherd/core/comm/bootstrap/host_address.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

const std::vector<NetworkInterface>& SomeInterfaces() {
  static const auto* const interfaces = new std::vector<NetworkInterface>{
      {"lo", "127.0.0.1"},  {"docker0", "172.17.0.1"}, {"eth0", "fd00::5"},
      {"eth0", "10.0.0.5"}, {"eth1", "192.168.0.5"},   {"ib0", "10.9.0.5"},
      {"wg0", "fd99::5"}};
  return *interfaces;
}

TEST(HostAddressTest, KnowsTheLoopback) {
  for (const char* address :
       {"127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"10.0.0.1", "12.7.0.1", "::2", "fd00::1", ""}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
  EXPECT_EQ(LoopbackLike("10.0.0.1"), "127.0.0.1");
  EXPECT_EQ(LoopbackLike(""), "127.0.0.1");
  EXPECT_EQ(LoopbackLike("fd00::1"), "::1");
}

TEST(HostAddressTest, WritesIpv6InBrackets) {
  EXPECT_EQ(HostAndPort("10.0.0.1", 80), "10.0.0.1:80");
  EXPECT_EQ(HostAndPort("node", 80), "node:80");
  EXPECT_EQ(HostAndPort("fd00::1", 80), "[fd00::1]:80");
}

TEST(HostAddressTest, ResolvesAddressesAndNames) {
  const Deadline deadline = Deadline::After(absl::Seconds(30));
  EXPECT_THAT(ResolveHost("10.1.2.3", deadline),
              IsOkAndHolds(ElementsAre("10.1.2.3")));
  EXPECT_THAT(ResolveHost("FD00:0:0::7", deadline),
              IsOkAndHolds(ElementsAre("fd00::7")));
  const auto localhost = ResolveHost("localhost", deadline);
  ASSERT_THAT(localhost, IsOk());
  for (const std::string& address : *localhost) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  EXPECT_THAT(ResolveHost("no-such-host.invalid", deadline),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"no-such-host.invalid\" is unknown")));
  EXPECT_THAT(ResolveHost("", deadline),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(HostAddressTest, ANameIsNotWaitedForBeyondTheDeadline) {
  const auto found =
      ResolveHost("no-such-host.invalid", Deadline::After(-absl::Seconds(1)));
  // The resolver may have been quicker than the look at the clock.
  EXPECT_THAT(found.status().code(), AnyOf(absl::StatusCode::kDeadlineExceeded,
                                           absl::StatusCode::kInvalidArgument));
}

TEST(HostAddressTest, TheRouteToAnOwnAddressBeginsAtThatAddress) {
  EXPECT_THAT(AddressTowards("127.0.0.1"), IsOkAndHolds("127.0.0.1"));
  const auto interfaces = ListInterfaces();
  ASSERT_THAT(interfaces, IsOk());
  EXPECT_THAT(*interfaces,
              Contains(Field(&NetworkInterface::address, "127.0.0.1")));
  for (const NetworkInterface& interface : *interfaces) {
    EXPECT_THAT(AddressTowards(interface.address),
                IsOkAndHolds(interface.address));
  }
  EXPECT_THAT(AddressTowards("a name"),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(HostAddressTest, InterfacesAreChosenByPrefixNameOrExclusion) {
  struct {
    const char* pattern;
    const char* like;
    const char* address;
  } const cases[] = {
      {"eth", "", "10.0.0.5"},
      {"eth", "10.0.0.1", "10.0.0.5"},
      {"eth", "fd00::1", "fd00::5"},
      {"eth1", "", "192.168.0.5"},
      {"ib,eth", "", "10.0.0.5"},
      {"=ib0", "", "10.9.0.5"},
      {"=eth1,ib0", "", "192.168.0.5"},
      {"^docker", "", "10.0.0.5"},
      {"^docker,eth", "", "10.9.0.5"},
      {"^=eth0,docker0", "", "192.168.0.5"},
      {"wg", "", "fd99::5"},
      {"lo", "", "127.0.0.1"},
  };
  for (const auto& [pattern, like, address] : cases) {
    EXPECT_THAT(AddressOfInterface(pattern, like, SomeInterfaces()),
                IsOkAndHolds(std::string(address)))
        << pattern << " like " << like;
  }
}

TEST(HostAddressTest, AMissingInterfaceIsAnErrorThatListsAll) {
  for (const auto& [pattern, like] : {std::pair("enp", ""),
                                      {"=eth", ""},
                                      {"wg", "10.0.0.1"},
                                      {"^docker,eth,ib,wg", ""},
                                      {"", ""}}) {
    EXPECT_THAT(
        AddressOfInterface(pattern, like, SomeInterfaces()),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr(pattern), HasSubstr("ib0 (10.9.0.5)"))))
        << pattern;
  }
}

TEST(HostAddressTest, ThisProcessIsOnItsOwnHost) {
  EXPECT_EQ(OwnHostIdentity(), OwnHostIdentity());
  EXPECT_FALSE(OwnHostIdentity().network.empty());
  EXPECT_FALSE(OwnHostIdentity().machine.empty());
}

}  // namespace
}  // namespace sherd
