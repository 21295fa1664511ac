#ifndef SHERD_TESTING_HARNESS_LAUNCH_SHIM_H_
#define SHERD_TESTING_HARNESS_LAUNCH_SHIM_H_

#include <string>

#include "absl/strings/string_view.h"

namespace sherd::testing::internal {

// A launch shim runs between a launcher such as mpirun and a rank of a test:
// the launcher starts it, it starts the rank, and it reports to the harness the
// rank's process id and how the rank ended, which a launcher does not report.
//
// The pipes of a run have names, since a launcher passes no descriptors on:
// LaunchPipe(directory, name, rank). The control pipe carries
//     P<process number>\n  when the rank has started
//     E<wait status>\n     when it has ended
// and the release pipe, which is common to all, is open until the shims may
// exit.
//
// The shim hides the exit code of a rank from the launcher, which would end all
// other ranks at once, although they may still report. It does not hide that a
// rank was killed: the shim ends by the same signal.
inline constexpr absl::string_view kResultsPipe = "results";
inline constexpr absl::string_view kOutputPipe = "output";
inline constexpr absl::string_view kControlPipe = "control";
inline constexpr absl::string_view kReleasePipe = "release";

std::string LaunchPipe(absl::string_view directory, absl::string_view name,
                       int rank);

// Returns at once unless SHERD_TEST_RANK_DIR is set. Otherwise this process is
// a launch shim: starts its own program again as a rank, and does not return.
void MaybeRunAsLaunchShim();

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_HARNESS_LAUNCH_SHIM_H_
