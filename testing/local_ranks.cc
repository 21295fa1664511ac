#include "sherd/testing/local_ranks.h"

#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/hash_store.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/tensor/random.h"

namespace sherd::testing {
namespace {

// What the body threw, as an error of `rank`.
absl::Status CurrentException(int rank) {
  std::string what = "an exception of unknown type";
  try {
    throw;
  } catch (const std::exception& exception) {
    what = absl::StrCat("an exception: ", exception.what());
  } catch (...) {
  }
  return WithFailedRank(absl::AbortedError(absl::StrCat(
                            "the body of rank ", rank, " ended with ", what)),
                        rank);
}

void RunRank(const InitOptions& options,
             absl::FunctionRef<void(ProcessGroup&)> body) {
  const int rank = *options.rank;
  SCOPED_TRACE(absl::StrCat("rank ", rank));
  Generator generator;
  ScopedDefaultGenerator scoped_generator(generator);
  absl::StatusOr<std::shared_ptr<ProcessGroup>> group = Init(options);
  ASSERT_TRUE(group.ok()) << group.status();
  try {
    body(**group);
  } catch (...) {
    const absl::Status cause = CurrentException(rank);
    ADD_FAILURE() << cause.message();
    (*group)->Abort(cause);
  }
  const absl::Status left = (*group)->Destroy();
  EXPECT_TRUE(left.ok()) << left;
}

}  // namespace

void RunLocalRanks(int n, absl::FunctionRef<void(ProcessGroup&)> body,
                   const LocalRanksOptions& options) {
  ASSERT_GE(n, 1) << "RunLocalRanks needs at least one rank";
  const auto store = std::make_shared<HashStore>();
  std::vector<std::thread> ranks;
  ranks.reserve(n);
  for (int rank = 0; rank < n; ++rank) {
    ranks.emplace_back([&, rank] {
      RunRank({.backend = options.backend,
               .rank = rank,
               .world_size = n,
               .store = store,
               .timeout = options.timeout},
              body);
    });
  }
  for (std::thread& thread : ranks) thread.join();
}

}  // namespace sherd::testing
