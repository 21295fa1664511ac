#include "sherd/rpc/engine/call_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace sherd::internal {

size_t LatencyHistogram::BucketOf(int64_t nanoseconds) {
  const auto value =
      static_cast<uint64_t>(std::max(nanoseconds, int64_t{1} << kFirstPower));
  const int power = std::bit_width(value) - 1;
  // The three bits below the first one.
  const uint64_t part = value >> (power - 3) & (kSubBuckets - 1);
  const size_t bucket =
      static_cast<size_t>(power - kFirstPower) * kSubBuckets + part;
  return std::min(bucket, kBuckets - 1);
}

double LatencyHistogram::MiddleOf(size_t bucket) {
  const int power = static_cast<int>(bucket / kSubBuckets) + kFirstPower;
  const double part = static_cast<double>(bucket % kSubBuckets) + 0.5;
  return std::ldexp(1 + part / kSubBuckets, power);
}

absl::Duration LatencyHistogram::Quantile(double quantile) const {
  uint64_t total = 0;
  std::array<uint64_t, kBuckets> counts;
  for (size_t i = 0; i < kBuckets; ++i) {
    counts[i] = counts_[i].load(std::memory_order_relaxed);
    total += counts[i];
  }
  if (total == 0) return absl::ZeroDuration();
  const auto wanted =
      static_cast<uint64_t>(std::ceil(quantile * static_cast<double>(total)));
  uint64_t seen = 0;
  size_t bucket = 0;
  while (bucket + 1 < kBuckets && (seen += counts[bucket]) < wanted) ++bucket;
  return absl::Nanoseconds(MiddleOf(bucket));
}

}  // namespace sherd::internal
