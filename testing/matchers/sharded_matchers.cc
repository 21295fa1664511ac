#include "sherd/testing/sharded_matchers.h"

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/remote_shards.h"
#include "sherd/core/sharding/shard_metadata.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/types/tensor_properties.h"

namespace sherd::testing {
namespace {

using internal::ElementRule;

// Each returns the difference, or "".
using Check = std::string (*)(const ShardedTensor& actual,
                              const ShardedTensor& expected);

std::string CheckSize(const ShardedTensor& actual,
                      const ShardedTensor& expected) {
  if (actual.size() == expected.size()) return "";
  return absl::StrCat("has the size ", FormatDims(actual.size()), ", expected ",
                      FormatDims(expected.size()));
}

std::string CheckProperties(const ShardedTensor& actual,
                            const ShardedTensor& expected) {
  const TensorProperties& a = actual.metadata().properties;
  const TensorProperties& e = expected.metadata().properties;
  if (a == e) return "";
  return absl::StrCat("has ", a.ToString(), ", expected ", e.ToString());
}

// Whether both are the same rule, except for the indices of devices.
bool SameSpec(const ShardingSpec& a, const ShardingSpec& b) {
  if (a == b) return true;
  const auto without_index = [](const Placement& placement) {
    return placement.OnSameOwner(placement.device().type);
  };
  const ShardingSpecPtr x = a.WithPlacements(without_index);
  const ShardingSpecPtr y = b.WithPlacements(without_index);
  return x != nullptr && y != nullptr && *x == *y;
}

std::string CheckSpec(const ShardedTensor& actual,
                      const ShardedTensor& expected) {
  // The shards show the devices.
  if (SameSpec(*actual.spec(), *expected.spec())) return "";
  return absl::StrCat("has the sharding spec ", actual.spec()->ToString(),
                      ", expected ", expected.spec()->ToString());
}

std::string CheckShards(const ShardedTensor& actual,
                        const ShardedTensor& expected) {
  const std::vector<ShardMetadata>& a = actual.metadata().shards;
  const std::vector<ShardMetadata>& e = expected.metadata().shards;
  if (a.size() != e.size()) {
    return absl::StrCat("has ", a.size(), " shards, expected ", e.size());
  }
  const auto [at, other] =
      std::mismatch(a.begin(), a.end(), e.begin(), SameShard);
  if (at == a.end()) return "";
  return absl::StrCat("has the shard ", at - a.begin(), " of ", a.size(), ", ",
                      at->ToString(), ", expected ", other->ToString());
}

std::string CheckLocalShards(const ShardedTensor& actual,
                             const ShardedTensor& expected) {
  const size_t a = actual.local_shards().size();
  const size_t e = expected.local_shards().size();
  if (a != e) {
    return absl::StrCat("has ", a, " local shards, expected ", e);
  }
  for (size_t i = 0; i < a; ++i) {
    const ShardMetadata& shard = actual.local_shards()[i].metadata;
    const ShardMetadata& other = expected.local_shards()[i].metadata;
    if (SameShard(shard, other)) continue;
    return absl::StrCat("has the local shard ", i, ", ", shard.ToString(),
                        ", expected ", other.ToString());
  }
  return "";
}

std::string CheckRemoteShards(const ShardedTensor& actual,
                              const ShardedTensor& expected) {
  const absl::StatusOr<RemoteShards> a = actual.remote_shards();
  const absl::StatusOr<RemoteShards> e = expected.remote_shards();
  if (!a.ok() || !e.ok()) return "";
  const auto count = [](const RemoteShards& remote) {
    size_t shards = 0;
    for (const auto& [rank, theirs] : remote) shards += theirs.size();
    return shards;
  };
  if (count(*a) == count(*e)) return "";
  return absl::StrCat("has ", count(*a), " remote shards, expected ",
                      count(*e));
}

// First the properties that all others depend on.
constexpr Check kChecks[] = {CheckSize,   CheckProperties,  CheckSpec,
                             CheckShards, CheckLocalShards, CheckRemoteShards};

std::string CheckElements(const ShardedTensor& actual,
                          const ShardedTensor& expected,
                          const ElementRule& rule) {
  for (size_t i = 0; i < actual.local_shards().size(); ++i) {
    const Shard& shard = actual.local_shards()[i];
    const std::string difference = internal::ExplainDifference(
        shard.tensor, expected.local_shards()[i].tensor, rule,
        shard.metadata.offsets);
    if (difference.empty()) continue;
    return absl::StrCat("has the local shard ", i, ", ",
                        shard.metadata.ToString(), ", ", difference);
  }
  return "";
}

std::string Compare(const ShardedTensor& actual, const ShardedTensor& expected,
                    const ElementRule& rule) {
  if (!actual.defined() || !expected.defined()) {
    if (actual.defined() == expected.defined()) return "";
    return actual.defined() ? "which is defined, expected one that is not"
                            : "which is not defined";
  }
  std::string difference;
  for (const Check check : kChecks) {
    difference = check(actual, expected);
    if (!difference.empty()) break;
  }
  if (difference.empty()) difference = CheckElements(actual, expected, rule);
  if (difference.empty()) return "";
  return absl::StrCat("which on rank ", actual.rank(), " ", difference);
}

class ShardedTensorMatcher
    : public ::testing::MatcherInterface<const ShardedTensor&> {
 public:
  ShardedTensorMatcher(absl::string_view name,
                       absl::StatusOr<ShardedTensor> expected, ElementRule rule,
                       std::string relation)
      : expected_(std::move(expected)),
        rule_(rule),
        relation_(std::move(relation)) {
    if (!expected_.ok()) {
      ADD_FAILURE() << name << " expects a sharded tensor, got "
                    << expected_.status();
    }
    internal::CheckTolerance(name, rule_.tolerance);
  }

  bool MatchAndExplain(
      const ShardedTensor& actual,
      ::testing::MatchResultListener* listener) const override {
    if (!expected_.ok()) return false;
    const std::string difference = Compare(actual, *expected_, rule_);
    *listener << difference;
    return difference.empty();
  }

  void DescribeTo(std::ostream* out) const override { Describe("is ", out); }
  void DescribeNegationTo(std::ostream* out) const override {
    Describe("is not ", out);
  }

 private:
  void Describe(absl::string_view verb, std::ostream* out) const {
    *out << verb << relation_;
    if (expected_.ok()) {
      *out << *expected_;
    } else {
      *out << expected_.status();
    }
  }

  const absl::StatusOr<ShardedTensor> expected_;
  const ElementRule rule_;
  const std::string relation_;
};

}  // namespace

::testing::Matcher<const ShardedTensor&> ShardedTensorEq(
    absl::StatusOr<ShardedTensor> expected) {
  return ::testing::MakeMatcher(new ShardedTensorMatcher(
      "ShardedTensorEq", std::move(expected), {}, "equal to "));
}

::testing::Matcher<const ShardedTensor&> ShardedTensorNear(
    absl::StatusOr<ShardedTensor> expected) {
  const Tolerance tolerance = expected.ok() && expected->defined()
                                  ? DefaultTolerance(expected->dtype())
                                  : Tolerance();
  return ShardedTensorNear(std::move(expected), tolerance);
}

::testing::Matcher<const ShardedTensor&> ShardedTensorNear(
    absl::StatusOr<ShardedTensor> expected, const Tolerance& tolerance) {
  return ::testing::MakeMatcher(new ShardedTensorMatcher(
      "ShardedTensorNear", std::move(expected), {.tolerance = tolerance},
      internal::FormatTolerance(tolerance)));
}

}  // namespace sherd::testing
