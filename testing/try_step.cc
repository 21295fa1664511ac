#include "sherd/testing/try_step.h"

#include <exception>

#include "gtest/gtest.h"

namespace sherd::testing::internal {

void TryStep(absl::string_view what, absl::FunctionRef<void()> step) {
  try {
    step();
  } catch (const std::exception& exception) {
    ADD_FAILURE() << what << " ended with an exception: " << exception.what();
  } catch (...) {
    ADD_FAILURE() << what << " ended with an exception: of unknown type";
  }
}

}  // namespace sherd::testing::internal
