// A process that mpirun did not start.

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/host/loader.h"
#include "sherd/core/comm/init.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MpiLaunchTest, IsRefusedWithTheCommandThatStartsIt) {
  const auto backend = LoadBackend("mpi", {"backends/mpi"});
  ASSERT_THAT(backend, IsOk());
  EXPECT_THAT((*backend)->info().library_version, HasSubstr("MPI"));
  const absl::Status probe = (*backend)->Probe();
  EXPECT_FALSE(probe.ok());
  EXPECT_THAT(std::string(probe.message()),
              AllOf(HasSubstr("backend mpi unavailable"),
                    HasSubstr("mpirun -n N PROGRAM")));
}

TEST(MpiLaunchTest, InitReportsTheSame) {
  const auto group = Init({.backend = "mpi", .rank = 0, .world_size = 1});
  ASSERT_FALSE(group.ok());
  EXPECT_THAT(std::string(group.status().message()), HasSubstr("mpirun"));
}

}  // namespace
}  // namespace sherd
