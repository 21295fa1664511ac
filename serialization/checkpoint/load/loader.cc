#include "sherd/serialization/checkpoint/load/loader.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/types/element_cast.h"
#include "sherd/serialization/checkpoint/host_share.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"
#include "sherd/serialization/checkpoint/state/state_blob.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/manifest/data_file.h"

namespace sherd {
namespace {

// Every rank checks up to so many files of a checkpoint, tensors, or shards of
// one itself; of more, each checks a share.
constexpr int64_t kFew = 64;

// What is known of so many tensors is still in the cache when they are planned.
constexpr size_t kTensorsAtOnce = 128;

uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  return b > std::numeric_limits<uint64_t>::max() - a
             ? std::numeric_limits<uint64_t>::max()
             : a + b;
}

// The bytes of data in the files that have shards of a tensor, where
// `data_before` has those in the files before each. A file of a number that
// does not exist has none.
uint64_t DataBytesOf(const ManifestTensor& tensor,
                     absl::Span<const uint64_t> data_before) {
  const auto files = static_cast<int64_t>(data_before.size()) - 1;
  // [first, second).
  absl::InlinedVector<std::pair<int64_t, int64_t>, 4> ranges;
  for (const SavedRun& run : tensor.runs) {
    for (const SavedExtent& extent : run.extents) {
      const int64_t count = run.file_step == 0 ? 1 : run.shards;
      const int64_t first = std::clamp<int64_t>(extent.file, 0, files);
      ranges.emplace_back(first, first + std::min(count, files - first));
    }
  }
  std::sort(ranges.begin(), ranges.end());
  uint64_t bytes = 0;
  int64_t end = 0;
  for (auto [first, last] : ranges) {
    first = std::max(first, end);
    if (last <= first) continue;
    bytes = SaturatingAdd(bytes, data_before[static_cast<size_t>(last)] -
                                     data_before[static_cast<size_t>(first)]);
    end = last;
  }
  return bytes;
}

// The share of a rank of the memory of its host; the same on all ranks.
int64_t ShareOf(int64_t budget, const ProcessGroup& group) {
  // Messages have room for a few elements for each other rank.
  const int64_t least =
      std::max(int64_t{2} << 20, int64_t{1024} * group.size());
  return std::max(budget / MostRanksOnHost(group), least);
}

}  // namespace

std::string Loader::LabelOf(const std::string& path) {
  return absl::StrCat("load \"", PrintableLine(path), "\"");
}

Loader::Loader(const std::string& path,
               absl::Span<const absl::string_view> names,
               Destinations destinations, ProcessGroup& group,
               const LoadOptions& options)
    : path_(path),
      label_(LabelOf(path)),
      operation_(kOperation, label_),
      names_(names),
      destinations_(std::move(destinations)),
      group_(group),
      options_(options),
      files_(options.files != nullptr ? *options.files : CheckpointFiles()),
      collective_({.timeout = options.timeout}),
      memory_(ShareOf(options.memory_budget, group)),
      elements_of_rank_(static_cast<size_t>(group.size())) {}

absl::StatusOr<Loader::Found> Loader::LookAgain() {
  const absl::StatusOr<ManifestReader> current =
      ManifestReader::Open(files_, path_);
  Found found = kTheSame;
  if (current.ok()) {
    const bool is_same =
        gave_up_reading_ || current->summary().save_id == save_id_;
    found = is_same ? kTheSame : kAnother;
  } else if (absl::IsNotFound(current.status()) && save_id_.empty()) {
    // One that cannot be read now, or that was read before, is something.
    found = kNothing;
  }
  SHERD_ASSIGN_OR_RETURN(const uint64_t most,
                         AgreeOnMaximum(group_, operation(), absl::OkStatus(),
                                        {}, found, collective_));
  return static_cast<Found>(most);
}

std::string Loader::DescribeCall() const {
  std::string text = absl::StrCat(
      "path ", PrintableLine(path_), "\ndestinations ",
      destinations_.are_new() ? "new" : "given", "\nmin_read_bytes ",
      options_.min_read_bytes, "\nmemory_budget ", options_.memory_budget,
      "\nstrict ", options_.strict ? "true" : "false", "\nconvert ",
      options_.convert ? "true" : "false", "\ncheck_elements ",
      options_.check_elements ? "true" : "false", "\nreport ",
      options_.report != nullptr ? "wanted" : "not wanted", "\nsave ", save_id_,
      "\n");
  for (const RenameRule& rule : options_.rename) {
    absl::StrAppend(&text, "rename ", Quoted(rule.loaded), " from ",
                    Quoted(rule.saved), "\n");
  }
  for (const std::string& name : report_.missing) {
    absl::StrAppend(&text, "not in the checkpoint: ", Quoted(name), "\n");
  }
  for (const auto& mismatch : report_.mismatched) {
    absl::StrAppend(&text, "left, ", PrintableLine(mismatch.reason), "\n");
  }
  std::vector<TensorToSave> layouts;
  for (const Item& item : items_) {
    absl::StatusOr<TensorToSave> layout =
        DescribeTensor(NameOf(item), *item.tensor, group_);
    if (layout.ok()) layouts.push_back(*std::move(layout));
  }
  return absl::StrCat(text, DescribeForAgreement(layouts));
}

absl::Status Loader::Prepare() {
  fingerprint_.Add(path_)
      .Add(destinations_.are_new() ? 1 : 0)
      .Add(options_.min_read_bytes)
      .Add(options_.memory_budget)
      .Add(options_.strict ? 1 : 0)
      .Add(options_.convert ? 1 : 0)
      .Add(options_.check_elements ? 1 : 0)
      .Add(options_.report != nullptr ? 1 : 0);
  for (const RenameRule& rule : options_.rename) {
    fingerprint_.Add(rule.loaded).Add(rule.saved);
  }
  // A manifest that is not small goes on being read.
  const auto after_read = [this] { return MadeProgress(); };
  absl::StatusOr<ManifestReader> opened =
      ManifestReader::Open(files_, path_, after_read);
  gave_up_reading_ = absl::IsCancelled(opened.status());
  SHERD_ASSIGN_OR_RETURN(ManifestReader manifest, std::move(opened));
  save_id_ = manifest.summary().save_id;
  fingerprint_.Add(save_id_);
  files_reader_.emplace(std::move(manifest), files_, after_read);
  ledger_.emplace(MakeLedger());
  reader_.emplace(*files_reader_, *ledger_);
  SHERD_RETURN_IF_ERROR(CheckFileSizes());
  StrategyChooser chooser(group_.size(), options_.min_read_bytes);
  SHERD_RETURN_IF_ERROR(FindTensors(chooser));
  SHERD_RETURN_IF_ERROR(CheckApart());
  SortReads(reads_);
  return PlanExchange();
}

// Checks that the files have the sizes in the manifest: only then is the
// manifest trusted about the memory that the tensors need. If there are very
// many files, the ranks divide them.
absl::Status Loader::CheckFileSizes() {
  const ManifestReader& manifest = files_reader_->manifest();
  const auto files = static_cast<int32_t>(manifest.num_files());
  data_before_ = {0};
  for (int32_t file = 0; file < files; ++file) {
    if (files <= kFew || file % group_.size() == group_.rank()) {
      SHERD_RETURN_IF_ERROR(files_reader_->Open(file));
    }
    SHERD_ASSIGN_OR_RETURN(const ManifestFile* const info,
                           manifest.FileAt(file));
    int64_t data = info->size - info->data_begin;
    if (manifest.summary().version > 1) data -= CrcTableBytes(info->chunks);
    data_before_.push_back(
        SaturatingAdd(data_before_.back(),
                      static_cast<uint64_t>(std::max<int64_t>(data, 0))));
  }
  return absl::OkStatus();
}

// Checks a tensor before memory for it is taken: all ranks, that the files have
// as many bytes as it needs; and that its extents are inside their files, which
// the ranks divide if these, its shards or the tensors are many.
absl::Status Loader::CheckExtents(const ManifestTensor& saved) {
  const uint64_t most = DataBytesOf(saved, data_before_);
  if (static_cast<uint64_t>(saved.bytes()) > most) {
    return absl::DataLossError(absl::StrCat(
        files_reader_->manifest().path(), ": tensor ", Quoted(saved.name),
        " has ", saved.bytes(), " bytes, but the files with its shards have ",
        most, " bytes of data"));
  }
  const bool divide = files_reader_->manifest().num_files() > kFew ||
                      saved.num_shards() > kFew ||
                      static_cast<int64_t>(names_.size()) > kFew;
  const int64_t step = divide ? group_.size() : 1;
  for (int64_t shard = divide ? group_.rank() : 0; shard < saved.num_shards();
       shard += step) {
    for (const SavedExtent& extent :
         saved.PlaceOf(shard, files_reader_->chunk_bytes()).extents) {
      SHERD_RETURN_IF_ERROR(files_reader_->Open(extent));
    }
  }
  return absl::OkStatus();
}

std::string Loader::SavedName(absl::string_view name) const {
  for (const RenameRule& rule : options_.rename) {
    if (absl::StartsWith(name, rule.loaded)) {
      return absl::StrCat(rule.saved, name.substr(rule.loaded.size()));
    }
  }
  return std::string(name);
}

absl::StatusOr<std::vector<std::shared_ptr<const ManifestTensor>>>
Loader::FindSaved(absl::Span<const absl::string_view> sorted_names) const {
  const ManifestReader& manifest = files_reader_->manifest();
  if (options_.strict) return manifest.FindAll(sorted_names);
  std::vector<std::shared_ptr<const ManifestTensor>> found;
  found.reserve(sorted_names.size());
  for (const absl::string_view name : sorted_names) {
    auto tensor = manifest.Find(name);
    if (!tensor.ok() && !absl::IsInvalidArgument(tensor.status())) {
      return tensor.status();
    }
    found.push_back(tensor.ok() ? *std::move(tensor) : nullptr);
  }
  return found;
}

absl::Status Loader::FindTensors(StrategyChooser& chooser) {
  items_.reserve(names_.size());
  writes_.emplace().reserve(names_.size());
  owners_.reserve(names_.size());
  if (destinations_.are_new()) made_.resize(names_.size());
  for (size_t first = 0; first < names_.size(); first += kTensorsAtOnce) {
    const absl::Span<const absl::string_view> names =
        names_.subspan(first, kTensorsAtOnce);
    // Without rules both orders are the same.
    std::vector<std::string> renamed;
    if (!options_.rename.empty()) {
      for (const absl::string_view name : names) {
        renamed.push_back(SavedName(name));
      }
      std::sort(renamed.begin(), renamed.end());
    }
    const std::vector<absl::string_view> sorted(renamed.begin(), renamed.end());
    const absl::Span<const absl::string_view> saved_names =
        options_.rename.empty() ? names : absl::MakeConstSpan(sorted);
    SHERD_ASSIGN_OR_RETURN(auto found, FindSaved(saved_names));
    if (!destinations_.are_new()) {
      internal::ShardedTensorAccess::Prefetch(
          destinations_.given.subspan(first, kTensorsAtOnce));
    }
    for (size_t i = 0; i < names.size(); ++i) {
      if (options_.rename.empty()) {
        SHERD_RETURN_IF_ERROR(AddItem(first + i, std::move(found[i]), chooser));
        continue;
      }
      // Several destinations may take one tensor.
      const auto at = std::lower_bound(saved_names.begin(), saved_names.end(),
                                       SavedName(names[i]));
      SHERD_RETURN_IF_ERROR(AddItem(
          first + i, found[static_cast<size_t>(at - saved_names.begin())],
          chooser));
    }
  }
  return options_.report != nullptr ? ListUnexpected() : absl::OkStatus();
}

const Loader::WantedLayout& Loader::LayoutOf(const ShardedTensor& tensor) {
  const auto [it, is_new] = layouts_.try_emplace(LayoutFingerprintOf(tensor));
  WantedLayout& layout = it->second;
  if (is_new) {
    layout.boxes_fingerprint = BoxesFingerprintOf(tensor);
    layout.largest_sizes = LargestSizes(tensor.placed_boxes());
    layout.has_replicas = HasReplicas(tensor.size(), tensor.placed_boxes());
  }
  return layout;
}

absl::StatusOr<const ShardedTensor*> Loader::Destination(
    size_t number, const ManifestTensor& saved) {
  if (destinations_.are_new()) {
    SHERD_ASSIGN_OR_RETURN(made_[number], destinations_.make(number, saved));
    return &made_[number];
  }
  if (destinations_.given[number] != nullptr) {
    return destinations_.given[number];
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the destination of tensor ", Quoted(names_[number]), " is null"));
}

absl::Status Loader::AddItem(size_t number,
                             std::shared_ptr<const ManifestTensor> saved,
                             StrategyChooser& chooser) {
  const absl::string_view name = names_[number];
  if (saved == nullptr) {
    fingerprint_.Add(name);
    report_.missing.emplace_back(name);
    return absl::OkStatus();
  }
  SHERD_RETURN_IF_ERROR(CheckExtents(*saved));
  SHERD_ASSIGN_OR_RETURN(const ShardedTensor* const destination,
                         Destination(number, *saved));
  const ShardedTensor& tensor = *destination;
  SHERD_RETURN_IF_ERROR(CheckTensor(name, tensor, group_));
  const WantedLayout& wanted = LayoutOf(tensor);
  fingerprint_.Add(name)
      .Add(static_cast<int64_t>(tensor.dtype()))
      .Add(static_cast<int64_t>(wanted.boxes_fingerprint));
  const absl::Status fits = CheckFits(name, *saved, tensor);
  if (!options_.strict && absl::IsInvalidArgument(fits)) {
    if (destinations_.are_new()) made_[number] = ShardedTensor();
    report_.mismatched.push_back(
        {std::string(name), std::string(fits.message())});
    return absl::OkStatus();
  }
  SHERD_RETURN_IF_ERROR(fits);
  if (tensor.dtype() != saved->dtype) report_.converted.emplace_back(name);
  stats_.tensor_bytes += saved->bytes();
  Item& item = items_.emplace_back();
  item.number = number;
  item.saved = std::move(saved);
  item.tensor = destination;
  item.dtype = tensor.dtype();
  for (const Shard& shard : tensor.local_shards()) {
    writes_->Add(
        internal::AccessToTensor(shard.tensor, internal::Access::kWrite));
    owners_.push_back(items_.size() - 1);
    has_device_shards_ |= !shard.tensor.device().is_cpu();
  }
  return PlanItem(wanted, chooser);
}

absl::Status Loader::ListUnexpected() {
  std::vector<std::string> wanted;
  for (const absl::string_view name : names_) {
    wanted.push_back(SavedName(name));
  }
  std::sort(wanted.begin(), wanted.end());
  SHERD_ASSIGN_OR_RETURN(const Manifest manifest,
                         files_reader_->manifest().ReadAll());
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (!IsStateBlob(tensor.name) &&
        !std::binary_search(wanted.begin(), wanted.end(), tensor.name)) {
      report_.unexpected.push_back(tensor.name);
    }
  }
  return absl::OkStatus();
}

absl::Status Loader::CheckFits(absl::string_view name,
                               const ManifestTensor& saved,
                               const ShardedTensor& tensor) {
  const absl::Span<const int64_t> sizes = tensor.size();
  const bool is_other = tensor.dtype() != saved.dtype;
  const absl::Status cast = CheckCast(saved.dtype, tensor.dtype());
  const bool converts = options_.convert && cast.ok();
  if ((is_other && !converts) || sizes != saved.sizes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, " has tensor ", Quoted(saved.name), " as ", Name(saved.dtype),
        " ", FormatDims(saved.sizes()), ", but the destination is ",
        Name(tensor.dtype()), " ", FormatDims(sizes),
        sizes != saved.sizes() ? ""
        : cast.ok()            ? "; LoadOptions::convert converts the values"
                               : absl::StrCat("; ", cast.message())));
  }
  for (const Shard& shard : tensor.local_shards()) {
    if (shard.tensor.numel() != 0 && !shard.tensor.writable()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the destination of tensor ", Quoted(name), " is read-only memory"));
    }
  }
  return absl::OkStatus();
}

// That each element of the destinations is set once.
absl::Status Loader::CheckApart() {
  const auto conflict = writes_->Find();
  writes_.reset();
  const auto owners = std::exchange(owners_, {});
  if (!conflict) return absl::OkStatus();
  const absl::string_view first = NameOf(items_[owners[conflict->first]]);
  const absl::string_view second = NameOf(items_[owners[conflict->second]]);
  if (first == second) {
    return absl::InvalidArgumentError(absl::StrCat(
        "elements of the destination of tensor ", Quoted(first),
        " lie in the same memory, expected each in memory of its own"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the destinations of tensors ", Quoted(first), " and ", Quoted(second),
      " share memory, expected each in memory of its own; load one of them"));
}

absl::Status Loader::PlanItem(const WantedLayout& wanted,
                              StrategyChooser& chooser) {
  Item& item = items_.back();
  const ShardedTensor& tensor = *item.tensor;
  const ManifestTensor& saved = *item.saved;
  const uint64_t wanted_fingerprint = LayoutFingerprintOf(tensor);
  const bool has_saved_layout = saved.layout.IsCopyOf(last_plan_.saved);
  const absl::Span<const int> shards = tensor.local_shard_indices();
  const bool has_both = has_saved_layout &&
                        wanted_fingerprint == last_plan_.wanted &&
                        shards == last_plan_.shards;
  if (!has_saved_layout) {
    last_plan_ = {saved.layout, LargestSizes(saved.layout)};
  }
  item.strategy = chooser.Choose(last_plan_.largest_sizes, wanted.largest_sizes,
                                 SizeOf(saved.dtype));
  if (item.strategy == ReadStrategy::kExchange) {
    exchanged_.push_back(items_.size() - 1);
    return absl::OkStatus();
  }
  has_pieces_ = true;
  SHERD_RETURN_IF_ERROR(PlanPieces(wanted, item));
  const auto number = static_cast<int32_t>(items_.size() - 1);
  const size_t first = reads_.size();
  if (has_both && last_plan_.first_read < last_plan_.last_read) {
    RepeatReads(saved, files_reader_->chunk_bytes(), number,
                last_plan_.first_read, last_plan_.last_read, reads_);
  } else {
    for (size_t b = 0; b < item.boxes.size(); ++b) {
      PlanReads(saved, files_reader_->chunk_bytes(), number,
                item.boxes[b].In(tensor.placed_boxes()),
                static_cast<int32_t>(b), reads_);
    }
  }
  if (!has_both) {
    last_plan_.wanted = wanted_fingerprint;
    last_plan_.shards.assign(shards.begin(), shards.end());
  }
  last_plan_.first_read = first;
  // Which part of a replica this rank reads depends on the tensors before.
  last_plan_.last_read = wanted.has_replicas ? first : reads_.size();
  return absl::OkStatus();
}

// What this rank reads of a tensor, and copies.
absl::Status Loader::PlanPieces(const WantedLayout& layout, Item& item) {
  const ShardedTensor& tensor = *item.tensor;
  const absl::Span<const PlacedBox> wanted = tensor.placed_boxes();
  const size_t element_size = SizeOf(item.dtype);
  if (!layout.has_replicas) {
    const absl::Span<const int> indices = tensor.local_shard_indices();
    for (size_t i = 0; i < indices.size(); ++i) {
      const auto index = static_cast<size_t>(indices[i]);
      WantedBox& box = item.boxes.emplace_back();
      box.shard = index;
      const Tensor& shard = tensor.local_shards()[i].tensor;
      if (shard.device().is_cpu() && shard.is_contiguous()) {
        // Of a copy of the handle it would not be const. CheckFits has refused
        // what is read-only.
        box.data = static_cast<std::byte*>(const_cast<void*>(shard.data()));
      }
    }
    return absl::OkStatus();
  }
  ReplicaWork work = PlanReplicas(wanted, element_size, group_.rank(),
                                  absl::MakeSpan(elements_of_rank_));
  item.boxes.assign(std::make_move_iterator(work.reads.begin()),
                    std::make_move_iterator(work.reads.end()));
  Copies& copies = copies_[element_size];
  SHERD_ASSIGN_OR_RETURN(const int first, copies.numbers.Add(tensor));
  for (BoxCopy& copy : work.copies) {
    copy.src_shard += first;
    copy.dst_shard += first;
    copies.moves.copies.push_back(std::move(copy));
  }
  ListShards(tensor, first, copies.moves.sources);
  ListShards(tensor, first, copies.moves.destinations);
  return absl::OkStatus();
}

// In the order of the files, as far as the first shards show it: it is the same
// on all ranks.
absl::Status Loader::PlanExchange() {
  std::vector<std::tuple<int32_t, int64_t, size_t>> order;
  for (const size_t i : exchanged_) {
    const SavedExtent first = FirstExtentOf(*items_[i].saved, 0);
    order.emplace_back(first.file, first.data_offset, i);
  }
  if (!std::is_sorted(order.begin(), order.end())) {
    std::sort(order.begin(), order.end());
  }
  for (const auto& [file, offset, i] : order) {
    const ManifestTensor& saved = *items_[i].saved;
    // Elements are converted where they are read.
    const size_t element_size = SizeOf(items_[i].dtype);
    const auto [exchange, is_new] = exchanges_.try_emplace(
        element_size, group_, element_size, part_bytes());
    SHERD_RETURN_IF_ERROR(exchange->second.Add(
        static_cast<int64_t>(i), saved.layout, *items_[i].tensor));
  }
  for (auto& [element_size, exchange] : exchanges_) exchange.Finish();
  return absl::OkStatus();
}

}  // namespace sherd
