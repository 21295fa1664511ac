#ifndef SHERD_TOOLS_BENCH_CASES_METADATA_WORK_H_
#define SHERD_TOOLS_BENCH_CASES_METADATA_WORK_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// Work on metadata alone, which rank 0 does. The last column of the report has
// the peak memory of the process.
class MetadataWork : public RankWork {
 public:
  explicit MetadataWork(RankContext& context) : works_(context.rank() == 0) {}

  absl::Status Prepare() override;
  absl::Status Run() override;
  absl::Status Check() override { return works_ ? result_ : absl::OkStatus(); }
  std::optional<WorkFigures> Figures() const override;

 protected:
  virtual absl::Status Work() = 0;
  // What else the last column has of the last Work().
  virtual std::string Remark() const { return ""; }

 private:
  const bool works_;
  absl::Status result_;
  int64_t peak_ = -1;
};

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_METADATA_WORK_H_
