#include "sherd/tools/bench/peers/torch_program.h"

#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "sherd/core/process/subprocess.h"

namespace sherd {
namespace {

std::string& Python() {
  static std::string& python = *new std::string("python3");
  return python;
}

// Without importing it, which takes seconds.
constexpr char kLookForModule[] =
    "import importlib.util, sys; "
    "sys.exit(0 if importlib.util.find_spec(sys.argv[1]) else 3)";

constexpr char kCheckpoint[] = "torch_checkpoint_beside_bench";
constexpr char kMoves[] = "torch_moves_beside_bench";
constexpr char kGpu[] = "torch_gpu_beside_bench";
constexpr char kEmbedding[] = "torch_embedding_beside_bench";
constexpr char kRpc[] = "torch_rpc_beside_bench";

// A script, which the build puts beside bench.
std::string Script(const char* name) {
  std::error_code error;
  return (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() /
          name)
      .string();
}

// The exit code of `command`; -1 if it cannot be run.
int ExitCodeOf(const std::vector<std::string>& command) {
  auto process = Subprocess::Start({.program = command[0],
                                    .arguments = command,
                                    .environment = OwnEnvironment()});
  return process.ok() ? process->Wait().code().value_or(-1) : -1;
}

// The script with what all of them know, and `arguments`.
BenchProgram ProgramOf(const char* script, const BenchTask& task,
                       const std::string& report,
                       std::vector<std::string> arguments) {
  // Without files of Python's own beside bench.
  std::vector<std::string> all = {Python(), "-B", Script(script),
                                  absl::StrCat("--calls=", task.calls),
                                  absl::StrCat("--report=", report)};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return {.name = "/usr/bin/env", .arguments = std::move(all)};
}

// Likewise, for a tensor of floats of the size of `tensor`.
BenchProgram TensorProgram(const char* script, const std::string& work,
                           const BenchTask& task, const WordTensor& tensor,
                           const std::string& report,
                           std::vector<std::string> arguments) {
  const absl::Span<const int64_t> size =
      absl::MakeConstSpan(tensor.size).last(tensor.dims);
  arguments.insert(arguments.end(),
                   {absl::StrCat("--work=", work),
                    absl::StrCat("--size=", absl::StrJoin(size, ",")),
                    absl::StrCat("--world=", task.world)});
  return ProgramOf(script, task, report, std::move(arguments));
}

}  // namespace

void SetTorchPython(std::string python) { Python() = std::move(python); }

absl::Status FindTorch() { return FindPythonModules({"torch"}); }

absl::Status FindPythonModules(const std::vector<std::string>& modules) {
  static auto& known = *new std::map<std::string, bool>;
  std::vector<std::string> missing;
  for (const std::string& module : modules) {
    const auto [found, is_new] = known.emplace(module, false);
    if (is_new) {
      found->second = ExitCodeOf({Python(), "-c", kLookForModule, module}) == 0;
    }
    if (!found->second) missing.push_back(module);
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(Python(), " has no ",
                                          absl::StrJoin(missing, " and no "),
                                          ": name one that has with --python"));
}

BenchProgram TorchProgram(const std::string& work, const BenchTask& task,
                          const WordTensor& tensor, const std::string& report) {
  return TensorProgram(kMoves, work, task, tensor, report, {});
}

BenchProgram TorchCheckpointProgram(const std::string& work,
                                    const BenchTask& task,
                                    const WordTensor& tensor,
                                    const std::string& report) {
  return TensorProgram(kCheckpoint, work, task, tensor, report,
                       {absl::StrCat("--directory=", task.directory)});
}

BenchProgram TorchGpuProgram(const std::string& work, const BenchTask& task,
                             int repeats, const std::string& report) {
  return ProgramOf(
      kGpu, task, report,
      {absl::StrCat("--work=", work), absl::StrCat("--bytes=", task.bytes),
       absl::StrCat("--repeats=", repeats)});
}

BenchProgram TorchRpcProgram(const std::string& work, const BenchTask& task,
                             const std::string& report) {
  return ProgramOf(
      kRpc, task, report,
      {absl::StrCat("--work=", work), absl::StrCat("--bytes=", task.bytes),
       absl::StrCat("--world=", task.world)});
}

BenchProgram TorchEmbeddingProgram(const std::vector<std::string>& arguments,
                                   const BenchTask& task,
                                   const std::string& report) {
  std::vector<std::string> all = {absl::StrCat("--world=", task.world)};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return ProgramOf(kEmbedding, task, report, std::move(all));
}

}  // namespace sherd
