#include "sherd/core/comm/store.h"

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/store/file_store.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/comm/store/store_conformance.h"
#include "sherd/core/comm/store/tcp_store.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing {
namespace {

using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Milliseconds(20)); }

StoreKind::Opener OpenHash() {
  return [store = std::make_shared<HashStore>()] { return store; };
}

StoreKind::Opener OpenFile() {
  static int counter = 0;
  const std::string path =
      absl::StrCat(::testing::TempDir(), "/conformance_", ++counter, ".store");
  std::remove(path.c_str());
  return [path] { return std::make_shared<FileStore>(path); };
}

StoreKind::Opener OpenTcp() {
  absl::StatusOr<std::unique_ptr<TcpStoreServer>> server =
      TcpStoreServer::Start({.secret = "of the suite"});
  EXPECT_THAT(server, IsOk());
  // Destroyed with the opener, which the suite destroys after its stores, but
  // possibly before threads that a test left running.
  return [server = std::shared_ptr<TcpStoreServer>(*std::move(server))] {
    absl::StatusOr<std::shared_ptr<TcpStore>> store =
        TcpStore::Connect({.host = "127.0.0.1",
                           .port = server->port(),
                           .secret = "of the suite",
                           .deadline = Deadline::After(absl::Seconds(30)),
                           .call_timeout = absl::Seconds(60)});
    EXPECT_THAT(store, IsOk());
    return *std::move(store);
  };
}

StoreKind Kind(std::string name, StoreKind::Opener (*make)()) {
  return {std::move(name), make};
}

StoreKind Prefixed(std::string name, StoreKind::Opener (*make)()) {
  return {std::move(name), [make] {
            return [open = make()] {
              return std::make_shared<PrefixStore>("a", open());
            };
          }};
}

INSTANTIATE_TEST_SUITE_P(AllStores, StoreConformanceTest,
                         ::testing::Values(Kind("Hash", OpenHash),
                                           Kind("File", OpenFile),
                                           Kind("Tcp", OpenTcp),
                                           Prefixed("PrefixOverHash", OpenHash),
                                           Prefixed("PrefixOverFile", OpenFile),
                                           Prefixed("PrefixOverTcp", OpenTcp)),
                         StoreKindName);

TEST(PrefixStoreTest, KeepsNamespacesApart) {
  const auto base = std::make_shared<HashStore>();
  PrefixStore a("a", base), b("b", base), ab("ab", base);
  ASSERT_THAT(a.Set("b/k", "1"), IsOk());
  ASSERT_THAT(b.Set("k", "2"), IsOk());
  ASSERT_THAT(ab.Set("k", "3"), IsOk());
  EXPECT_THAT(a.Get("b/k", Soon()), IsOkAndHolds("1"));
  EXPECT_THAT(base->Get("b/k", Soon()), IsOkAndHolds("2"));
  EXPECT_THAT(a.DeletePrefix("b"), IsOkAndHolds(1));
  EXPECT_THAT(b.Get("k", Soon()), IsOkAndHolds("2"));
  EXPECT_THAT(base->DeletePrefix("a"), IsOkAndHolds(0));
  EXPECT_THAT(ab.Get("k", Soon()), IsOkAndHolds("3"));
}

TEST(PrefixStoreTest, MessagesNameTheWholeKey) {
  PrefixStore store("outer", std::make_shared<PrefixStore>(
                                 "inner", std::make_shared<HashStore>()));
  EXPECT_THAT(store.Get("k", Soon()),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("inner/outer/k")));
}

TEST(PrefixStoreTest, RetiresBelowItsPrefixOnly) {
  const auto base = std::make_shared<HashStore>();
  PrefixStore store("p", base);
  ASSERT_THAT(store.Set("g/1", "v"), IsOk());
  ASSERT_THAT(base->Set("g/1", "w"), IsOk());
  ASSERT_THAT(store.Retire("g", 1), IsOk());
  EXPECT_THAT(base->Contains("p/g/1"), IsOkAndHolds(false));
  EXPECT_THAT(base->Contains("g/1"), IsOkAndHolds(true));
}

}  // namespace
}  // namespace sherd::testing
