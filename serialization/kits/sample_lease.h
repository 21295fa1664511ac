#ifndef SHERD_SERIALIZATION_KITS_SAMPLE_LEASE_H_
#define SHERD_SERIALIZATION_KITS_SAMPLE_LEASE_H_

#include "absl/time/civil_time.h"
#include "absl/time/time.h"
#include "sherd/serialization/checkpoint/lease.h"

namespace sherd {

// A lease of a process of another boot, the same in every build; for golden
// files.
inline LeaseRecord SampleLease() {
  const absl::Time since =
      absl::FromCivil(absl::CivilSecond(2026, 11, 23, 8, 3, 46),
                      absl::UTCTimeZone()) +
      absl::Milliseconds(123);
  return {.host = "node-7.cluster",
          .holder = {.boot_id = "5b0dc2a4-19d3-4f0e-9d75-08e1f4f6b1c2",
                     .pid_namespace = "pid:[4026531836]",
                     .process = {.pid = 4711, .start_time = 987654}},
          .save_id = "18c251e97a0589a9",
          .generation = 3,
          .since = since,
          .renewed = since + absl::Seconds(90),
          .duration = absl::Minutes(2)};
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_SAMPLE_LEASE_H_
