#ifndef SHERD_TESTING_HARNESS_FLIGHT_REPORT_H_
#define SHERD_TESTING_HARNESS_FLIGHT_REPORT_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sherd::testing::internal {

// Summary of the flight recorders of a run's ranks.
struct FlightSummary {
  // A line each: which rank has not made a call, or made a different one.
  std::vector<std::string> findings;
  // The ranks that others wait for, or that deviate from the others.
  std::set<int> named;
  // The last call of each rank in each group, for people.
  std::string text;
};

// Summarizes the dumps in `directory` (see core/comm/flight/flight_dump.h);
// nothing if none can be read.
std::optional<FlightSummary> SummarizeFlights(const std::string& directory);

// Asks ranks for dumps of their flight recorders, and detects when they exist.
class FlightRequests {
 public:
  // `directory` is where only the ranks write; it may not exist yet.
  explicit FlightRequests(std::string directory)
      : directory_(std::move(directory)) {}

  // Asks the process of `rank`, unless it has no group and so nothing to
  // report. A stopped process will answer when it continues.
  void Ask(int rank, pid_t process);
  // No longer waits for this rank.
  void Forget(int rank) { asked_.erase(rank); }

  // True once all that were asked have written.
  bool AllAnswered();

 private:
  // Distinguishes a file from one that replaces it.
  struct Version {
    uint64_t inode = 0;
    int64_t changed_ns = 0;
    bool operator==(const Version&) const = default;
  };
  // Of each dump of `rank`, by its name.
  using Versions = std::map<std::string, Version>;
  Versions VersionsOf(int rank) const;

  std::string directory_;
  // By rank, the dumps that existed when it was asked.
  std::map<int, Versions> asked_;
};

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_HARNESS_FLIGHT_REPORT_H_
