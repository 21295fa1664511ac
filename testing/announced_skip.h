#ifndef SHERD_TESTING_ANNOUNCED_SKIP_H_
#define SHERD_TESTING_ANNOUNCED_SKIP_H_

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "sherd/testing/exit_codes.h"

// Skips the test with a reason of the table in exit_codes.h, whose text and
// exit code it carries; more text may follow with <<. Every rank must come to
// the same decision.
#define SHERD_SKIP(reason) \
  GTEST_SKIP() << ::sherd::testing::internal::AnnounceSkip(reason) << " "

namespace sherd::testing::internal {

// The reason that the next skip on this thread carries; returns its text.
absl::string_view AnnounceSkip(SkipReason reason);

// Takes the announced reason, kGeneric if there is none.
SkipReason TakeAnnouncedSkip();

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_ANNOUNCED_SKIP_H_
