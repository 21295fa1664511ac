#ifndef SHERD_TOOLS_BENCH_HARNESS_BENCH_CASE_H_
#define SHERD_TOOLS_BENCH_HARNESS_BENCH_CASE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/tools/bench/harness/board.h"
#include "sherd/tools/bench/harness/mpirun.h"
#include "sherd/tools/bench/harness/rank_context.h"

namespace sherd {

// One rank's part in one peer's way of doing the work of a case. Every call is
//
//     Prepare()     all ranks, in any order
//     Run()         all ranks at once; the time from the first that enters to
//                   the last that leaves is the result
//     Check()       all ranks, in any order
//
// with the ranks waiting for each other between the three.
class RankWork {
 public:
  virtual ~RankWork() = default;

  // Makes sure that what an earlier call left cannot pass for a result.
  virtual absl::Status Prepare() = 0;

  virtual absl::Status Run() = 0;

  // For work that times itself: what the last Run() is to be counted as. One
  // rank does such work, the others return at once.
  virtual std::optional<double> OwnSeconds() const { return std::nullopt; }

  // Compares everything that Run() left on this rank with what is right.
  //   kDataLoss  It differs.
  virtual absl::Status Check() = 0;

  // What this rank did in the last Run(), if it knows.
  virtual std::optional<WorkFigures> Figures() const { return std::nullopt; }
};

// A program that is run to its end in place of ranks.
struct BenchProgram {
  // A path, or what lies in bench's own directory.
  std::string name;
  std::vector<std::string> arguments;
  // "NAME=value", besides what bench itself finds.
  std::vector<std::string> environment = {};
  // How much of what is measured it does: the time is divided by it.
  int units = 1;
};

struct BenchPeer {
  // Peers of one name are ways to do the same: the fastest counts.
  std::string name;
  std::string help;
  // Collective over the ranks: connects them and makes buffers.
  std::function<absl::StatusOr<std::unique_ptr<RankWork>>(RankContext&)> make =
      nullptr;
  // With `starts_ranks`, instead of `make`: of so many ranks.
  std::function<BenchProgram(int world)> program = nullptr;
  // With `starts_ranks`: ranks are forks of the process that measures, instead
  // of processes that begin anew.
  bool forks = false;
  // Ranks must be started by mpirun, which then starts those of all peers of
  // the measurement. For another transport than the default they are started
  // once more, without the other peers, after these.
  bool needs_mpirun = false;
  MpiTransport transport = MpiTransport::kVader;
  // Which of several ways this is.
  std::string way = "";
  // Instead of `make`: a program that brings its own ranks, makes the calls
  // that the task asks for, checks each and writes what it measured to the file
  // `report` (see ReadProgramReport).
  std::function<BenchProgram(const BenchTask& task, const std::string& report)>
      measuring_program = nullptr;
  // Why it cannot be measured here, or OK. May be null.
  std::function<absl::Status(int world, int64_t bytes)> check = nullptr;
};

struct BenchCase {
  std::string name;
  std::string help;
  std::vector<BenchPeer> peers;
  // What is timed is starting the ranks, from before the first start to after
  // the last end. Such ranks make their work and run it once. Not sized.
  bool starts_ranks = false;
  // Why this cannot be measured here with so many ranks and bytes and
  // `directory` for files; OK if it can. May be null.
  std::function<absl::Status(int world, int64_t bytes,
                             const std::string& directory)>
      check = nullptr;
  // Memory that the ranks have in common. May be null: none.
  std::function<int64_t(int world, int64_t bytes)> shared_bytes = nullptr;
  // For moves: the bytes that must come to some rank from another, whoever
  // moves them. Then memory is reported too. May be null.
  std::function<int64_t(int world, int64_t bytes)> lower_bound = nullptr;
  // How often Run() is called for one time, which is divided by it. May be
  // null: once.
  std::function<int(int64_t bytes)> repeats = nullptr;

  int RepeatsOf(int64_t bytes) const {
    return repeats == nullptr ? 1 : repeats(bytes);
  }
};

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_HARNESS_BENCH_CASE_H_
