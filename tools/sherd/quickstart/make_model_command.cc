#include "sherd/tools/sherd/quickstart/make_model_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/units.h"
#include "sherd/tools/sherd/command_error.h"
#include "sherd/tools/sherd/quickstart/model_preset.h"
#include "sherd/tools/sherd/quickstart/model_writer.h"
#include "sherd/tools/sherd/quickstart/progress.h"

namespace sherd {
namespace {

struct MakeModelOptions {
  std::string out = "model.safetensors";
  std::string preset = "gpt2";
  uint64_t seed = 0;
};

absl::Status MakeModel(const MakeModelOptions& options) {
  SHERD_ASSIGN_OR_RETURN(const std::vector<ModelTensor> model,
                         ModelPreset(options.preset));
  const int64_t bytes = ModelBytes(model);
  Progress progress(stderr, "writing " + options.out, bytes);
  const int threads =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8);
  SHERD_RETURN_IF_ERROR(
      WriteModel(FileSystem::Posix(), options.out, model,
                 {.seed = options.seed,
                  .threads = threads,
                  .on_progress = [&](int64_t piece, absl::string_view name) {
                    progress.Add(piece, name);
                  }}));
  progress.Finish();
  std::printf("%s: %d tensors, %s bytes\n", options.out.c_str(),
              static_cast<int>(model.size()), FormatCount(bytes).c_str());
  return absl::OkStatus();
}

}  // namespace

void AddMakeModelCommand(CLI::App& app, int& exit_code) {
  CLI::App* const make = app.add_subcommand(
      "make-model",
      "Write a safetensors model with reproducible contents, to try things on");
  auto options = std::make_shared<MakeModelOptions>();
  make->add_option("--out", options->out, "File to write")
      ->type_name("FILE")
      ->capture_default_str();
  make->add_option("--preset", options->preset,
                   "gpt2: names and shapes of GPT-2 small, 548 MB; tiny: a few "
                   "kB with every dtype, scalars and empty tensors")
      ->check(CLI::IsMember(ModelPresetNames()))
      ->capture_default_str();
  make->add_option("--seed", options->seed, "Other contents")
      ->capture_default_str();
  make->callback([options, &exit_code] {
    const absl::Status status = MakeModel(*options);
    exit_code = status.ok() ? 0 : PrintCommandError("make-model", status);
  });
}

}  // namespace sherd
