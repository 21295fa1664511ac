#include "sherd/tools/bench/cases/save_plan_cases.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/checkpoint/save/kept_plans.h"
#include "sherd/serialization/checkpoint/save/manifest_plan.h"
#include "sherd/serialization/checkpoint/save/save_plan.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/tools/bench/cases/metadata_work.h"
#include "sherd/tools/bench/harness/report.h"

namespace sherd {
namespace {

constexpr char kSaveId[] = "0123456789abcdef";

// `size` cut into `cells`, as a chunk spec does.
SavedLayout::Axis Chunks(int64_t size, int64_t cells) {
  SavedLayout::Axis axis;
  axis.cells = cells;
  axis.step = (size + cells - 1) / cells;
  return axis;
}

// Tensor number `i` of a model: matrices in chunks of rows or columns, or over
// a grid of ranks, of sizes that the ranks divide and of others; and every
// eighth a vector that one rank writes, of all ranks in turn.
TensorLayout TensorOf(int64_t i, int ranks,
                      const std::shared_ptr<const std::vector<OwnerRun>>& all) {
  static constexpr int64_t kSizes[] = {8192, 4096, 28672, 11008, 50257, 1024};
  const int64_t rows = kSizes[i % 6];
  const int64_t columns = kSizes[i / 6 % 5];
  TensorLayout tensor;
  tensor.name = absl::StrFormat("layers.%05d.block.weight", i);
  tensor.dtype = i % 3 == 0 ? kFloat32 : kBFloat16;
  tensor.owners = all;
  if (i % 8 == 7) {
    tensor.layout = SavedLayout::Whole({rows});
    const int32_t rank = static_cast<int32_t>(i / 8 % ranks);
    tensor.owners = std::make_shared<const std::vector<OwnerRun>>(
        1, OwnerRun{.rank = rank, .placement = rank});
  } else if (i % 8 == 6) {
    tensor.layout = SavedLayout::Grid(
        {rows, columns}, {Chunks(rows, 8), Chunks(columns, ranks / 8)});
  } else if (i % 8 == 5) {
    tensor.layout =
        SavedLayout::Grid({rows, columns}, {{}, Chunks(columns, ranks)});
  } else {
    tensor.layout =
        SavedLayout::Grid({rows, columns}, {Chunks(rows, ranks), {}});
  }
  return tensor;
}

SaveLayout Model(int64_t tensors, int ranks) {
  SaveLayout layout;
  layout.world_size = ranks;
  std::vector<OwnerRun> all;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    layout.placements.push_back(absl::StrCat("rank:", rank, "/cpu"));
    AppendOwner(rank, rank, all);
  }
  const auto owners =
      std::make_shared<const std::vector<OwnerRun>>(std::move(all));
  for (int64_t i = 0; i < tensors; ++i) {
    layout.tensors.push_back(TensorOf(i, ranks, owners));
  }
  return layout;
}

// What `rank` plans and encodes.
class PlanWork final : public MetadataWork {
 public:
  PlanWork(RankContext& context, int64_t tensors, int ranks, int rank)
      : MetadataWork(context), layout_(Model(tensors, ranks)), rank_(rank) {}

 private:
  absl::Status Work() override {
    SHERD_ASSIGN_OR_RETURN(const std::string header, EncodeHeader());
    if (rank_ != 0) return absl::OkStatus();
    ManifestPlan plan = PlanManifest(layout_);
    plan.manifest.save_id = kSaveId;
    for (size_t i = 0; i < plan.rank_of_file.size(); ++i) {
      ManifestFile& file = plan.manifest.files[i];
      file.name =
          DataFileName(plan.rank_of_file[i], layout_.world_size, kSaveId);
      file.data_begin = static_cast<int64_t>(header.size());
      file.size += file.data_begin;
    }
    for (ManifestTensor& tensor : plan.manifest.tensors) tensor.fingerprint = 0;
    SHERD_ASSIGN_OR_RETURN(const std::string bytes,
                           EncodeManifest(plan.manifest, [&plan](size_t t) {
                             return plan.RunsOf(t);
                           }));
    manifest_bytes_ = static_cast<int64_t>(bytes.size());
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> EncodeHeader() const {
    SavePlan plan = PlanOwnFile(layout_, rank_);
    plan.contents.save_id = kSaveId;
    return EncodeDataFileHeader(plan.contents);
  }

  std::string Remark() const override {
    if (rank_ != 0) return "";
    return absl::StrCat(", manifest ", FormatSize(std::max<int64_t>(
                                           manifest_bytes_ >> 10 << 10, 1024)));
  }

  const SaveLayout layout_;
  const int rank_;
  int64_t manifest_bytes_ = 0;
};

BenchPeer PeerOf(const char* name, const char* help, int64_t tensors, int ranks,
                 int rank) {
  return {.name = name,
          .help = help,
          .make = [=](RankContext& context)
              -> absl::StatusOr<std::unique_ptr<RankWork>> {
            return std::make_unique<PlanWork>(context, tensors, ranks, rank);
          }};
}

absl::Status CheckOneRank(int world, int64_t, const std::string&) {
  if (world == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "measured on one rank, others being simulated");
}

BenchCase CaseOf(const char* name, const char* help, int64_t tensors,
                 int ranks) {
  return {.name = name,
          .help = help,
          .peers = {PeerOf("sherd", "rank 0: its file, and the manifest of all",
                           tensors, ranks, 0),
                    PeerOf("sherd-other", "another rank: its file", tensors,
                           ranks, ranks / 2)},
          .bytes = {},
          .check = CheckOneRank};
}

}  // namespace

std::vector<BenchCase> SavePlanCases() {
  return {
      CaseOf("checkpoint_plan_save_1024x1024",
             "a save of 1024 tensors by 1024 ranks, planned", 1024, 1024),
      CaseOf("checkpoint_plan_save_10000x1000",
             "a save of 10,000 tensors by 1000 ranks, planned", 10'000, 1000)};
}

}  // namespace sherd
