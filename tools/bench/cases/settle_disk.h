#ifndef SHERD_TOOLS_BENCH_CASES_SETTLE_DISK_H_
#define SHERD_TOOLS_BENCH_CASES_SETTLE_DISK_H_

#include <string>

#include "absl/status/status.h"

namespace sherd {

// Lets writes of earlier calls, and of what was removed, reach the disk of
// `directory` now instead of during the next call.
absl::Status SettleDisk(const std::string& directory);

// Takes the files in `directory`, which are durable, out of the page cache, so
// that the next reads come from the disk. A negligible part that stays is
// logged.
//   kFailedPrecondition  A file stays there, as on a file system in memory.
absl::Status EvictFiles(const std::string& directory);

// Why EvictFiles cannot work for files in `directory`, or OK.
absl::Status CheckEviction(const std::string& directory);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_SETTLE_DISK_H_
