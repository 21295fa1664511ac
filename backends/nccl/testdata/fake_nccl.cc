// Libraries that Sherd does not accept as NCCL, one for each FAKE_NCCL.

#include <climits>

extern "C" {

__attribute__((visibility("default"))) int ncclGetVersion(int* version) {
#if FAKE_NCCL == 1
  // A version before 2.9, with the former encoding.
  *version = 2708;
#elif FAKE_NCCL == 2
  *version = 21705;
#elif FAKE_NCCL == 3
  *version = 22809;
#else
  *version = INT_MAX;
  return 3;
#endif
  return 0;
}

#if FAKE_NCCL == 3
__attribute__((visibility("default"))) int ncclCommInitRankConfig() {
  return 3;
}
#endif

}  // extern "C"
