#include "sherd/core/comm/bootstrap/backend_agreement.h"

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Of ranks that are alike, but for what `change` does.
absl::StatusOr<BackendAgreement> Agree(
    int size, const std::function<void(int rank, BackendRequest&)>& change) {
  std::vector<std::string> requests;
  for (int rank = 0; rank < size; ++rank) {
    BackendRequest request = {.backend = "gloo",
                              .host = {"network 1", "machine 1"}};
    change(rank, request);
    requests.push_back(request.ToText());
  }
  SHERD_ASSIGN_OR_RETURN(const std::string text, AgreeOnBackend(requests));
  return BackendAgreement::Parse(text);
}

TEST(BackendAgreementTest, DistinguishesHosts) {
  const auto agreed = Agree(4, [](int rank, BackendRequest& request) {
    if (rank >= 2) request.host = {"network 2", "machine 2"};
  });
  ASSERT_THAT(agreed, IsOk());
  EXPECT_FALSE(agreed->one_network);
  EXPECT_FALSE(agreed->one_host());
  EXPECT_EQ(agreed->elsewhere, 2);
}

TEST(BackendAgreementTest, ContainersThatShareANetworkAreNotOneHost) {
  const auto agreed = Agree(3, [](int rank, BackendRequest& request) {
    if (rank == 1) request.host.machine = "another container";
  });
  ASSERT_THAT(agreed, IsOk());
  EXPECT_TRUE(agreed->one_network);
  EXPECT_FALSE(agreed->one_host());
  EXPECT_EQ(agreed->elsewhere, 1);
}

TEST(BackendAgreementTest, AutoIsSharedMemoryWhereAllRanksCan) {
  const auto agreed =
      Agree(3, [](int, BackendRequest& request) { request.backend = "auto"; });
  ASSERT_THAT(agreed, IsOk());
  EXPECT_EQ(agreed->backend, "shm");
  EXPECT_EQ(agreed->reason, "");
}

TEST(BackendAgreementTest, AutoIsGlooWhereOneRankCannotWithTheReason) {
  const auto agreed = Agree(3, [](int rank, BackendRequest& request) {
    request.backend = "auto";
    if (rank == 1) request.shm_obstacle = "memfd_create\nis not there";
  });
  ASSERT_THAT(agreed, IsOk());
  EXPECT_EQ(agreed->backend, "gloo");
  EXPECT_EQ(agreed->reason, "on rank 1: memfd_create is not there");
}

TEST(BackendAgreementTest, AutoIsGlooAcrossHostsWithTheReason) {
  const auto agreed = Agree(3, [](int rank, BackendRequest& request) {
    request.backend = "auto";
    if (rank == 2) request.host.network = "network 2";
  });
  ASSERT_THAT(agreed, IsOk());
  EXPECT_EQ(agreed->backend, "gloo");
  EXPECT_EQ(agreed->reason, "rank 2 is not on the host of rank 0");
}

TEST(BackendAgreementTest, AnotherBackendForDevicesIsAnError) {
  for (const std::string other : {"", "rccl"}) {
    const auto agreed = Agree(3, [&](int rank, BackendRequest& request) {
      request.device_backend = rank == 1 ? other : "nccl";
    });
    EXPECT_THAT(
        agreed,
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("ranks 0, 2 asked for \"cpu:gloo,cuda:nccl\""),
                       HasSubstr(other.empty() ? "rank 1 asked for \"gloo\""
                                               : "rank 1 asked for "
                                                 "\"cpu:gloo,cuda:rccl\""))));
    EXPECT_EQ(FailedRank(agreed.status()), 1);
  }
}

TEST(BackendAgreementTest, MalformedTextIsAnError) {
  const std::string good = BackendRequest{.backend = "gloo"}.ToText();
  for (const std::string& bad : {std::string(), good + "\n"}) {
    const absl::Status status = AgreeOnBackend({good, bad}).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("the record of rank 1")));
    EXPECT_EQ(ErrorRank(status), 1);
  }
  for (const char* bad : {"", "gloo\n\n1\nx", "gloo\n\n1\n-1\n"}) {
    EXPECT_THAT(BackendAgreement::Parse(bad),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("the summary of rank 0")))
        << bad;
  }
}

}  // namespace
}  // namespace sherd::internal
