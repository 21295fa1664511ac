#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/tools/examples/quickstart/progress.h"
#include "sherd/tools/examples/quickstart/quickstart_job.h"
#include "sherd/tools/examples/quickstart/quickstart_plan.h"
#include "sherd/tools/examples/quickstart/quickstart_specs.h"

namespace sherd {
namespace {

double SecondsSince(absl::Time start) {
  return absl::ToDoubleSeconds(absl::Now() - start);
}

absl::Span<const std::byte> Bytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                             text.size());
}

class SaveJob {
 public:
  SaveJob(FileSystem& files, const QuickstartJob& job, SafetensorsFile model)
      : files_(files), job_(job), model_(std::move(model)) {}

  absl::Status Run() {
    report_ = {.model = job_.model, .save_ranks = job_.group->size()};
    SHERD_RETURN_IF_ERROR(ShardAll());
    SHERD_RETURN_IF_ERROR(AddUpStats());
    SHERD_RETURN_IF_ERROR(Save());
    return WriteReport();
  }

 private:
  absl::Status ShardAll() {
    int64_t total = 0;
    for (const SafetensorsEntry& entry : model_.entries()) {
      total += entry.nbytes();
    }
    Progress progress(job_.progress,
                      absl::StrCat("sharding and resharding over ",
                                   job_.group->size(), " ranks"),
                      total);
    const absl::Time start = absl::Now();
    for (size_t i = 0; i < model_.entries().size(); ++i) {
      const SafetensorsEntry& entry = model_.entries()[i];
      if (absl::Status status = ShardOne(static_cast<int64_t>(i), entry);
          !status.ok()) {
        return Annotate(status, absl::StrCat("tensor ", entry.name));
      }
      progress.Add(entry.nbytes(), entry.name);
    }
    progress.Finish();
    report_.phases.push_back({absl::StrCat("read, scatter and reshard, ",
                                           job_.group->size(), " ranks"),
                              total, SecondsSince(start)});
    return absl::OkStatus();
  }

  // Ranks take turns in reading. The file is mapped where its data is aligned,
  // so that only what is sent is touched.
  absl::StatusOr<Tensor> ReadOnSource(const SafetensorsEntry& entry,
                                      int source) const {
    if (job_.group->rank() != source) return Tensor();
    absl::StatusOr<Tensor> mapped = model_.MapTensor(entry.name);
    if (absl::IsInvalidArgument(mapped.status())) {
      return model_.ReadTensor(entry.name);
    }
    return mapped;
  }

  absl::Status ShardOne(int64_t index, const SafetensorsEntry& entry) {
    const int ranks = job_.group->size();
    const int source = static_cast<int>(index % ranks);
    const QuickstartLayouts layouts =
        PlanQuickstart(index, entry.shape, ranks, kQuickstartLoadRanks);
    SHERD_ASSIGN_OR_RETURN(const ShardingSpecPtr scattered,
                           SpecFor(layouts.scattered, ranks));
    SHERD_ASSIGN_OR_RETURN(const ShardingSpecPtr saved,
                           SpecFor(layouts.saved, ranks));
    SHERD_ASSIGN_OR_RETURN(const Tensor full, ReadOnSource(entry, source));
    SHERD_ASSIGN_OR_RETURN(ShardedTensor tensor,
                           ShardTensor(full, scattered, source, job_.group));
    ReshardStats stats;
    const absl::Time start = absl::Now();
    SHERD_RETURN_IF_ERROR(tensor.Reshard(saved, {.stats = &stats}));
    report_.tensors.push_back(
        {.name = entry.name,
         .type = absl::StrCat(absl::string_view(Name(entry.dtype)), " ",
                              FormatDims(entry.shape)),
         .bytes = entry.nbytes(),
         .scattered = std::string(Name(layouts.scattered.kind)),
         .saved = std::string(Name(layouts.saved.kind)),
         .moved_bytes = stats.bytes_received,
         .least_bytes = stats.lower_bound_bytes,
         .seconds = SecondsSince(start)});
    tensors_.emplace(entry.name, std::move(tensor));
    return absl::OkStatus();
  }

  // Until here each rank counted what it received itself.
  absl::Status AddUpStats() {
    std::vector<int64_t> own;
    for (const TensorResult& tensor : report_.tensors) {
      own.push_back(tensor.moved_bytes);
      own.push_back(tensor.least_bytes);
    }
    std::vector<int64_t> all(own.size() * job_.group->size());
    SHERD_RETURN_IF_ERROR(
        job_.group->AllGather({reinterpret_cast<const std::byte*>(own.data()),
                               own.size() * sizeof(int64_t)},
                              {reinterpret_cast<std::byte*>(all.data()),
                               all.size() * sizeof(int64_t)}));
    for (size_t t = 0; t < report_.tensors.size(); ++t) {
      TensorResult& tensor = report_.tensors[t];
      tensor.moved_bytes = tensor.least_bytes = 0;
      for (int r = 0; r < job_.group->size(); ++r) {
        tensor.moved_bytes += all[r * own.size() + 2 * t];
        tensor.least_bytes += all[r * own.size() + 2 * t + 1];
      }
    }
    return absl::OkStatus();
  }

  absl::Status Save() {
    CheckpointStats stats;
    if (job_.progress != nullptr) {
      std::fprintf(job_.progress, "saving %s\n",
                   job_.paths.checkpoint().c_str());
    }
    const absl::Time start = absl::Now();
    SHERD_RETURN_IF_ERROR(SaveCheckpoint(job_.paths.checkpoint(), tensors_,
                                         job_.group,
                                         {.files = &files_, .stats = &stats}));
    report_.phases.push_back(
        {absl::StrCat("save with fsync, ", job_.group->size(), " ranks"),
         stats.file_bytes, SecondsSince(start)});
    return absl::OkStatus();
  }

  absl::Status WriteReport() {
    if (job_.group->rank() != 0) return absl::OkStatus();
    return WriteFileAtomically(files_, job_.paths.save_report(),
                               Bytes(ReportToJson(report_)));
  }

  FileSystem& files_;
  const QuickstartJob& job_;
  const SafetensorsFile model_;
  QuickstartReport report_;
  std::map<std::string, ShardedTensor> tensors_;
};

}  // namespace

absl::Status QuickstartSave(FileSystem& files, const QuickstartJob& job) {
  SHERD_ASSIGN_OR_RETURN(SafetensorsFile model,
                         SafetensorsFile::Open(files, job.model));
  SHERD_RETURN_IF_ERROR(SaveJob(files, job, std::move(model)).Run());
  return job.group->Barrier();
}

}  // namespace sherd
