#include "sherd/backends/nccl/nccl_error.h"

#include <string>

#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/nccl/nccl_api.h"
#include "sherd/backends/nccl/planned_nccl.h"

namespace sherd::internal {
namespace {

struct Case {
  int result;
  sherd_code code;
  bool ends;
};

TEST(NcclErrorTest, MapsEveryResultAndThoseOfNewerLibraries) {
  const PlannedNccl nccl;
  const NcclApi api = nccl.Library().api;
  for (const Case& test : {
           Case{kNcclUnhandledCudaError, SHERD_SYSTEM, true},
           Case{kNcclSystemError, SHERD_SYSTEM, true},
           Case{kNcclInternalError, SHERD_INTERNAL, true},
           Case{kNcclInvalidArgument, SHERD_INVALID_ARGUMENT, false},
           Case{kNcclInvalidUsage, SHERD_INTERNAL, true},
           Case{kNcclRemoteError, SHERD_PEER_LOST, true},
           Case{kNcclTimeout, SHERD_TIMEOUT, true},
           Case{9, SHERD_INTERNAL, true},
           Case{1 << 30, SHERD_INTERNAL, true},
           Case{-1, SHERD_INTERNAL, true},
       }) {
    SCOPED_TRACE(test.result);
    const auto result = static_cast<NcclResult>(test.result);
    sherd_error_v0 error = {.struct_size = sizeof(error)};
    EXPECT_EQ(FailWithNccl(api, result, "ncclSend", &error), test.code);
    EXPECT_EQ(error.native_code, test.result);
    EXPECT_EQ(error.peer, -1);
    EXPECT_EQ(EndsNcclComm(result), test.ends);
  }
  EXPECT_FALSE(EndsNcclComm(kNcclSuccess));
  EXPECT_FALSE(EndsNcclComm(kNcclInProgress));
}

TEST(NcclErrorTest, ReportsTheTextOfNccl) {
  PlannedNccl nccl;
  NcclApi api = nccl.Library().api;
  sherd_error_v0 error = {.struct_size = sizeof(error)};
  FailWithNccl(api, kNcclInvalidUsage, "ncclSend", &error);
  EXPECT_EQ(std::string(error.text),
            "ncclSend: invalid usage (run with NCCL_DEBUG=WARN for details)");

  // The details make the advice needless.
  nccl.SetLastError("Duplicate GPU detected : rank 0 and rank 1\n");
  FailWithNccl(api, kNcclInvalidUsage, "ncclSend", &error);
  EXPECT_EQ(std::string(error.text),
            "ncclSend: invalid usage: Duplicate GPU detected : rank 0 and rank "
            "1");

  api.get_last_error = nullptr;
  FailWithNccl(api, kNcclInternalError, "ncclSend", &error);
  EXPECT_EQ(std::string(error.text),
            "ncclSend: internal error - please report this issue to the NCCL "
            "developers");
}

TEST(NcclErrorTest, KnowsADriverThatIsOlderThanNccl) {
  PlannedNccl nccl;
  nccl.SetLastError(
      "Cuda failure 'CUDA driver version is insufficient for CUDA runtime "
      "version'");
  sherd_error_v0 error = {.struct_size = sizeof(error)};
  EXPECT_EQ(FailWithNccl(nccl.Library().api, kNcclUnhandledCudaError, "ncclX",
                         &error),
            SHERD_SYSTEM);
  EXPECT_NE(std::string(error.text).find("; update NVIDIA's driver, or use"),
            std::string::npos);
}

TEST(NcclErrorTest, KnowsALackOfMemory) {
  PlannedNccl nccl;
  const NcclApi api = nccl.Library().api;
  for (const char* text :
       {"Cuda failure 2 'out of memory'", "Cannot allocate memory"}) {
    nccl.SetLastError(text);
    sherd_error_v0 error = {.struct_size = sizeof(error)};
    EXPECT_EQ(FailWithNccl(api, kNcclUnhandledCudaError, "ncclX", &error),
              SHERD_RESOURCE);
    EXPECT_EQ(FailWithNccl(api, kNcclSystemError, "ncclX", &error),
              SHERD_RESOURCE);
    // An error of another rank is not this rank's lack of resources.
    EXPECT_EQ(FailWithNccl(api, kNcclRemoteError, "ncclX", &error),
              SHERD_PEER_LOST);
  }
}

}  // namespace
}  // namespace sherd::internal
