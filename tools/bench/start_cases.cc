#include "sherd/tools/bench/start_cases.h"

#include <memory>

#include "gloo/barrier.h"
#include "gloo/context.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/tools/bench/bare_gloo.h"

namespace sherd {
namespace {

// A rank that connects and meets the others; that it ended well is the result.
class Start : public RankWork {
 public:
  explicit Start(RankContext& context) : context_(context) {}

  absl::Status Prepare() override { return absl::OkStatus(); }
  absl::Status Check() override { return absl::OkStatus(); }

 protected:
  RankContext& context_;
};

class SherdStart final : public Start {
 public:
  using Start::Start;

  absl::Status Run() override {
    SHERD_ASSIGN_OR_RETURN(const auto group, context_.Group());
    return group->Barrier();
  }
};

class GlooStart final : public Start {
 public:
  using Start::Start;

  absl::Status Run() override {
    SHERD_ASSIGN_OR_RETURN(const auto mesh, context_.GlooMesh());
    return CallGloo([&] {
      gloo::BarrierOptions options(mesh);
      gloo::barrier(options);
    });
  }
};

template <typename Work>
absl::StatusOr<std::unique_ptr<RankWork>> Make(RankContext& context) {
  return std::make_unique<Work>(context);
}

}  // namespace

std::vector<BenchCase> StartCases() {
  BenchCase start{
      .name = "test_start",
      .help = "start ranks, connect them, barrier, end",
      .peers = {{.name = "sherd-gloo",
                 .help = "start the program anew, Init over file://, Barrier",
                 .make = Make<SherdStart>},
                {.name = "fork-gloo",
                 .help = "fork, Gloo's file store, full mesh, its barrier",
                 .make = Make<GlooStart>,
                 .forks = true}},
      .starts_ranks = true,
  };
  return {start};
}

}  // namespace sherd
