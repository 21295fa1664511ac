#include "sherd/core/comm/bootstrap/init_method.h"

#include <optional>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

TEST(InitMethodTest, ReadsFiles) {
  const auto plain = InitMethod::Parse("file:///shared/run 7/meet");
  ASSERT_THAT(plain, IsOk());
  EXPECT_EQ(plain->kind, InitMethod::Kind::kFile);
  EXPECT_EQ(plain->path, "/shared/run 7/meet");
  EXPECT_EQ(plain->rank, std::nullopt);
  EXPECT_EQ(plain->world_size, std::nullopt);
  const auto full = InitMethod::Parse("file:///m?world_size=8&rank=3");
  ASSERT_THAT(full, IsOk());
  EXPECT_EQ(full->path, "/m");
  EXPECT_EQ(full->rank, 3);
  EXPECT_EQ(full->world_size, 8);
}

TEST(InitMethodTest, ReadsAddresses) {
  struct {
    const char* url;
    const char* host;
    int port;
  } const cases[] = {{"tcp://10.0.0.7:29500", "10.0.0.7", 29500},
                     {"tcp://node-1.example.org:1", "node-1.example.org", 1},
                     {"tcp://[fd00::7]:65535", "fd00::7", 65535},
                     {"tcp://[fe80::1%eth0]:80/", "fe80::1%eth0", 80},
                     {"tcp://h:5?rank=0", "h", 5}};
  for (const auto& [url, host, port] : cases) {
    const auto method = InitMethod::Parse(url);
    ASSERT_THAT(method, IsOk()) << url;
    EXPECT_EQ(method->kind, InitMethod::Kind::kTcp);
    EXPECT_EQ(method->host, host);
    EXPECT_EQ(method->port, port);
  }
}

TEST(InitMethodTest, ReadsTheEnvironmentWithParameters) {
  const auto method = InitMethod::Parse("env://?rank=1&world_size=2");
  ASSERT_THAT(method, IsOk());
  EXPECT_EQ(method->kind, InitMethod::Kind::kEnvironment);
  EXPECT_EQ(method->rank, 1);
  EXPECT_EQ(method->world_size, 2);
  EXPECT_THAT(InitMethod::Parse("env://"), IsOk());
}

TEST(InitMethodTest, RejectsEverythingElse) {
  for (const auto& [url, words] :
       {std::pair("", "No rendezvous handler for \"\""),
        {"foo://x", "No rendezvous handler for \"foo://x\""},
        {"/tmp/file", "No rendezvous handler"},
        {"file://", "path missing or not absolute"},
        {"file://relative", "path missing or not absolute"},
        {"file://?rank=0", "path missing or not absolute"},
        {"tcp://", "host missing"},
        {"tcp://:29500", "host missing"},
        {"tcp://[]:29500", "host missing"},
        {"tcp://host", "port number missing"},
        {"tcp://host:", "port number missing"},
        {"tcp://[::1]29500", "port number missing"},
        {"tcp://[::1", "no closing bracket"},
        {"tcp://fd00::7:29500", "IPv6 address without brackets"},
        {"tcp://host:0", "port \"0\""},
        {"tcp://host:65536", "port \"65536\""},
        {"tcp://host:-1", "port \"-1\""},
        {"tcp://host:80x", "port \"80x\""},
        {"env://host:80", "nothing behind env://"},
        {"file:///f?rang=0", "unknown parameter \"rang\""},
        {"file:///f?rank=", "rank in \"file:///f?rank=\" is \"\""},
        {"file:///f?rank=-1", "is \"-1\""},
        {"file:///f?world_size=0", "is \"0\""},
        {"file:///f?world_size=99999999999", "expected a number from 1"}}) {
    EXPECT_THAT(InitMethod::Parse(url),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words)))
        << url;
  }
}

}  // namespace
}  // namespace sherd
