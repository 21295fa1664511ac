// Holds our declarations equal to NVIDIA's, where there are such: the toolkit
// has no nccl.h of its own, and one that is older than ours lacks something.

#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "gtest/gtest.h"
#include "sherd/backends/nccl/nccl_api.h"

#if defined(NCCL_VERSION_CODE) && NCCL_VERSION_CODE >= 22807

namespace sherd::internal {
namespace {

// Whether a call through our type of a value passes theirs: the same class and
// size. Enumerations are numbers, and pointers addresses.
template <typename Ours, typename Theirs>
constexpr bool kPassesAs =
    sizeof(Ours) == sizeof(Theirs) &&
    std::is_pointer_v<Ours> ==
        std::is_pointer_v<Theirs>&& std::is_class_v<Ours> ==
        std::is_class_v<Theirs> &&
    (std::is_integral_v<Ours> || std::is_enum_v<Ours>) ==
        (std::is_integral_v<Theirs> || std::is_enum_v<Theirs>);

template <typename Ours, typename Theirs>
struct IsSameCall : std::false_type {};

template <typename R1, typename... A1, typename R2, typename... A2>
struct IsSameCall<R1 (*)(A1...), R2 (*)(A2...)> {
  static constexpr bool Compare() {
    if constexpr (sizeof...(A1) != sizeof...(A2)) {
      return false;
    } else {
      return kPassesAs<R1, R2> && (kPassesAs<A1, A2> && ...);
    }
  }
  static constexpr bool value = Compare();
};

#define SHERD_SAME_CALL(member, symbol, required)                        \
  static_assert(                                                         \
      IsSameCall<decltype(NcclApi::member), decltype(&::symbol)>::value, \
      #symbol " is declared differently");
SHERD_NCCL_FUNCTIONS(SHERD_SAME_CALL)
#undef SHERD_SAME_CALL

#define SHERD_SAME_VALUE(ours, theirs) \
  static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
SHERD_SAME_VALUE(kNcclSuccess, ncclSuccess);
SHERD_SAME_VALUE(kNcclUnhandledCudaError, ncclUnhandledCudaError);
SHERD_SAME_VALUE(kNcclSystemError, ncclSystemError);
SHERD_SAME_VALUE(kNcclInternalError, ncclInternalError);
SHERD_SAME_VALUE(kNcclInvalidArgument, ncclInvalidArgument);
SHERD_SAME_VALUE(kNcclInvalidUsage, ncclInvalidUsage);
SHERD_SAME_VALUE(kNcclRemoteError, ncclRemoteError);
SHERD_SAME_VALUE(kNcclInProgress, ncclInProgress);
SHERD_SAME_VALUE(kNcclInt8, ncclInt8);
SHERD_SAME_VALUE(kNcclUint8, ncclUint8);
SHERD_SAME_VALUE(kNcclInt32, ncclInt32);
SHERD_SAME_VALUE(kNcclUint32, ncclUint32);
SHERD_SAME_VALUE(kNcclInt64, ncclInt64);
SHERD_SAME_VALUE(kNcclUint64, ncclUint64);
SHERD_SAME_VALUE(kNcclFloat16, ncclFloat16);
SHERD_SAME_VALUE(kNcclFloat32, ncclFloat32);
SHERD_SAME_VALUE(kNcclFloat64, ncclFloat64);
SHERD_SAME_VALUE(kNcclBfloat16, ncclBfloat16);
SHERD_SAME_VALUE(kNcclFloat8e4m3, ncclFloat8e4m3);
SHERD_SAME_VALUE(kNcclFloat8e5m2, ncclFloat8e5m2);
SHERD_SAME_VALUE(kNcclSum, ncclSum);
SHERD_SAME_VALUE(kNcclProd, ncclProd);
SHERD_SAME_VALUE(kNcclMax, ncclMax);
SHERD_SAME_VALUE(kNcclMin, ncclMin);
SHERD_SAME_VALUE(kNcclAvg, ncclAvg);
SHERD_SAME_VALUE(kNcclUndefined, NCCL_CONFIG_UNDEF_INT);
SHERD_SAME_VALUE(kNcclSplitNoColor, NCCL_SPLIT_NOCOLOR);
SHERD_SAME_VALUE(kNcclShrinkDefault, NCCL_SHRINK_DEFAULT);
SHERD_SAME_VALUE(kNcclShrinkAbort, NCCL_SHRINK_ABORT);
SHERD_SAME_VALUE(kNcclRevokeDefault, NCCL_REVOKE_DEFAULT);
SHERD_SAME_VALUE(NcclVersion(2, 28, 9), NCCL_VERSION(2, 28, 9));
#undef SHERD_SAME_VALUE

static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));

// A newer header may have more fields at the end.
#define SHERD_SAME_FIELD(ours, theirs)                \
  static_assert(offsetof(NcclConfig, ours) ==         \
                    offsetof(ncclConfig_t, theirs) && \
                sizeof(NcclConfig::ours) == sizeof(ncclConfig_t::theirs))
SHERD_SAME_FIELD(size, size);
SHERD_SAME_FIELD(magic, magic);
SHERD_SAME_FIELD(version, version);
SHERD_SAME_FIELD(blocking, blocking);
SHERD_SAME_FIELD(cga_cluster_size, cgaClusterSize);
SHERD_SAME_FIELD(min_ctas, minCTAs);
SHERD_SAME_FIELD(max_ctas, maxCTAs);
SHERD_SAME_FIELD(net_name, netName);
SHERD_SAME_FIELD(split_share, splitShare);
SHERD_SAME_FIELD(traffic_class, trafficClass);
SHERD_SAME_FIELD(comm_name, commName);
SHERD_SAME_FIELD(collnet_enable, collnetEnable);
SHERD_SAME_FIELD(cta_policy, CTAPolicy);
SHERD_SAME_FIELD(shrink_share, shrinkShare);
SHERD_SAME_FIELD(nvls_ctas, nvlsCTAs);
SHERD_SAME_FIELD(channels_per_net_peer, nChannelsPerNetPeer);
SHERD_SAME_FIELD(nvlink_centric_sched, nvlinkCentricSched);
#undef SHERD_SAME_FIELD

TEST(NcclHeaderTest, AConfigBeginsAsNvidiasDoes) {
  const NcclConfig ours;
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_LE(ours.size, theirs.size);
  const size_t first = offsetof(NcclConfig, blocking);
  EXPECT_EQ(std::memcmp(reinterpret_cast<const char*>(&ours) + first,
                        reinterpret_cast<const char*>(&theirs) + first,
                        sizeof(ours) - first),
            0);
#if NCCL_VERSION_CODE == 22809
  EXPECT_EQ(ours.size, theirs.size);
  EXPECT_EQ(ours.version, theirs.version);
#endif
}

}  // namespace
}  // namespace sherd::internal

#else

TEST(NcclHeaderTest, AConfigBeginsAsNvidiasDoes) {
  GTEST_SKIP() << "there is no nccl.h of NCCL 2.28.7 or newer";
}

#endif
