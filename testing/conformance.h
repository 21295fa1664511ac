#ifndef SHERD_TESTING_CONFORMANCE_H_
#define SHERD_TESTING_CONFORMANCE_H_

namespace sherd::testing {

// Declared by a backend's author; the suite verifies it.
struct ConformanceOptions {
  // Ranks are threads of one process (SHERD_RANKS_ARE_THREADS), not processes.
  bool ranks_are_threads = false;
  // If one rank dies, the vendor's library ends them all (SHERD_DIES_TOGETHER).
  // The suite does not test that the others continue.
  bool dies_together = false;
  // Native reductions of 8- and 16-bit floats compute in 32 bits and round
  // once, as the host does. Otherwise each rank may add a rounding.
  bool small_floats_rounded_once = true;
  // Operations are on the memory of devices.
  bool on_devices = false;
};

// SHERD_CONFORMANCE_SUITE(Name) at namespace scope: everything that a backend
// must do, as GoogleTest cases. With the BUILD file below this is all that a
// backend's test needs:
//
//   #include "sherd/testing/conformance.h"
//   SHERD_CONFORMANCE_SUITE(Ring);
//   SHERD_CONFORMANCE_SUITE(Ring, .small_floats_rounded_once = false);
//
//   sherd_distributed_test(
//       name = "ring_conformance_test",
//       srcs = ["ring_conformance_test.cc"],
//       backends = ["ring"],
//       plugins = {"ring": ":libsherd_backend_ring.so"},
//       world_sizes = [1, 2, 3, 4, 5, 8],
//       deps = ["@sherd//testing:conformance"],
//   )
//
// Which backend. The one that SHERD_TEST_BACKEND names, from SHERD_PLUGIN_PATH
// or linked statically; sherd_distributed_test sets both. Any program that
// links this target and gtest_main can be run by hand:
//
//   SHERD_TEST_BACKEND=ring SHERD_PLUGIN_PATH=/opt/ring/lib ring_test
//
// How many ranks. SHERD_TEST_WORLD_SIZE, otherwise 1, 2, 3, 4, 5 and 8, one
// after another.
//
// What is tested.
//   Operations   each with every type and reduction that ProcessGroup's
//                PathOf calls native or emulated, from every root, in place and
//                not, blocking and not, with 0, 1, 3, 1,003 and about a million
//                elements, uneven and empty entries, odd addresses; results to
//                the bit, canaries around all buffers.
//   Order        thousands of calls in flight, ended in another order, dropped,
//                polled; messages by tag.
//   Refusals     bad arguments and unsupported combinations: the same error on
//                every backend, nothing written, the group still usable.
//   Groups       any order of creation, non-members, nests, splits, hundreds
//                made and left without a trace, twenty generations in one
//                process.
//   Memory       of peers, where the backend has it: read, written, in parts,
//                after the group, by the hundred; invalid handles.
//   Failure      contradicting calls, calls of no bytes against some, random
//                sequences in which one rank deviates, absent, leaving,
//                aborting, killed and stopped ranks: every other rank gets an
//                error in time that names the rank and the operation, the group
//                is poisoned with the cause, and the survivors make a new one.
//
// With `.on_devices = true` the buffers of operations are memory of devices,
// and the cases that concern the host part alone are left out: order, memory.
//
// SHERD_TIMEOUT bounds calls that are expected to succeed; a minute if unset.
#define SHERD_CONFORMANCE_SUITE(name, ...)                                    \
  [[maybe_unused]] static const bool sherd_conformance_of_##name =            \
      ::sherd::testing::internal::RegisterConformanceSuite(                   \
          #name, ::sherd::testing::ConformanceOptions{__VA_ARGS__}, __FILE__, \
          __LINE__)

namespace internal {

// Registers the cases with GoogleTest, before main.
bool RegisterConformanceSuite(const char* name,
                              const ConformanceOptions& options,
                              const char* file, int line);

}  // namespace internal
}  // namespace sherd::testing

#endif  // SHERD_TESTING_CONFORMANCE_H_
