// Trains a network of two layers and saves all of its state every few steps:
// weights, the optimizer's moments, the schedule, random numbers. Killed at any
// moment and started again, on any number of ranks, it goes on from the newest
// step that was saved, and ends with the same weights to the last bit:
//
//   sherd run -n 4 -- train_loop --dir=D --steps=50 --async --out=F
//   sherd run -n 3 -- train_loop --dir=D --steps=50 --async --out=F
//
// No result depends on the number of ranks: all ranks draw the same samples
// from one generator, each computes the gradients of some of them, and all add
// these in one order.

#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/checkpoint_async.h"
#include "sherd/serialization/checkpoint_series.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/sherd.h"

namespace {

constexpr int kInputs = 12;
constexpr int kHidden = 26;
constexpr int kOutputs = 5;
constexpr int kWeights = kHidden * (kInputs + kOutputs);
constexpr int kSamples = 24;  // of each step
constexpr float kDropout = 0.1f;

struct Options {
  std::string dir, out;
  int64_t steps = 50, every = 5;
  int keep_last = 3;
  bool async = false;
};

// A matrix of weights, by rows over the ranks, with the moments of Adam.
struct Layer {
  sherd::ShardedTensor weights, mean, square;
  sherd::Tensor updates;  // their number, the same on all ranks
};

struct State {
  Layer hidden, output;
  int64_t step = 0;
  double learning_rate = 0.01;
  sherd::Generator shared{17};  // draws the same numbers on all ranks
  sherd::Generator own;         // draws other numbers on each rank
};

absl::Status MakeLayer(const std::shared_ptr<sherd::ProcessGroup>& group,
                       const sherd::Dims& size, sherd::Generator& generator,
                       Layer& layer) {
  SHERD_ASSIGN_OR_RETURN(const sherd::ShardingSpecPtr rows,
                         sherd::ChunkShardingSpec::Create(
                             0, sherd::PlacementsOn(group->world_ranks())));
  for (auto* tensor : {&layer.weights, &layer.mean, &layer.square}) {
    SHERD_ASSIGN_OR_RETURN(
        *tensor, sherd::ShardedTensor::Zeros(rows, size, {.group = group}));
  }
  SHERD_ASSIGN_OR_RETURN(layer.updates, sherd::Tensor::Scalar(int64_t{0}));
  return sherd::InitUniform(layer.weights, -0.2, 0.2,
                            {.generator = &generator});
}

sherd::StateBytes BytesOf(const sherd::Generator& generator) {
  const sherd::Generator::State state = generator.GetState();
  return {std::string(reinterpret_cast<const char*>(&state), sizeof(state))};
}

absl::Status SetGenerator(const sherd::StateDict& saved, const char* name,
                          sherd::Generator& generator) {
  SHERD_ASSIGN_OR_RETURN(const auto bytes, saved.Get<sherd::StateBytes>(name));
  sherd::Generator::State state;
  if (bytes.data.size() != sizeof(state)) {
    return absl::DataLossError(absl::StrCat(name, " has another length"));
  }
  std::memcpy(&state, bytes.data.data(), sizeof(state));
  generator.SetState(state);
  return absl::OkStatus();
}

// What is saved. Tensors are handles: a load into it changes those of `state`.
absl::StatusOr<sherd::StateDict> Describe(const State& state) {
  sherd::StateDict all;
  for (const auto& [name, value] : std::map<std::string, sherd::StateValue>{
           {"hidden.weights", state.hidden.weights},
           {"hidden.adam.mean", state.hidden.mean},
           {"hidden.adam.square", state.hidden.square},
           {"hidden.adam.updates", state.hidden.updates},
           {"output.weights", state.output.weights},
           {"output.adam.mean", state.output.mean},
           {"output.adam.square", state.output.square},
           {"output.adam.updates", state.output.updates},
           {"schedule.step", state.step},
           {"schedule.learning_rate", state.learning_rate},
           {"generator.shared", BytesOf(state.shared)},
           {"generator.own", BytesOf(state.own)}}) {
    SHERD_RETURN_IF_ERROR(all.Set(name, value));
  }
  return all;
}

// Continues from the newest step that was saved, if there is one.
absl::Status Resume(sherd::CheckpointSeries& series, State& state) {
  const absl::StatusOr<sherd::LatestStep> latest = series.Latest();
  // Damaged ones are another error: they are not to be replaced.
  if (absl::IsNotFound(latest.status())) return absl::OkStatus();
  SHERD_RETURN_IF_ERROR(latest.status());
  SHERD_ASSIGN_OR_RETURN(sherd::StateDict all, Describe(state));
  sherd::LoadReport report;
  SHERD_RETURN_IF_ERROR(
      series.LoadInto(latest->step, all, {.strict = false, .report = &report}));
  for (const std::string& name : report.missing) {
    // Ranks beyond those that saved begin with a generator of their own.
    if (name == "generator.own") continue;
    return absl::NotFoundError(absl::StrCat(latest->path, " has no ", name));
  }
  SHERD_ASSIGN_OR_RETURN(state.step, all.Get<int64_t>("schedule.step"));
  SHERD_ASSIGN_OR_RETURN(state.learning_rate,
                         all.Get<double>("schedule.learning_rate"));
  SHERD_RETURN_IF_ERROR(SetGenerator(all, "generator.shared", state.shared));
  return SetGenerator(all, "generator.own", state.own);
}

absl::Status Save(sherd::CheckpointSeries& series, const State& state,
                  bool async) {
  SHERD_ASSIGN_OR_RETURN(const sherd::StateDict all, Describe(state));
  if (!async) return series.Save(state.step, all);
  SHERD_ASSIGN_OR_RETURN(sherd::SaveHandle saved,
                         series.SaveAsync(state.step, all));
  // From here on tensors may change; files are written meanwhile.
  return saved.Copied();
}

// Sets the gradients for one sample, those of the hidden layer first, and after
// them its loss. Of the numbers behind the input, small ones drop a unit.
void SetGradient(const float* hidden, const float* output, const float* input,
                 float* gradient) {
  std::array<float, kHidden> value = {}, slope = {}, error = {};
  for (int h = 0; h < kHidden; ++h) {
    for (int i = 0; i < kInputs; ++i) {
      value[h] += hidden[h * kInputs + i] * input[i];
    }
    slope[h] =
        value[h] > 0 && input[kInputs + h] >= kDropout ? 1 / (1 - kDropout) : 0;
    value[h] *= slope[h];
  }
  float* const output_gradient = gradient + kHidden * kInputs;
  for (int o = 0; o < kOutputs; ++o) {
    // What the network is to learn.
    float difference = input[o + 2] - input[o] * input[o + 1];
    for (int h = 0; h < kHidden; ++h) {
      difference += output[o * kHidden + h] * value[h];
    }
    gradient[kWeights] += difference * difference;
    for (int h = 0; h < kHidden; ++h) {
      output_gradient[o * kHidden + h] = difference * value[h];
      error[h] += difference * output[o * kHidden + h];
    }
  }
  for (int h = 0; h < kHidden; ++h) {
    for (int i = 0; i < kInputs; ++i) {
      gradient[h * kInputs + i] = error[h] * slope[h] * input[i];
    }
  }
}

// Adam, on the rows of this rank; `gradient` is that of the whole matrix.
void Update(Layer& layer, const float* gradient, double rate) {
  constexpr float kMean = 0.9f, kSquare = 0.999f, kTiny = 1e-8f;
  const auto n = ++*layer.updates.mutable_data_as<int64_t>();
  rate *= std::sqrt(1 - std::pow(kSquare, n)) / (1 - std::pow(kMean, n));
  for (size_t s = 0; s < layer.weights.local_shards().size(); ++s) {
    const sherd::Shard& shard = layer.weights.local_shards()[s];
    const auto data = [s](const sherd::ShardedTensor& sharded) {
      sherd::Tensor own = sharded.local_shards()[s].tensor;
      return own.mutable_data_as<float>();
    };
    float *const weight = data(layer.weights), *const mean = data(layer.mean),
                 *const square = data(layer.square);
    const float* const own =
        gradient + shard.metadata.offsets[0] * layer.weights.size()[1];
    for (int64_t i = 0; i < shard.tensor.numel(); ++i) {
      mean[i] = kMean * mean[i] + (1 - kMean) * own[i];
      square[i] = kSquare * square[i] + (1 - kSquare) * own[i] * own[i];
      weight[i] -=
          static_cast<float>(rate) * mean[i] / (std::sqrt(square[i]) + kTiny);
    }
  }
}

// One step on all ranks; returns the mean loss.
absl::StatusOr<float> Step(sherd::ProcessGroup& group, State& state) {
  SHERD_ASSIGN_OR_RETURN(const auto hidden, state.hidden.weights.AllGather());
  SHERD_ASSIGN_OR_RETURN(const auto output, state.output.weights.AllGather());
  SHERD_ASSIGN_OR_RETURN(
      const auto samples,
      sherd::Rand({kSamples, kInputs + kHidden}, {}, state.shared));
  // Where a rank begins is its own affair: each sample has its place.
  std::vector<float> gradients(kSamples * (kWeights + 1));
  const auto first = static_cast<int>(state.own.Take(1).position % kSamples);
  for (int i = 0; i < kSamples; ++i) {
    const int sample = (first + i) % kSamples;
    if (sample % group.size() != group.rank()) continue;
    SetGradient(hidden.data_as<float>(), output.data_as<float>(),
                samples.data_as<float>() + sample * (kInputs + kHidden),
                &gradients[sample * (kWeights + 1)]);
  }
  // Of each number all ranks but one have a zero: the sum is exact.
  SHERD_RETURN_IF_ERROR(
      group.AllReduce<float>(absl::MakeSpan(gradients), sherd::ReduceOp::kSum));
  std::array<float, kWeights + 1> mean = {};
  for (size_t i = 0; i < gradients.size(); ++i) {
    mean[i % mean.size()] += gradients[i] / kSamples;
  }
  Update(state.hidden, mean.data(), state.learning_rate);
  Update(state.output, &mean[kHidden * kInputs], state.learning_rate);
  state.learning_rate *= 0.99;
  ++state.step;
  return mean[kWeights];
}

// As a safetensors file.
absl::Status WriteWeights(const std::string& path, int rank,
                          const State& state) {
  SHERD_ASSIGN_OR_RETURN(const auto hidden, state.hidden.weights.AllGather());
  SHERD_ASSIGN_OR_RETURN(const auto output, state.output.weights.AllGather());
  if (rank != 0) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(
      const auto writer,
      sherd::SafetensorsWriter::Create(
          sherd::FileSystem::Posix(), path,
          {{"hidden", sherd::kFloat32, {kHidden, kInputs}},
           {"output", sherd::kFloat32, {kOutputs, kHidden}}}));
  SHERD_RETURN_IF_ERROR(writer->Write("hidden", hidden));
  SHERD_RETURN_IF_ERROR(writer->Write("output", output));
  return writer->Finish();
}

absl::Status Train(const Options& options) {
  SHERD_ASSIGN_OR_RETURN(const auto group, sherd::Init({}));
  SHERD_ASSIGN_OR_RETURN(
      auto series,
      sherd::CheckpointSeries::Open(options.dir, group,
                                    {.save = {.per_rank = {"generator.own"}},
                                     .keep_last = options.keep_last}));
  State state;
  state.own.Seed(static_cast<uint64_t>(group->rank()));
  SHERD_RETURN_IF_ERROR(
      MakeLayer(group, {kHidden, kInputs}, state.shared, state.hidden));
  SHERD_RETURN_IF_ERROR(
      MakeLayer(group, {kOutputs, kHidden}, state.shared, state.output));
  SHERD_RETURN_IF_ERROR(Resume(series, state));
  std::ostream log(group->rank() == 0 ? std::cout.rdbuf() : nullptr);
  log << "from step " << state.step << std::endl;
  while (state.step < options.steps) {
    SHERD_ASSIGN_OR_RETURN(const float loss, Step(*group, state));
    if (state.step % options.every == 0 || state.step == options.steps) {
      SHERD_RETURN_IF_ERROR(Save(series, state, options.async));
      log << "step " << state.step << ": loss " << loss << std::endl;
    }
  }
  SHERD_RETURN_IF_ERROR(series.Flush());
  log << "rank 0 drew " << state.own.GetState().position
      << " numbers of its own" << std::endl;
  if (!options.out.empty()) {
    SHERD_RETURN_IF_ERROR(WriteWeights(options.out, group->rank(), state));
  }
  SHERD_RETURN_IF_ERROR(group->Barrier());
  return group->Destroy();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small network, and goes on where it ended.");
  app.add_option("--dir", options.dir, "Where steps are saved")->required();
  app.add_option("--out", options.out, "The weights, as a safetensors file");
  app.add_option("--steps", options.steps, "How many in all");
  app.add_option("--every", options.every, "Steps from save to save")
      ->check(CLI::PositiveNumber);
  app.add_option("--keep-last", options.keep_last, "Saved steps to keep");
  app.add_flag("--async", options.async, "Save while later steps run");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = Train(options);
  if (!status.ok()) std::cerr << "train_loop: " << status << "\n";
  return status.ok() ? 0 : 1;
}
