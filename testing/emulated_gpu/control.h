#ifndef SHERD_TESTING_EMULATED_GPU_CONTROL_H_
#define SHERD_TESTING_EMULATED_GPU_CONTROL_H_

/* What libsherd_emulated_gpu.so exports beside the cu* and nccl* functions, for
 * tests that plant a bug and want to see it found. dlopen the library (the one
 * that is loaded already: RTLD_NOLOAD) and dlsym these; or use
 * DriverLibrary (driver_library.h), or PlannedGpu (planned_gpu.h) where it is
 * linked in. */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 1, the default: a finding of the checker ends the process by abort(). 0: it
 * is printed and counted. Returns what it was. */
int sherd_emulated_gpu_set_abort_on_finding(int abort_on_finding);

/* How many findings there were since the last call with reset = 1. */
uint64_t sherd_emulated_gpu_findings(int reset);

/* The last finding's text, cut to `size` with the null; empty if none since
 * the last reset. Returns its whole length. */
uint64_t sherd_emulated_gpu_last_finding(char* text, uint64_t size);

/* How late queued work runs: same seed, same delays per stream and place in
 * it. 0 is the default seed. */
void sherd_emulated_gpu_set_seed(uint64_t seed);

/* Replaces SHERD_EMULATED_GPU_FAULTS (see faults.h). 0, or -1 and no change if
 * the text is not understood. */
int sherd_emulated_gpu_set_faults(const char* faults);

/* Bytes that each pretended device has; what is used already stays. */
void sherd_emulated_gpu_set_device_bytes(uint64_t bytes);

/* While above 0, no stream runs anything that is queued from now on: adds
 * `change`, returns the sum. Makes what a test sees independent of time: "the
 * event has not happened yet" is certain while streams are held. */
int sherd_emulated_gpu_hold_streams(int change);

#ifdef __cplusplus
} /* extern "C" */

namespace sherd::testing {

// Streams start no work while one of these exists. `hold` is
// sherd_emulated_gpu_hold_streams of the library in question.
class HeldStreams {
 public:
  explicit HeldStreams(int (*hold)(int change)) : hold_(hold) { hold_(1); }
  HeldStreams(const HeldStreams&) = delete;
  HeldStreams& operator=(const HeldStreams&) = delete;
  ~HeldStreams() { hold_(-1); }

 private:
  int (*const hold_)(int change);
};

}  // namespace sherd::testing
#endif

#endif /* SHERD_TESTING_EMULATED_GPU_CONTROL_H_ */
