#ifndef SHERD_TOOLS_BENCH_PEERS_TORCH_PROGRAM_H_
#define SHERD_TOOLS_BENCH_PEERS_TORCH_PROGRAM_H_

#include <string>

#include "absl/status/status.h"
#include "sherd/tools/bench/harness/bench_case.h"
#include "sherd/tools/bench/harness/board.h"
#include "sherd/tools/bench/peers/box_layout.h"

namespace sherd {

// Selects the Python that has PyTorch; the default is "python3". Call it before
// the others.
void SetTorchPython(std::string python);

// Returns OK if that Python has a PyTorch with the measured functions.
//   kNotFound  The message names what is missing.
absl::Status FindTorch();

// Returns OK if that Python has all of these modules, among them "torch".
//   kNotFound  The message names those that are missing.
absl::Status FindPythonModules(const std::vector<std::string>& modules);

// Has PyTorch do `work` ("dtensor:reshard:1", see torch_moves.py) on a tensor
// of `tensor`'s size, of 32-bit floats.
BenchProgram TorchProgram(const std::string& work, const BenchTask& task,
                          const WordTensor& tensor, const std::string& report);

// Has PyTorch save or load `tensor` ("dcp:save", see torch_checkpoint.py), in
// the task's directory.
BenchProgram TorchCheckpointProgram(const std::string& work,
                                    const BenchTask& task,
                                    const WordTensor& tensor,
                                    const std::string& report);

// Has PyTorch do `work` ("pack:2:1", see torch_gpu.py) on a GPU, `repeats`
// times for each time that it reports.
BenchProgram TorchGpuProgram(const std::string& work, const BenchTask& task,
                             int repeats, const std::string& report);

// Has PyTorch's RPC do `work` ("round_trip", see torch_rpc.py).
BenchProgram TorchRpcProgram(const std::string& work, const BenchTask& task,
                             const std::string& report);

// Has PyTorch look up rows of tables: `arguments` are those of
// torch_embedding.py, but for the task and the report.
BenchProgram TorchEmbeddingProgram(const std::vector<std::string>& arguments,
                                   const BenchTask& task,
                                   const std::string& report);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_PEERS_TORCH_PROGRAM_H_
