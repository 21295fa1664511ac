#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
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
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/tools/examples/quickstart/model_comparison.h"
#include "sherd/tools/examples/quickstart/progress.h"
#include "sherd/tools/examples/quickstart/quickstart_job.h"
#include "sherd/tools/examples/quickstart/quickstart_picture.h"
#include "sherd/tools/examples/quickstart/quickstart_plan.h"
#include "sherd/tools/examples/quickstart/quickstart_specs.h"
#include "sherd/tools/sherd/checkpoint/layout_picture.h"

namespace sherd {
namespace {

constexpr int64_t kMaxReportBytes = int64_t{256} << 20;
// Tensors that the screen shows; the file has all of them.
constexpr size_t kShownTensors = 16;

double SecondsSince(absl::Time start) {
  return absl::ToDoubleSeconds(absl::Now() - start);
}

class LoadJob {
 public:
  LoadJob(FileSystem& files, const QuickstartJob& job, SafetensorsFile model)
      : files_(files), job_(job), model_(std::move(model)) {
    for (const SafetensorsEntry& entry : model_.entries()) {
      total_bytes_ += entry.nbytes();
    }
  }

  absl::StatusOr<QuickstartVerdict> Run() {
    ReadSaveReport();
    report_.load_ranks = job_.group->size();
    SHERD_RETURN_IF_ERROR(CheckNames());
    SHERD_RETURN_IF_ERROR(Load());
    SHERD_RETURN_IF_ERROR(GatherAll());
    // Others have done their part: what follows is one rank's.
    SHERD_RETURN_IF_ERROR(job_.group->Barrier());
    if (job_.group->rank() != 0) return QuickstartVerdict{};
    return Conclude();
  }

 private:
  // A checkpoint that something else saved has none: then the table is shorter.
  void ReadSaveReport() {
    const std::string path = job_.paths.save_report();
    absl::StatusOr<std::string> text = ReadFile(files_, path, kMaxReportBytes);
    if (text.ok()) {
      absl::StatusOr<QuickstartReport> report = ParseReport(*text, path);
      if (report.ok()) report_ = *std::move(report);
    }
    bool fits = report_.model == job_.model &&
                report_.tensors.size() == model_.entries().size();
    for (size_t i = 0; fits && i < model_.entries().size(); ++i) {
      fits = report_.tensors[i].name == model_.entries()[i].name;
    }
    if (fits) return;
    report_ = {.model = job_.model};
    for (const SafetensorsEntry& entry : model_.entries()) {
      report_.tensors.push_back(
          {.name = entry.name,
           .type = absl::StrCat(absl::string_view(Name(entry.dtype)), " ",
                                FormatDims(entry.shape)),
           .bytes = entry.nbytes()});
    }
  }

  // Names that the checkpoint lacks are found by loading them.
  absl::Status CheckNames() const {
    SHERD_ASSIGN_OR_RETURN(
        const CheckpointReader reader,
        CheckpointReader::Open(job_.paths.checkpoint(), files_));
    SHERD_ASSIGN_OR_RETURN(const Manifest manifest,
                           reader.manifest().ReadAll());
    for (const ManifestTensor& tensor : manifest.tensors) {
      if (model_.Find(tensor.name).ok()) continue;
      return absl::DataLossError(absl::StrCat(
          job_.paths.checkpoint(), ": tensor ", tensor.name, " is not in ",
          job_.model, ": the checkpoint is of another model"));
    }
    return absl::OkStatus();
  }

  absl::Status Load() {
    std::map<std::string, ShardingSpecPtr> specs;
    for (size_t i = 0; i < model_.entries().size(); ++i) {
      const SafetensorsEntry& entry = model_.entries()[i];
      const PlannedLayout layout =
          PlanQuickstart(static_cast<int64_t>(i), entry.shape,
                         job_.group->size(), job_.group->size())
              .loaded;
      SHERD_ASSIGN_OR_RETURN(specs[entry.name],
                             SpecFor(layout, job_.group->size()));
      report_.tensors[i].loaded = std::string(Name(layout.kind));
    }
    if (job_.progress != nullptr) {
      std::fprintf(job_.progress, "loading %s into a third layout, %d ranks\n",
                   job_.paths.checkpoint().c_str(), job_.group->size());
    }
    CheckpointStats stats;
    const absl::Time start = absl::Now();
    SHERD_ASSIGN_OR_RETURN(
        tensors_, LoadCheckpoint(job_.paths.checkpoint(), specs, job_.group,
                                 {.files = &files_, .stats = &stats}));
    report_.phases.push_back({absl::StrCat("load into another layout, ",
                                           job_.group->size(), " ranks"),
                              stats.file_bytes, SecondsSince(start)});
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<SafetensorsWriter>> CreateWriter() const {
    if (job_.group->rank() != 0) return nullptr;
    std::vector<SafetensorsTensorInfo> infos;
    for (const SafetensorsEntry& entry : model_.entries()) {
      const ShardedTensor& tensor = tensors_.at(entry.name);
      infos.push_back({entry.name, tensor.dtype(),
                       Dims(tensor.size().begin(), tensor.size().end())});
    }
    return SafetensorsWriter::Create(files_, job_.paths.gathered(),
                                     std::move(infos), model_.metadata());
  }

  absl::Status GatherAll() {
    Progress progress(job_.progress,
                      absl::StrCat("gathering ", job_.paths.gathered()),
                      total_bytes_);
    const absl::Time start = absl::Now();
    SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                           CreateWriter());
    for (const SafetensorsEntry& entry : model_.entries()) {
      absl::StatusOr<Tensor> full = tensors_.at(entry.name).Gather(0);
      if (!full.ok()) {
        return Annotate(full.status(), absl::StrCat("tensor ", entry.name));
      }
      if (writer != nullptr) {
        SHERD_RETURN_IF_ERROR(writer->Write(entry.name, *full));
      }
      tensors_.erase(entry.name);
      progress.Add(entry.nbytes(), entry.name);
    }
    // The file is for comparing now, not for keeping.
    if (writer != nullptr) {
      SHERD_RETURN_IF_ERROR(writer->Finish(/*sync=*/false));
    }
    progress.Finish();
    report_.phases.push_back(
        {"gather and write", total_bytes_, SecondsSince(start)});
    return absl::OkStatus();
  }

  absl::StatusOr<QuickstartVerdict> Conclude() {
    Progress progress(job_.progress, "comparing with " + job_.model,
                      total_bytes_);
    const absl::Time start = absl::Now();
    SHERD_ASSIGN_OR_RETURN(
        const ModelComparison comparison,
        CompareModels(files_, job_.model, job_.paths.gathered(),
                      [&](int64_t bytes, absl::string_view tensor) {
                        progress.Add(bytes, tensor);
                      }));
    progress.Finish();
    report_.phases.push_back({"compare every byte with the model",
                              comparison.bytes, SecondsSince(start)});
    SHERD_RETURN_IF_ERROR(
        WriteText(job_.paths.report_json(), ReportToJson(report_)));
    SHERD_RETURN_IF_ERROR(
        WriteText(job_.paths.report_text(),
                  FormatReport(report_, report_.tensors.size())));
    if (report_.save_ranks > 0) SHERD_RETURN_IF_ERROR(DrawPicture());
    return QuickstartVerdict{comparison.tensors, comparison.bytes,
                             FormatReport(report_, kShownTensors)};
  }

  absl::Status DrawPicture() const {
    const std::string name =
        std::filesystem::path(job_.model).filename().string();
    return WriteText(
        job_.paths.picture(),
        DrawTransitions(MakeQuickstartPicture(
            name, model_.entries(), report_.save_ranks, report_.load_ranks)));
  }

  absl::Status WriteText(const std::string& path,
                         const std::string& text) const {
    return WriteFileAtomically(
        files_, path,
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                            text.size()));
  }

  FileSystem& files_;
  const QuickstartJob& job_;
  const SafetensorsFile model_;
  int64_t total_bytes_ = 0;
  QuickstartReport report_;
  std::map<std::string, ShardedTensor> tensors_;
};

}  // namespace

absl::StatusOr<QuickstartVerdict> QuickstartLoad(FileSystem& files,
                                                 const QuickstartJob& job) {
  SHERD_ASSIGN_OR_RETURN(SafetensorsFile model,
                         SafetensorsFile::Open(files, job.model));
  return LoadJob(files, job, std::move(model)).Run();
}

}  // namespace sherd
