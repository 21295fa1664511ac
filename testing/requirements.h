#ifndef SHERD_TESTING_REQUIREMENTS_H_
#define SHERD_TESTING_REQUIREMENTS_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "sherd/testing/fixtures/announced_skip.h"
#include "sherd/testing/harness/exit_codes.h"

namespace sherd::testing {

// A precondition without which a test is skipped. As an argument of a macro,
//
//   SHERD_DIST_TEST_F(Fixture, Name, WithComms{}, RequiresBackend("nccl"))
//
// it is checked before any rank starts; in a body or SetUp, SHERD_REQUIRE(r)
// skips there. If only some ranks skip, the test fails.
class Requirement {
 public:
  // `check` returns nothing if the requirement is met. It may run in the parent
  // process and on ranks, and must return the same on all.
  explicit Requirement(std::function<std::optional<Skip>(int world_size)> check)
      : check_(std::move(check)) {}

  std::optional<Skip> Check(int world_size) const { return check_(world_size); }

 private:
  std::function<std::optional<Skip>(int world_size)> check_;
};

// At least `n` GPUs that CUDA_VISIBLE_DEVICES shows (multi-gpu-N; generic above
// 8).
Requirement SkipIfFewerGpusThan(int n);
// One GPU for each rank. Skips as SkipIfFewerGpusThan, and with no_cuda if
// there is no GPU at all.
Requirement RequiresGpuPerRank();
// A plugin of this name that can be loaded and reports that it works here
// (backend_unavailable; nccl for that one). If a launcher starts its ranks, the
// launcher is required too.
Requirement RequiresBackend(std::string name);
// RequiresBackend("mpi").
Requirement RequiresMpi();
// Remote access is linked (importerror).
Requirement RequiresRpc();
// At least `n` ranks (small_worldsize).
Requirement RequiresWorldSizeAtLeast(int n);
// odd_worldsize.
Requirement RequiresEvenWorldSize();

}  // namespace sherd::testing

// Skips the test from a body or SetUp of a DistributedFixture on a rank unless
// `requirement` is met.
#define SHERD_REQUIRE(requirement)                             \
  if (const std::optional<::sherd::testing::Skip> sherd_skip = \
          (requirement).Check(world_size());                   \
      !sherd_skip) {                                           \
  } else                                                       \
    SHERD_SKIP(sherd_skip->reason) << sherd_skip->detail

#endif  // SHERD_TESTING_REQUIREMENTS_H_
