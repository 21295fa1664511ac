#ifndef SHERD_TESTING_HARNESS_LAUNCH_SHIM_H_
#define SHERD_TESTING_HARNESS_LAUNCH_SHIM_H_

#include <string>

#include "absl/strings/string_view.h"

namespace sherd::testing::internal {

// Between a launcher such as mpirun and a rank of a test stands a launch shim:
// the launcher starts it, it starts the rank, and tells the harness what a
// launcher does not: the rank's process number and how it ended.
//
// The pipes of a run are named ones, since a launcher passes no descriptors on:
// LaunchPipe(directory, name, rank). Through the control pipe goes
//     P<process number>\n  when the rank has started
//     E<wait status>\n     when it has ended
// and the release pipe, which is common to all, stands open until the shims
// may go.
//
// A rank that returned, with any code, is hidden from the launcher, which would
// end all others at once; they may still report. A rank that was killed is not
// hidden: the shim ends in the same way.
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
