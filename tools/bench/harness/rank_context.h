#ifndef SHERD_TOOLS_BENCH_HARNESS_RANK_CONTEXT_H_
#define SHERD_TOOLS_BENCH_HARNESS_RANK_CONTEXT_H_

#include <any>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/tools/bench/harness/board.h"

namespace gloo {
class Context;
}  // namespace gloo

namespace sherd {

// Shared by the peers that take turns in one rank.
class RankContext {
 public:
  RankContext(Board& board, int rank) : board_(board), rank_(rank) {}
  ~RankContext();
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  int rank() const { return rank_; }
  int world() const { return board_.task().world; }
  int64_t bytes() const { return board_.task().bytes; }
  const std::string& directory() const { return board_.task().directory; }
  absl::Span<std::byte> shared() const { return board_.shared(); }

  // Returns once all ranks have called it.
  void Meet() { board_.Meet(); }

  // Objects that the peers of a case share; initially empty.
  std::any& common() { return common_; }

  // Sherd's group of all ranks over `backend`; created by the first call for
  // it, which is collective. With a backend for devices, rank r has device r.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> Group(
      const std::string& backend = "gloo");

  // A full mesh of Gloo's own, connected through Gloo's file store; created by
  // the first call, which is collective.
  absl::StatusOr<std::shared_ptr<gloo::Context>> GlooMesh();

 private:
  Board& board_;
  const int rank_;
  std::map<std::string, std::shared_ptr<ProcessGroup>> groups_;
  std::shared_ptr<gloo::Context> mesh_;
  std::any common_;
};

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_HARNESS_RANK_CONTEXT_H_
