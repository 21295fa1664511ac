// Trains a linear model on any number of ranks, continues when ranks fail, and
// resumes from the last checkpoint when it is started again:
//
//   sherd run -n 4 --on-failure=continue elastic_train --dir=D --kill=2:33
//   sherd run -n 4 --max-restarts=1 --min-ranks=3 elastic_train --dir=E
//   --kill=2:33
//
// Whichever ranks are left, the weights are the same to the last bit: a step is
// always over the same batches, of which each rank computes some, and all ranks
// add their gradients in one order.

#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/serialization/checkpoint.h"

namespace {

using Group = std::shared_ptr<sherd::ProcessGroup>;

constexpr int kFeatures = 50;
constexpr int kBatches = 12;
constexpr int kSamplesPerBatch = 32;
constexpr double kLearningRate = 0.05;
constexpr int kStepsPerCheckpoint = 10;

struct Options {
  std::string dir;
  int64_t steps = 100;
  // "RANK:STEP", to try it out: that rank kills itself before that step, unless
  // it began with a checkpoint.
  std::string kill;
};

// The saved state: the weights, spread over the ranks, and the number of steps
// done, on the first rank.
struct State {
  sherd::ShardedTensor weights;
  sherd::ShardedTensor step;

  std::map<std::string, sherd::ShardedTensor> Tensors() const {
    return {{"step", step}, {"weights", weights}};
  }
};

double Feature(int64_t sample, int feature) {
  return std::sin(static_cast<double>(sample * 31 + feature * 17 + 1));
}

// Of the model that training is to find.
double Target(int64_t sample) {
  double target = 0;
  for (int f = 0; f < kFeatures; ++f) {
    target += (f % 7 - 3) * 0.25 * Feature(sample, f);
  }
  return target;
}

// The gradients of this rank's batches, each in its own place and zero
// elsewhere; the last entry of each is the loss.
std::vector<double> GradientsOf(const sherd::ProcessGroup& group,
                                const double* weights) {
  std::vector<double> gradients(kBatches * (kFeatures + 1));
  for (int batch = group.rank(); batch < kBatches; batch += group.size()) {
    double* const gradient = &gradients[batch * (kFeatures + 1)];
    for (int i = 0; i < kSamplesPerBatch; ++i) {
      const int64_t sample = batch * kSamplesPerBatch + i;
      double error = -Target(sample);
      for (int f = 0; f < kFeatures; ++f) {
        error += weights[f] * Feature(sample, f);
      }
      for (int f = 0; f < kFeatures; ++f) {
        gradient[f] += error * Feature(sample, f);
      }
      gradient[kFeatures] += error * error;
    }
  }
  return gradients;
}

// One step on all ranks; returns the mean loss.
absl::StatusOr<double> Step(sherd::ProcessGroup& group,
                            sherd::ShardedTensor& weights) {
  SHERD_ASSIGN_OR_RETURN(const sherd::Tensor whole, weights.AllGather());
  std::vector<double> gradients = GradientsOf(group, whole.data_as<double>());
  // For each entry all ranks but one have a zero: the sum is exact.
  SHERD_RETURN_IF_ERROR(group.AllReduce<double>(absl::MakeSpan(gradients),
                                                sherd::ReduceOp::kSum));
  constexpr double kSamples = kBatches * kSamplesPerBatch;
  std::array<double, kFeatures + 1> sum = {};
  for (size_t i = 0; i < gradients.size(); ++i) {
    sum[i % sum.size()] += gradients[i];
  }
  for (const sherd::Shard& shard : weights.local_shards()) {
    sherd::Tensor tensor = shard.tensor;
    double* const own = tensor.mutable_data_as<double>();
    for (int64_t i = 0; i < shard.metadata.sizes[0]; ++i) {
      own[i] -= kLearningRate * sum[shard.metadata.offsets[0] + i] / kSamples;
    }
  }
  return sum[kFeatures] / kSamples;
}

// The state of the checkpoint, if there is one, laid out over the ranks of
// `group`; otherwise that of the beginning.
absl::StatusOr<State> Load(const std::string& checkpoint, const Group& group) {
  SHERD_ASSIGN_OR_RETURN(const sherd::ShardingSpecPtr all,
                         sherd::ChunkShardingSpec::Create(
                             0, sherd::PlacementsOn(group->world_ranks())));
  SHERD_ASSIGN_OR_RETURN(
      const sherd::ShardingSpecPtr first,
      sherd::ChunkShardingSpec::Create(
          0, sherd::PlacementsOn(group->world_ranks().subspan(0, 1))));
  absl::StatusOr<std::map<std::string, sherd::ShardedTensor>> saved =
      sherd::LoadCheckpoint(checkpoint, {{"step", first}, {"weights", all}},
                            group);
  if (saved.ok()) return State{saved->at("weights"), saved->at("step")};
  // Only if there is none: a damaged one, which is another error, is not to be
  // replaced.
  if (!absl::IsNotFound(saved.status())) return saved.status();
  State state;
  SHERD_ASSIGN_OR_RETURN(
      state.weights,
      sherd::ShardedTensor::Zeros(all, {kFeatures},
                                  {.dtype = sherd::kFloat64, .group = group}));
  SHERD_ASSIGN_OR_RETURN(
      state.step, sherd::ShardedTensor::Zeros(
                      first, {1}, {.dtype = sherd::kInt64, .group = group}));
  return state;
}

void KillIfAsked(const Options& options, int rank, int64_t step) {
  if (options.kill == absl::StrCat(rank, ":", step)) raise(SIGKILL);
}

// Trains with the ranks of `group` until the last step, or until one fails.
absl::Status TrainWith(const Group& group, const Options& options) {
  const std::string checkpoint = options.dir + "/checkpoint";
  const int rank = group->world_ranks()[group->rank()];
  SHERD_ASSIGN_OR_RETURN(State state, Load(checkpoint, group));
  SHERD_ASSIGN_OR_RETURN(const sherd::Tensor saved_step,
                         state.step.AllGather());
  const int64_t first = *saved_step.data_as<int64_t>();
  for (int64_t step = first; step < options.steps; ++step) {
    if (first == 0) KillIfAsked(options, rank, step);
    SHERD_ASSIGN_OR_RETURN(const double loss, Step(*group, state.weights));
    if ((step + 1) % kStepsPerCheckpoint != 0 && step + 1 != options.steps) {
      continue;
    }
    SHERD_RETURN_IF_ERROR(state.step.Fill(step + 1));
    SHERD_RETURN_IF_ERROR(
        sherd::SaveCheckpoint(checkpoint, state.Tensors(), group));
    if (group->rank() == 0) {
      absl::PrintF("step %d on %d ranks: loss %.6g\n", step + 1, group->size(),
                   loss);
      std::fflush(stdout);
    }
  }
  SHERD_ASSIGN_OR_RETURN(const sherd::Tensor weights,
                         state.weights.AllGather());
  double sum = 0;
  for (int f = 0; f < kFeatures; ++f) sum += weights.data_as<double>()[f];
  std::printf("sum of the weights: %.17g\n", sum);
  return group->Barrier();
}

absl::Status Train(const Options& options) {
  SHERD_ASSIGN_OR_RETURN(Group group,
                         sherd::Init({.timeout = absl::Seconds(20)}));
  for (;;) {
    const absl::Status status = TrainWith(group, options);
    if (status.ok()) return group->Destroy();
    // An error such as a full disk affects every rank: a smaller group would
    // not help.
    if (!sherd::IsRankFailure(status)) return status;
    std::cerr << status.message() << "\n";
    SHERD_ASSIGN_OR_RETURN(Group rest, group->Shrink());
    SHERD_RETURN_IF_ERROR(group->Destroy());
    group = std::move(rest);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a linear model on any number of ranks.");
  app.add_option("--dir", options.dir, "Where the checkpoint is kept")
      ->required();
  app.add_option("--steps", options.steps, "How many steps in all")
      ->capture_default_str();
  app.add_option("--kill", options.kill,
                 "RANK:STEP: that rank kills itself before that step");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = Train(options);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
