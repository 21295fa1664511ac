#include "sherd/tools/bench/cases/start_cases.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gloo/barrier.h"
#include "gloo/context.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/tools/bench/peers/bare_gloo.h"

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

// `count` of the tests of one kind, each of which connects its ranks, meets
// behind its body and leaves.
BenchPeer Tests(const std::string& peer, const std::string& help,
                const std::string& kind, const std::string& backend,
                int count) {
  return {.name = peer,
          .help = help,
          .make = nullptr,
          .program = [=](int world) -> BenchProgram {
            std::string filter = "--gtest_filter=";
            for (int i = 0; i < count; ++i) {
              absl::StrAppend(&filter, i == 0 ? "" : ":", "Trivial/", kind,
                              ".Nothing/", i);
            }
            return {
                .name = "trivial_tests",
                .arguments = {filter},
                .environment = {"SHERD_TEST_BACKEND=" + backend,
                                absl::StrCat("SHERD_TEST_WORLD_SIZE=", world)},
                .units = count};
          }};
}

BenchCase OneTest() {
  return {.name = "test_program",
          .help = "a GoogleTest program with one test that does nothing",
          .peers = {Tests("sherd-gloo", "on ranks over gloo", "SpawnedTest",
                          "gloo", 1),
                    Tests("sherd-shm", "on ranks over shm", "SpawnedTest",
                          "shm", 1),
                    Tests("gtest", "TEST, one process", "PlainTest", "", 1)},
          .starts_ranks = true};
}

BenchCase ManyTests() {
  return {.name = "test_each",
          .help = "one of many tests that do nothing, in one program",
          .peers = {Tests("sherd-spawned", "ranks started anew, shm",
                          "SpawnedTest", "shm", 20),
                    Tests("sherd-persistent", "ranks that go on, shm",
                          "PersistentTest", "shm", 200),
                    Tests("sherd-threads", "ranks that are threads",
                          "ThreadedTest", "local", 200),
                    Tests("gtest", "TEST, one process", "PlainTest", "", 200)},
          .starts_ranks = true};
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
  return {start, OneTest(), ManyTests()};
}

}  // namespace sherd
