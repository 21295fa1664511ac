#ifndef SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_JOB_H_
#define SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_JOB_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/tools/examples/quickstart/quickstart_files.h"
#include "sherd/tools/examples/quickstart/quickstart_report.h"

namespace sherd {

// Ranks of the half that loads; the picture of the whole needs the number.
inline constexpr int kQuickstartLoadRanks = 3;

struct QuickstartJob {
  QuickstartFiles paths;
  // Path of the safetensors model.
  std::string model;
  std::shared_ptr<ProcessGroup> group;
  // Progress goes there from rank 0; null for none.
  std::FILE* progress = nullptr;
};

// The first half: ranks in turn read a tensor each and scatter it, all reshard
// it, and when the last one is done they save a checkpoint.
//
// Collective. Rank 0 leaves a report for the second half.
//
// Memory. Each rank's shards of the whole model, and a tensor more.
absl::Status QuickstartSave(FileSystem& files, const QuickstartJob& job);

struct QuickstartVerdict {
  int64_t tensors = 0;
  int64_t bytes = 0;
  // Tables for people; only rank 0 has it.
  std::string report;
};

// The second half: loads the checkpoint into a third layout, gathers it to rank
// 0, which writes it as a safetensors file and compares that with the model.
//
// Collective. Rank 0 writes reports and the picture.
//   kDataLoss  The checkpoint is damaged, or something differs.
absl::StatusOr<QuickstartVerdict> QuickstartLoad(FileSystem& files,
                                                 const QuickstartJob& job);

}  // namespace sherd

#endif  // SHERD_TOOLS_EXAMPLES_QUICKSTART_QUICKSTART_JOB_H_
