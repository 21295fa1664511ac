#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/sharding/plan/reshard_plan.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"
#include "sherd/core/tensor/types/memory_overlap.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/load_plan.h"
#include "sherd/serialization/checkpoint/shard_reader.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/manifest/manifest_v1.h"

namespace sherd {
namespace {

constexpr char kOperation[] = "load_checkpoint";

// Up to this many bytes of CRC sums, of all ranks together, every rank gets all
// of them, in the message that ends the load; above, each checks its share.
constexpr int64_t kMaxGatheredSums = int64_t{16} << 20;

// Finds or makes the tensor to load into; called before data moves, again if
// the load starts over.
using DestinationFn = std::function<absl::StatusOr<ShardedTensor>(
    const std::string& name, const ManifestTensorV1& saved)>;

// One rank's part of one load.
class Loader {
 public:
  // The checkpoint when a load has failed, as seen by the rank that sees most:
  // that which it read before, or one that a save has put in its place.
  enum Found : uint64_t { kNothing, kTheSame, kAnother };

  Loader(const std::string& path, std::vector<std::string> names,
         DestinationFn destination, ProcessGroup& group,
         const LoadOptions& options)
      : path_(path),
        label_(absl::StrCat("load \"", PrintableLine(path), "\"")),
        operation_(kOperation, label_),
        names_(std::move(names)),
        destination_(std::move(destination)),
        group_(group),
        files_(options.files != nullptr ? *options.files : FileSystem::Posix()),
        min_read_bytes_(options.min_read_bytes),
        timeout_(options.timeout),
        elements_of_rank_(static_cast<size_t>(group.size())) {}

  absl::Status Run() {
    BeginStep();
    // First this, since it fills the fingerprint.
    const absl::Status prepared = Prepare();
    SHERD_RETURN_IF_ERROR(step_->Agree(
        prepared, {fingerprint_.value(), [this] { return DescribeCall(); }}));
    BeginStep();
    SHERD_RETURN_IF_ERROR(ReadAll());
    return Finish();
  }

  // In the order of the names.
  std::vector<ShardedTensor> TakeTensors() {
    std::vector<ShardedTensor> tensors;
    for (Item& item : items_) tensors.push_back(std::move(item.tensor));
    return tensors;
  }

  // After an error, which all ranks have alike: what the ranks find when they
  // look again. Collective.
  absl::StatusOr<Found> LookAgain() {
    const absl::StatusOr<Manifest> current = ReadManifest(files_, path_);
    Found found = kTheSame;
    if (current.ok()) {
      found = current->save_id == manifest_.save_id ? kTheSame : kAnother;
    } else if (absl::IsNotFound(current.status()) &&
               manifest_.save_id.empty()) {
      // One that cannot be read now, or that was read before, is something.
      found = kNothing;
    }
    SHERD_ASSIGN_OR_RETURN(
        const uint64_t most,
        AgreeOnMaximum(group_, operation(), absl::OkStatus(), {}, found));
    return static_cast<Found>(most);
  }

  const CheckpointStats& stats() const { return stats_; }
  const OperationLabel& operation() const { return operation_; }

 private:
  struct Item {
    const ManifestTensorV1* saved = nullptr;
    ShardedTensor tensor;
    TensorToSave layout;
    // All shards, and who reads what of them.
    std::vector<PlacedBox> wanted;
    WantedParts parts_wanted;
    ReadStrategy strategy = ReadStrategy::kWhole;
    // For kWhole and kPieces.
    std::vector<ShardRead> reads;
    // For kExchange: those of all ranks.
    std::vector<ReadPart> parts;
    // Where the sums of the tensor's chunks begin in sums_, unless kWhole.
    size_t first_sum = 0;
  };

  // The end of a load, from each rank to all.
  struct Report {
    int64_t bytes_read = 0;
    int64_t bytes_exchanged = 0;
  };

  // Ranks wait in the agreement that ends the step as long as the others read.
  void BeginStep() {
    step_.emplace(group_, operation_, LongStepOptions{.timeout = timeout_});
  }

  // As AgreedValue::describe has it.
  std::string DescribeCall() const {
    std::string text =
        absl::StrCat("path ", PrintableLine(path_), "\nmin_read_bytes ",
                     min_read_bytes_, "\nsave ", manifest_.save_id, "\n");
    std::vector<TensorToSave> layouts;
    for (const Item& item : items_) layouts.push_back(item.layout);
    return absl::StrCat(text, DescribeForAgreement(layouts));
  }

  // Moves what this rank read of a tensor to the ranks that hold it, once all
  // have read.
  absl::Status RunMove(const Item& item,
                       absl::StatusOr<ReshardExecutor> executor) {
    const std::string label =
        absl::StrCat(label_, ": tensor ", Quoted(item.saved->name));
    // RunReshard compares how the ranks fared.
    SHERD_RETURN_IF_ERROR(step_->Agree(absl::OkStatus()));
    SHERD_RETURN_IF_ERROR(
        RunReshard(group_, {kOperation, label}, std::move(executor),
                   {fingerprint_.value(), [this] { return DescribeCall(); }}));
    stats_.exchanged_bytes += exchange_.bytes_sent;
    BeginStep();
    return absl::OkStatus();
  }

  // Everything that can go wrong before data moves.
  absl::Status Prepare() {
    fingerprint_.Add(path_).Add(min_read_bytes_);
    SHERD_ASSIGN_OR_RETURN(const Manifest manifest,
                           ReadManifest(files_, path_));
    manifest_ = ToV1(manifest);
    fingerprint_.Add(manifest_.save_id);
    reader_.emplace(path_, manifest_, files_,
                    [this] { return step_->MadeProgress(); });
    SHERD_RETURN_IF_ERROR(CheckFileSizes());
    size_t sums = 0;
    for (const std::string& name : names_) {
      SHERD_ASSIGN_OR_RETURN(Item item, PrepareItem(name));
      if (item.strategy != ReadStrategy::kWhole) {
        item.first_sum = sums;
        for (const ManifestShardV1& shard : item.saved->shards) {
          sums += manifest_.NumChunks(*item.saved, shard);
        }
      }
      items_.push_back(std::move(item));
    }
    sums_.resize(sums);
    return CheckApart();
  }

  // That each element of the destinations is set once.
  absl::Status CheckApart() const {
    std::vector<internal::MemoryAccess> writes;
    std::vector<const Item*> owners;
    for (const Item& item : items_) {
      for (const Shard& shard : item.tensor.local_shards()) {
        writes.push_back(
            internal::AccessToTensor(shard.tensor, internal::Access::kWrite));
        owners.push_back(&item);
      }
    }
    const auto conflict = internal::FindConflict(writes);
    if (!conflict) return absl::OkStatus();
    const std::string& first = owners[conflict->first]->saved->name;
    const std::string& second = owners[conflict->second]->saved->name;
    if (first == second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "elements of the destination of tensor ", Quoted(first),
          " lie in the same memory, expected each in memory of its own"));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "the destinations of tensors ", Quoted(first), " and ", Quoted(second),
        " share memory, expected each in memory of its own; load one of "
        "them"));
  }

  // Checks that the files have the sizes in the manifest: only then is the
  // manifest trusted about the memory that the tensors need. If there are very
  // many files, the ranks divide them.
  absl::Status CheckFileSizes() {
    constexpr int32_t kFewFiles = 64;
    const int32_t files = static_cast<int32_t>(manifest_.files.size());
    for (int32_t file = 0; file < files; ++file) {
      if (files <= kFewFiles || file % group_.size() == group_.rank()) {
        SHERD_RETURN_IF_ERROR(reader_->Open(file));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<const ManifestTensorV1*> Find(const std::string& name) const {
    const auto& tensors = manifest_.tensors;
    const auto it = std::lower_bound(
        tensors.begin(), tensors.end(), name,
        [](const ManifestTensorV1& tensor, const std::string& wanted) {
          return tensor.name < wanted;
        });
    if (it != tensors.end() && it->name == name) return &*it;
    std::vector<std::string> some;
    for (size_t i = 0; i < std::min<size_t>(3, tensors.size()); ++i) {
      some.push_back(tensors[i].name);
    }
    return Annotate(
        NoSuchTensor(name, static_cast<int64_t>(tensors.size()), some), path_);
  }

  absl::StatusOr<Item> PrepareItem(const std::string& name) {
    Item item;
    SHERD_ASSIGN_OR_RETURN(item.saved, Find(name));
    SHERD_ASSIGN_OR_RETURN(item.tensor, destination_(name, *item.saved));
    SHERD_ASSIGN_OR_RETURN(item.layout,
                           DescribeTensor(name, item.tensor, group_));
    AddToFingerprint(item.layout, fingerprint_);
    SHERD_RETURN_IF_ERROR(CheckFits(item));
    item.wanted = item.layout.Boxes();
    item.parts_wanted = DivideWanted(item.wanted, SizeOf(item.saved->dtype),
                                     absl::MakeSpan(elements_of_rank_));
    item.strategy = ChooseReadStrategy(*item.saved, item.parts_wanted.boxes,
                                       group_.size(), min_read_bytes_);
    if (item.strategy == ReadStrategy::kExchange) {
      item.parts = PlanParts(*item.saved, group_.size());
      for (const ReadPart& part : item.parts) {
        if (part.box.rank != group_.rank()) continue;
        SHERD_RETURN_IF_ERROR(
            reader_->Open(item.saved->shards[part.saved].file));
      }
      return item;
    }
    SHERD_ASSIGN_OR_RETURN(
        item.reads,
        PlanReads(*item.saved, item.parts_wanted.boxes, group_.rank()));
    for (const ShardRead& read : item.reads) {
      SHERD_RETURN_IF_ERROR(reader_->Open(item.saved->shards[read.saved].file));
    }
    return item;
  }

  absl::Status CheckFits(const Item& item) const {
    const ManifestTensorV1& saved = *item.saved;
    if (item.layout.dtype != saved.dtype || item.layout.sizes != saved.sizes) {
      return absl::InvalidArgumentError(absl::StrCat(
          path_, " has tensor ", Quoted(saved.name), " as ", Name(saved.dtype),
          " ", FormatDims(saved.sizes), ", but the destination is ",
          Name(item.layout.dtype), " ", FormatDims(item.layout.sizes)));
    }
    for (const Shard& shard : item.tensor.local_shards()) {
      if (shard.tensor.numel() != 0 && !shard.tensor.writable()) {
        return absl::FailedPreconditionError(
            absl::StrCat("the destination of tensor ", Quoted(saved.name),
                         " is read-only memory"));
      }
    }
    return absl::OkStatus();
  }

  static SavedShard SavedOf(const Item& item, size_t shard) {
    return {item.saved, &item.saved->shards[shard]};
  }

  // The sums of the chunks of a shard.
  absl::Span<uint32_t> SumsOf(const Item& item, size_t shard) {
    const ManifestShardV1& saved = item.saved->shards[shard];
    const int64_t before =
        saved.first_chunk - item.saved->shards.front().first_chunk;
    return absl::MakeSpan(sums_).subspan(
        item.first_sum + before, manifest_.NumChunks(*item.saved, saved));
  }

  // Fails only where all ranks do; otherwise what went wrong is in failure_.
  absl::Status ReadAll() {
    for (Item& item : items_) {
      if (item.strategy == ReadStrategy::kExchange) {
        SHERD_RETURN_IF_ERROR(Exchange(item));
        continue;
      }
      if (failure_.ok()) failure_ = ReadDirectly(item);
      if (!item.parts_wanted.copies.empty()) {
        SHERD_RETURN_IF_ERROR(CopyToReplicas(item));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadDirectly(const Item& item) {
    for (const ShardRead& read : item.reads) {
      const PlacedBox& box = item.parts_wanted.boxes[read.wanted];
      SHERD_ASSIGN_OR_RETURN(
          const Tensor whole,
          LocalPart(item.tensor, item.parts_wanted.shards[read.wanted], box));
      SHERD_ASSIGN_OR_RETURN(Tensor part,
                             whole.Narrow(read.in_wanted, read.sizes));
      const SavedShard saved = SavedOf(item, read.saved);
      if (item.strategy == ReadStrategy::kPieces) {
        SHERD_RETURN_IF_ERROR(reader_->ReadBox(saved, read.in_saved, part,
                                               SumsOf(item, read.saved)));
        continue;
      }
      std::vector<uint32_t> sums(
          manifest_.NumChunks(*saved.tensor, *saved.shard));
      SHERD_RETURN_IF_ERROR(
          reader_->ReadBox(saved, read.in_saved, part, absl::MakeSpan(sums)));
      SHERD_RETURN_IF_ERROR(reader_->Check(saved, sums));
    }
    return absl::OkStatus();
  }

  // Hands what one rank has read of a replica to the others that hold it.
  absl::Status CopyToReplicas(const Item& item) {
    absl::StatusOr<ReshardExecutor> executor =
        failure_.ok() ? PrepareCopies(item) : failure_;
    return RunMove(item, std::move(executor));
  }

  absl::StatusOr<ReshardExecutor> PrepareCopies(const Item& item) {
    const WantedParts& parts = item.parts_wanted;
    std::vector<SourceMemory> sources;
    for (size_t i = 0; i < parts.boxes.size(); ++i) {
      SHERD_RETURN_IF_ERROR(
          AddMemory(item, parts.boxes[i], parts.shards[i], i, sources));
    }
    std::vector<DestinationMemory> destinations;
    for (size_t i = 0; i < parts.copies.size(); ++i) {
      SHERD_RETURN_IF_ERROR(AddMemory(item, parts.copies[i],
                                      parts.copy_shards[i], i, destinations));
    }
    SHERD_ASSIGN_OR_RETURN(
        ReshardPlan plan,
        ReshardPlan::Create(parts.boxes, parts.copies, group_.rank()));
    return ReshardExecutor::Create(std::move(plan), SizeOf(item.saved->dtype),
                                   group_.size(), sources, destinations,
                                   {.stats = &exchange_});
  }

  // Adds where `box` lies in memory, entry `index` of a list of boxes and part
  // of wanted shard `shard`, if it is on this rank and not empty.
  template <typename Memory>
  absl::Status AddMemory(const Item& item, const PlacedBox& box, size_t shard,
                         size_t index, std::vector<Memory>& memory) const {
    if (box.rank != group_.rank()) return absl::OkStatus();
    SHERD_ASSIGN_OR_RETURN(Tensor part, LocalPart(item.tensor, shard, box));
    if (part.numel() == 0) return absl::OkStatus();
    memory.push_back(MemoryOf<Memory>(part, index, box.offsets));
    return absl::OkStatus();
  }

  template <typename Memory>
  static Memory MemoryOf(Tensor& tensor, size_t index, const Dims& offsets) {
    return {.shard = static_cast<int>(index),
            .offsets = offsets,
            .strides = Dims(tensor.strides().begin(), tensor.strides().end()),
            .data = tensor.data(),
            .owner = tensor.storage(),
            .device = tensor.device(),
            .storage = tensor.storage().get()};
  }

  // Reads this rank's parts of a tensor and trades them for its shards.
  absl::Status Exchange(const Item& item) {
    std::vector<Tensor> staged;
    absl::StatusOr<ReshardExecutor> executor =
        failure_.ok() ? PrepareExchange(item, staged) : failure_;
    return RunMove(item, std::move(executor));
  }

  absl::StatusOr<ReshardExecutor> PrepareExchange(const Item& item,
                                                  std::vector<Tensor>& staged) {
    std::vector<PlacedBox> from;
    std::vector<SourceMemory> sources;
    for (const ReadPart& part : item.parts) {
      const size_t index = from.size();
      from.push_back(part.box);
      if (part.box.rank != group_.rank()) continue;
      SHERD_ASSIGN_OR_RETURN(
          Tensor tensor,
          Tensor::Empty(part.box.sizes,
                        {.dtype = item.saved->dtype,
                         .allocator = &group_.shard_allocator()}));
      SHERD_RETURN_IF_ERROR(reader_->ReadBox(SavedOf(item, part.saved),
                                             part.offsets, tensor,
                                             SumsOf(item, part.saved)));
      sources.push_back(
          MemoryOf<SourceMemory>(tensor, index, part.box.offsets));
      staged.push_back(std::move(tensor));
    }
    std::vector<DestinationMemory> destinations;
    const absl::Span<const int> indices = item.tensor.local_shard_indices();
    for (size_t i = 0; i < indices.size(); ++i) {
      Tensor tensor = item.tensor.local_shards()[i].tensor;
      if (tensor.numel() == 0) continue;
      const size_t index = static_cast<size_t>(indices[i]);
      destinations.push_back(MemoryOf<DestinationMemory>(
          tensor, index, item.wanted[index].offsets));
    }
    SHERD_ASSIGN_OR_RETURN(
        ReshardPlan plan,
        ReshardPlan::Create(from, item.wanted, group_.rank()));
    return ReshardExecutor::Create(std::move(plan), SizeOf(item.saved->dtype),
                                   group_.size(), sources, destinations,
                                   {.stats = &exchange_});
  }

  // Tells the ranks how each of them fared, and checks the CRCs of what several
  // of them read.
  absl::Status Finish() {
    SHERD_RETURN_IF_ERROR(step_->Agree(failure_));
    const int64_t sum_bytes =
        static_cast<int64_t>(sums_.size() * sizeof(uint32_t));
    const bool gather_sums =
        group_.size() == 1 || sum_bytes <= kMaxGatheredSums / group_.size();
    const size_t block =
        sizeof(Report) + (gather_sums ? static_cast<size_t>(sum_bytes) : 0);
    std::vector<std::byte> mine(block), all(block * group_.size());
    const Report report = {reader_->bytes_read(), stats_.exchanged_bytes};
    std::memcpy(mine.data(), &report, sizeof(report));
    if (gather_sums && sum_bytes > 0) {
      std::memcpy(mine.data() + sizeof(report), sums_.data(), sum_bytes);
    }
    SHERD_RETURN_IF_ERROR(group_.AllGather(mine, absl::MakeSpan(all)));
    AddUpReports(all, block);
    if (!gather_sums) return CheckShares();
    std::fill(sums_.begin(), sums_.end(), 0);
    for (int rank = 0; rank < group_.size(); ++rank) {
      AddSums(all.data() + rank * block + sizeof(report), 0, sums_.size());
    }
    // All ranks check the same numbers and come to the same result.
    return CheckSums(0, sums_.size());
  }

  void AddUpReports(absl::Span<const std::byte> all, size_t block) {
    stats_ = {};
    for (int rank = 0; rank < group_.size(); ++rank) {
      Report report;
      std::memcpy(&report, all.data() + rank * block, sizeof(report));
      stats_.file_bytes += report.bytes_read;
      stats_.exchanged_bytes += report.bytes_exchanged;
    }
    for (const Item& item : items_) {
      stats_.tensor_bytes += *NumBytes(item.saved->sizes, item.saved->dtype);
    }
  }

  // sums_[begin, end) gets the XOR of itself and `bytes`, which hold as many
  // sums.
  void AddSums(const std::byte* bytes, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i, bytes += sizeof(uint32_t)) {
      uint32_t sum;
      std::memcpy(&sum, bytes, sizeof(sum));
      sums_[i] ^= sum;
    }
  }

  // Where the share of `rank` of the sums begins.
  size_t ShareBegin(int rank) const {
    return sums_.size() * static_cast<size_t>(rank) /
           static_cast<size_t>(group_.size());
  }

  // Every rank adds up and checks a share of the sums.
  absl::Status CheckShares() {
    const size_t begin = ShareBegin(group_.rank());
    const size_t end = ShareBegin(group_.rank() + 1);
    const size_t share_bytes = (end - begin) * sizeof(uint32_t);
    std::vector<std::byte> received(share_bytes * group_.size());
    std::vector<ConstBytes> sends;
    std::vector<MutableBytes> recvs;
    for (int rank = 0; rank < group_.size(); ++rank) {
      sends.emplace_back(
          reinterpret_cast<const std::byte*>(sums_.data() + ShareBegin(rank)),
          (ShareBegin(rank + 1) - ShareBegin(rank)) * sizeof(uint32_t));
      recvs.emplace_back(received.data() + rank * share_bytes, share_bytes);
    }
    SHERD_RETURN_IF_ERROR(group_.AllToAllV(sends, recvs));
    std::fill(sums_.begin() + begin, sums_.begin() + end, 0);
    for (int rank = 0; rank < group_.size(); ++rank) {
      AddSums(received.data() + rank * share_bytes, begin, end);
    }
    return Agree(group_, operation(), CheckSums(begin, end));
  }

  // Checks the chunks whose sums are sums_[begin, end).
  absl::Status CheckSums(size_t begin, size_t end) {
    for (const Item& item : items_) {
      if (item.strategy == ReadStrategy::kWhole) continue;
      for (size_t s = 0; s < item.saved->shards.size(); ++s) {
        const absl::Span<uint32_t> sums = SumsOf(item, s);
        const size_t first = sums.data() - sums_.data();
        for (size_t i = std::max(first, begin);
             i < std::min(first + sums.size(), end); ++i) {
          SHERD_RETURN_IF_ERROR(reader_->CheckChunk(
              SavedOf(item, s), static_cast<int64_t>(i - first), sums_[i]));
        }
      }
    }
    return absl::OkStatus();
  }

  const std::string& path_;
  // The beginning of error messages.
  const std::string label_;
  const OperationLabel operation_;
  const std::vector<std::string> names_;
  const DestinationFn destination_;
  ProcessGroup& group_;
  FileSystem& files_;
  const int64_t min_read_bytes_;
  const std::optional<absl::Duration> timeout_;

  // The step that this rank is in.
  std::optional<LongStep> step_;

  // To be read, so that all ranks read about as much.
  std::vector<int64_t> elements_of_rank_;
  Fingerprint fingerprint_;
  ManifestV1 manifest_;
  std::optional<ShardReader> reader_;
  std::vector<Item> items_;
  // Linear CRCs of the chunks that ranks check together, from what this rank
  // has read of them.
  std::vector<uint32_t> sums_;
  // The error of this rank while data moved.
  absl::Status failure_;
  CheckpointStats stats_;
  ReshardStats exchange_;
};

absl::StatusOr<std::vector<ShardedTensor>> Load(
    const std::string& path, const std::vector<std::string>& names,
    const DestinationFn& destination, std::shared_ptr<ProcessGroup> group,
    const LoadOptions& options) {
  // A save may replace the checkpoint after one rank has read it and before
  // another does: the latter finds a file missing, or another manifest than the
  // others. All ranks see the same error, so all look, and start over, once.
  for (int attempt = 0;; ++attempt) {
    Loader loader(path, names, destination, *group, options);
    const absl::Status status =
        InOperation(loader.operation(), loader.Run(), group->name());
    if (status.ok()) {
      if (options.stats != nullptr) *options.stats = loader.stats();
      return loader.TakeTensors();
    }
    const bool may_be_replaced = absl::IsNotFound(status) ||
                                 absl::IsDataLoss(status) ||
                                 absl::IsInvalidArgument(status);
    if (!may_be_replaced) return status;
    const absl::Status health = group->health();
    const absl::StatusOr<Loader::Found> found =
        health.ok() ? loader.LookAgain() : health;
    // A program begins afresh at kNotFound, and would replace what others see.
    if (!found.ok()) {
      return absl::IsNotFound(status)
                 ? InOperation(loader.operation(), found.status(),
                               group->name())
                 : status;
    }
    if (*found == Loader::kAnother && attempt == 0) continue;
    if (!absl::IsNotFound(status) || *found == Loader::kNothing) return status;
    return WithErrorInfo(
        absl::FailedPreconditionError(absl::StrCat(
            status.message(),
            "; but another rank finds it: expected a directory that all ranks "
            "see alike")),
        GetErrorInfo(status));
  }
}

template <typename Map>
std::vector<std::string> NamesOf(const Map& map) {
  std::vector<std::string> names;
  for (const auto& [name, value] : map) names.push_back(name);
  return names;
}

}  // namespace

absl::Status LoadCheckpointInto(
    const std::string& path,
    const std::map<std::string, ShardedTensor*>& destinations,
    std::shared_ptr<ProcessGroup> group, const LoadOptions& options) {
  if (group == nullptr) {
    SHERD_ASSIGN_OR_RETURN(group, DefaultGroup());
  }
  const auto find =
      [&](const std::string& name,
          const ManifestTensorV1&) -> absl::StatusOr<ShardedTensor> {
    const ShardedTensor* tensor = destinations.at(name);
    if (tensor != nullptr) return *tensor;
    return absl::FailedPreconditionError(
        absl::StrCat("the destination of tensor ", Quoted(name), " is null"));
  };
  return Load(path, NamesOf(destinations), find, group, options).status();
}

absl::StatusOr<std::map<std::string, ShardedTensor>> LoadCheckpoint(
    const std::string& path,
    const std::map<std::string, ShardingSpecPtr>& specs,
    std::shared_ptr<ProcessGroup> group, const LoadOptions& options) {
  if (group == nullptr) {
    SHERD_ASSIGN_OR_RETURN(group, DefaultGroup());
  }
  const auto create =
      [&](const std::string& name,
          const ManifestTensorV1& saved) -> absl::StatusOr<ShardedTensor> {
    absl::StatusOr<ShardedTensor> tensor =
        ShardedTensor::Empty(specs.at(name), saved.sizes,
                             {.dtype = saved.dtype,
                              .group = group,
                              .requires_grad = saved.requires_grad,
                              .allocator = options.allocator});
    if (tensor.ok()) return tensor;
    return Annotate(tensor.status(), absl::StrCat("tensor ", Quoted(name)));
  };
  const std::vector<std::string> names = NamesOf(specs);
  SHERD_ASSIGN_OR_RETURN(std::vector<ShardedTensor> tensors,
                         Load(path, names, create, group, options));
  std::map<std::string, ShardedTensor> result;
  for (size_t i = 0; i < names.size(); ++i) {
    result.emplace(names[i], std::move(tensors[i]));
  }
  return result;
}

}  // namespace sherd
