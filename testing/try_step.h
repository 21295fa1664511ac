#ifndef SHERD_TESTING_TRY_STEP_H_
#define SHERD_TESTING_TRY_STEP_H_

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace sherd::testing::internal {

// Runs `step` of a test; an exception is a failure: "`what` ended with an
// exception: …".
void TryStep(absl::string_view what, absl::FunctionRef<void()> step);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_TRY_STEP_H_
