#ifndef SHERD_SERIALIZATION_KITS_FAILING_READS_H_
#define SHERD_SERIALIZATION_KITS_FAILING_READS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd {

// Loads again and again: first the first read of a data file fails, then the
// second, and so on, until all succeed. Expects of each load, which returns the
// status of each rank, that the error is that of all. Returns how many failed.
inline int64_t ExpectErrorOfEachReadOnAllRanks(
    absl::FunctionRef<std::vector<absl::Status>()> load) {
  for (int64_t n = 1;; ++n) {
    const testing::FailFileOperation fault("read", "*.safetensors",
                                           absl::InternalError("bad sector"),
                                           {.nth = n, .optional = true});
    const std::vector<absl::Status> statuses = load();
    if (!fault.happened()) {
      EXPECT_THAT(statuses, ::testing::Each(testing::IsOk()));
      return n - 1;
    }
    EXPECT_THAT(statuses, ::testing::Each(testing::StatusIs(
                              absl::StatusCode::kInternal,
                              ::testing::HasSubstr("bad sector"))))
        << "read " << n;
  }
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_FAILING_READS_H_
