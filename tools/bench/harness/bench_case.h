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

// One rank's part of a case's work as one peer does it. Every call is
//
//     Prepare()     all ranks, in any order
//     Run()         all ranks at once; the time from the first that enters to
//                   the last that leaves is the result
//     Check()       all ranks, in any order
//
// with a barrier of the ranks between the three.
class RankWork {
 public:
  virtual ~RankWork() = default;

  // Ensures that data of an earlier call cannot be taken for a result.
  virtual absl::Status Prepare() = 0;

  virtual absl::Status Run() = 0;

  // For work that times itself: the time of the last Run(). One rank does such
  // work, the others return at once.
  virtual std::optional<double> OwnSeconds() const { return std::nullopt; }

  // Compares the results of Run() on this rank with the expected ones.
  //   kDataLoss  They differ.
  virtual absl::Status Check() = 0;

  // Figures of this rank's last Run(), if known.
  virtual std::optional<WorkFigures> Figures() const { return std::nullopt; }
};

// A program that is run to its end in place of ranks.
struct BenchProgram {
  // A path, or a name in bench's own directory.
  std::string name;
  std::vector<std::string> arguments;
  // "NAME=value", besides bench's own environment.
  std::vector<std::string> environment = {};
  // How many measured units one run does: the time is divided by it.
  int units = 1;
};

struct BenchPeer {
  // Peers of one name are variants of the same work: the fastest counts.
  std::string name;
  std::string help;
  // Collective over the ranks: connects them and makes buffers.
  std::function<absl::StatusOr<std::unique_ptr<RankWork>>(RankContext&)> make =
      nullptr;
  // With `starts_ranks`, instead of `make`: starts `world` ranks.
  std::function<BenchProgram(int world)> program = nullptr;
  // With `starts_ranks`: ranks are forks of the process that measures, instead
  // of processes that begin anew.
  bool forks = false;
  // Ranks must be started by mpirun, which then starts those of all peers of
  // the measurement. For another transport than the default they are started
  // once more, without the other peers, after these.
  bool needs_mpirun = false;
  MpiTransport transport = MpiTransport::kVader;
  // The name of the variant.
  std::string way = "";
  // Instead of `make`: a program that has its own ranks, makes the calls of the
  // task, checks each and writes its measurements to the file `report` (see
  // ReadProgramReport).
  std::function<BenchProgram(const BenchTask& task, const std::string& report)>
      measuring_program = nullptr;
  // Why it cannot be measured here, with `directory` for files, or OK. May be
  // null.
  std::function<absl::Status(int world, int64_t bytes,
                             const std::string& directory)>
      check = nullptr;
};

struct BenchCase {
  std::string name;
  std::string help;
  std::vector<BenchPeer> peers;
  // The sizes to measure unless the user names others; empty: the work has no
  // size.
  std::vector<int64_t> bytes = {int64_t{1} << 20, int64_t{64} << 20};
  // The size that is measured, and reported, where the user asks for `bytes`;
  // no more than that. May be null: `bytes` itself.
  std::function<int64_t(int64_t bytes)> fit = nullptr;
  // The time is that of starting the ranks, from before the first start to
  // after the last end. Such ranks create their work and run it once. Not
  // sized.
  bool starts_ranks = false;
  // Why this cannot be measured here with so many ranks and bytes and
  // `directory` for files; OK if it can. May be null.
  std::function<absl::Status(int world, int64_t bytes,
                             const std::string& directory)>
      check = nullptr;
  // Memory that the ranks share. May be null: none.
  std::function<int64_t(int world, int64_t bytes)> shared_bytes = nullptr;
  // For moves: the bytes that must come to some rank from another, with any
  // peer. Then memory is reported too. May be null.
  std::function<int64_t(int world, int64_t bytes)> lower_bound = nullptr;
  // Makes what the peers share, in the common() of the context, before any of
  // them. May be null.
  std::function<void(RankContext&)> share = nullptr;
  // The memory of `make` is reported too, and counts as the first call's: that
  // of tables which the ranks have in parts, as a multiple of their bytes.
  bool measures_tables = false;
  // Peers are compared by the CPU time of all ranks, which other ranks on the
  // same processors do not change.
  bool compares_cpu = false;
  // How many times Run() is called for one time, which is divided by it. May be
  // null: once.
  std::function<int(int64_t bytes)> repeats = nullptr;

  bool IsSized() const { return !starts_ranks && !bytes.empty(); }

  int RepeatsOf(int64_t bytes) const {
    return repeats == nullptr ? 1 : repeats(bytes);
  }
};

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_HARNESS_BENCH_CASE_H_
