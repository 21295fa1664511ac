#include "sherd/core/comm/init.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/hash_store.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

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

std::string FreshPath() {
  const std::string path = absl::StrCat(
      ::testing::TempDir(), "/",
      ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::remove(path.c_str());
  return path;
}

class InitTest : public ::testing::Test {
 protected:
  InitTest() {
    for (const char* name : {"RANK", "WORLD_SIZE", "SHERD_INIT_METHOD",
                             "SHERD_BACKEND", "SHERD_TIMEOUT"}) {
      unsetenv(name);
    }
  }
};

TEST_F(InitTest, SaysWhichVariableIsMissing) {
  EXPECT_THAT(Init(), StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("WORLD_SIZE expected, but not set")));
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
                 .world_size = 1,
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

TEST_F(InitTest, AnUnknownBackendSaysWhatWasSearched) {
  EXPECT_THAT(Init({.backend = "warp", .rank = 0, .world_size = 1}),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("Backend warp not supported!"),
                             HasSubstr("libsherd_backend_warp.so"))));
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

TEST_F(InitTest, OneFileServesSeveralLivesAndIsRemovedAtTheEnd) {
  const std::string path = FreshPath();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&path, rank] {
      for (int life = 0; life < 3; ++life) {
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
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_FALSE(FileSystem::Posix().Exists(path));
}

TEST_F(InitTest, NamesTheRanksThatDoNotCome) {
  EXPECT_THAT(Init({.backend = "local",
                    .rank = 1,
                    .world_size = 3,
                    .store = std::make_shared<HashStore>(),
                    .timeout = absl::Milliseconds(20)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("ranks 0, 2 of 3 did not join")));
}

}  // namespace
}  // namespace sherd
