#ifndef SHERD_TESTING_HARNESS_KEPT_OUTPUTS_H_
#define SHERD_TESTING_HARNESS_KEPT_OUTPUTS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace sherd::testing::internal {

// Where the run of a test collects what is worth keeping if it fails.
struct RunFiles {
  // Files of any name; may not exist.
  std::string outputs;
  // Dumps of flight recorders; may not exist.
  std::string flights;
};

// Copies the files of a failed test below TEST_UNDECLARED_OUTPUTS_DIR, which
// Bazel keeps, into a directory with the test's name; of a test that runs
// several times, "NAME.2" and so on. Returns the directory; empty if the
// variable is not set, there is nothing to keep, or no room for it.
std::string KeepOutputs(absl::string_view test, const RunFiles& files);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_HARNESS_KEPT_OUTPUTS_H_
