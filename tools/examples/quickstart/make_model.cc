// Writes a safetensors model with reproducible contents, to try things on.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/units.h"
#include "sherd/tools/examples/quickstart/model_preset.h"
#include "sherd/tools/examples/quickstart/model_writer.h"
#include "sherd/tools/examples/quickstart/progress.h"
#include "sherd/tools/sherd/command_error.h"
#include "sherd/tools/sherd/command_line.h"

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

int Main(std::vector<std::string> arguments) {
  CLI::App app(
      "Writes a safetensors model with reproducible contents, to try things "
      "on.",
      "make_model");
  MakeModelOptions options;
  app.add_option("--out", options.out, "File to write")
      ->type_name("FILE")
      ->capture_default_str();
  app.add_option("--preset", options.preset,
                 "gpt2: names and shapes of GPT-2 small, 548 MB; tiny: a few "
                 "kB with every dtype, scalars and empty tensors")
      ->check(CLI::IsMember(ModelPresetNames()))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Other contents")
      ->capture_default_str();
  int exit_code = 0;
  app.callback([&] {
    const absl::Status status = MakeModel(options);
    exit_code = status.ok() ? 0 : PrintCommandError("make_model", status);
  });
  return RunCommandLine(app, std::move(arguments), exit_code);
}

}  // namespace
}  // namespace sherd

int main(int argc, char** argv) {
  sherd::PrepareProgram();
  return sherd::Main(std::vector<std::string>(argv + 1, argv + argc));
}
