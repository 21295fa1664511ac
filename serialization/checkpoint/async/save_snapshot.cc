#include "sherd/serialization/checkpoint/async/save_snapshot.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/parallel_run.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/checkpoint/host_share.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"
#include "sherd/serialization/safetensors/box_pieces.h"

namespace sherd {
namespace {

// A thread copies so much before it looks for more.
constexpr int64_t kUnitBytes = int64_t{1} << 20;
// Below this, copies from a device share a launch.
constexpr int64_t kLongBytes = int64_t{64} << 10;
// The writer can begin once so much has been copied from a device.
constexpr int64_t kBatchBytes = int64_t{32} << 20;

// A tensor in host memory and the memory for its copy.
struct HostCopy {
  Tensor from;
  std::byte* to = nullptr;
};

// Calls `visit` with pieces of at most kUnitBytes, in order, until it returns
// an error.
template <typename Visit>
absl::Status ForEachUnit(const HostCopy& copy, const Visit& visit) {
  const Dims zeros(copy.from.dim(), 0);
  return ForEachPiece(
      BoxOf(copy.from.sizes(), zeros, copy.from), kUnitBytes,
      [&](const BoxPiece& piece) -> absl::Status {
        if (!piece.contiguous) {
          return visit(copy.to + piece.offset, piece);
        }
        for (int64_t done = 0; done < piece.bytes; done += kUnitBytes) {
          BoxPiece part;
          part.bytes = std::min(kUnitBytes, piece.bytes - done);
          part.data = piece.data + done;
          SHERD_RETURN_IF_ERROR(visit(copy.to + piece.offset + done, part));
        }
        return absl::OkStatus();
      });
}

void CopyPiece(std::byte* to, const BoxPiece& piece, size_t element_size,
               size_t whole_bytes) {
  if (piece.contiguous) {
    const int64_t bytes = piece.bytes, one = 1;
    StridedCopy(to, {&one, 1}, piece.data, {&one, 1}, {&bytes, 1}, 1,
                whole_bytes);
  } else {
    StridedCopy(to, ContiguousStrides(piece.sizes), piece.data, piece.strides,
                piece.sizes, element_size, whole_bytes);
  }
}

}  // namespace

CopyStreams::~CopyStreams() {
  absl::MutexLock lock(&mutex_);
  for (const DeviceStream& stream : streams_) {
    if (auto* runtime = DeviceRuntime::FindLoaded(stream.device.type)) {
      runtime->DestroyStream(stream);
    }
  }
}

absl::StatusOr<DeviceStream> CopyStreams::Of(const Device& device) {
  absl::MutexLock lock(&mutex_);
  for (const DeviceStream& stream : streams_) {
    if (stream.device == device) return stream;
  }
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(device.type));
  SHERD_ASSIGN_OR_RETURN(const DeviceStream stream,
                         runtime->CreateStream(device.index));
  streams_.push_back(stream);
  return stream;
}

absl::Status CopyStreams::Follow(const Device& device) {
  SHERD_ASSIGN_OR_RETURN(const DeviceStream own, Of(device));
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(device.type));
  SHERD_ASSIGN_OR_RETURN(const DeviceEvent event,
                         runtime->TakeEvent(device.index));
  absl::Status status = runtime->RecordEvent(event, CurrentStream(device));
  if (status.ok()) status = runtime->WaitEvent(own, event);
  runtime->ReturnEvent(device.index, event);
  return status;
}

void CopyStreams::Drain() {
  std::vector<DeviceStream> streams;
  {
    absl::MutexLock lock(&mutex_);
    streams = streams_;
  }
  for (const DeviceStream& stream : streams) {
    auto* const runtime = DeviceRuntime::FindLoaded(stream.device.type);
    if (runtime != nullptr) runtime->Synchronize(stream).IgnoreError();
  }
}

SaveSnapshot::SaveSnapshot(std::shared_ptr<SaveJob::Tensors> tensors,
                           std::shared_ptr<const SavePlan> plan, int64_t budget)
    : tensors_(std::move(tensors)), plan_(std::move(plan)) {
  for (auto& [name, tensor] : *tensors_) by_index_.push_back(&tensor);
  places_.resize(plan_->shards.size());
  for (const PlannedShard& shard : plan_->shards) {
    limit_ += StagingRing::RoomFor(BytesOf(shard));
    const Device device = DeviceOf(shard);
    if (!device.is_cpu() &&
        std::find(devices_.begin(), devices_.end(), device) == devices_.end()) {
      devices_.push_back(device);
    }
  }
  if (budget > 0) budget_ = budget;
  limit_ = std::min(limit_, budget_);
}

absl::Status SaveSnapshot::FollowCurrentStreams(CopyStreams& streams) const {
  for (const Device& device : devices_) {
    SHERD_RETURN_IF_ERROR(streams.Follow(device));
  }
  return absl::OkStatus();
}

absl::StatusOr<SaveSnapshot::Wave> SaveSnapshot::Place(StagingRing& ring) {
  if (ring.empty() && limit_ > 0) {
    Allocator* pinned = nullptr;
    if (!devices_.empty()) {
      SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                             DeviceRuntime::For(devices_.front().type));
      pinned = runtime->PinnedMemory();
    }
    SHERD_RETURN_IF_ERROR(ring.Reserve(limit_, budget_, pinned));
  }
  Wave wave = {placed_, placed_};
  for (; placed_ < places_.size(); ++placed_) {
    const PlannedShard& shard = plan_->shards[placed_];
    if (StagingRing::RoomFor(BytesOf(shard)) > limit_) {
      last_direct_ = placed_ + 1;
      continue;
    }
    if (!ring.pinned() && !DeviceOf(shard).is_cpu()) break;
    places_[placed_] = ring.Take(BytesOf(shard));
    if (places_[placed_] == nullptr) break;
  }
  wave.end = placed_;
  return wave;
}

absl::Status SaveSnapshot::Copy(const Wave& wave, int threads,
                                CopyStreams& streams,
                                SaveJob::Progress progress) {
  // Those from devices run while the host copies.
  SHERD_RETURN_IF_ERROR(QueueCopies(wave, streams));
  return CopyOnHost(wave, threads, progress);
}

absl::Status SaveSnapshot::CopyOnHost(const Wave& wave, int threads,
                                      SaveJob::Progress progress) {
  std::vector<HostCopy> copies;
  int64_t bytes = 0;
  for (size_t i = wave.begin; i < wave.end; ++i) {
    const PlannedShard& shard = plan_->shards[i];
    if (places_[i] == nullptr || !DeviceOf(shard).is_cpu()) continue;
    SHERD_ASSIGN_OR_RETURN(Tensor from, PartOf(shard));
    bytes += from.nbytes();
    copies.push_back({std::move(from), places_[i]});
  }
  // A piece belongs to the unit of all bytes in which it begins. Each thread
  // goes through all pieces, and copies those of the units that it drew.
  std::atomic<int64_t> next_unit = 0;
  const int64_t count =
      std::min<int64_t>(threads, std::max<int64_t>(1, bytes / kMinThreadBytes));
  ParallelRun run({.threads = static_cast<int>(count),
                   .name = "sherd-snapshot",
                   .progress = [progress] { return progress(); }});
  return run.Run(count, [&](int64_t) -> absl::Status {
    int64_t unit = next_unit++;
    int64_t position = 0;
    const auto visit = [&](const HostCopy& copy, std::byte* to,
                           const BoxPiece& piece) -> absl::Status {
      while (unit < position / kUnitBytes) unit = next_unit++;
      const bool is_drawn = unit == position / kUnitBytes;
      position += piece.bytes;
      if (!is_drawn) return absl::OkStatus();
      CopyPiece(to, piece, copy.from.element_size(),
                static_cast<size_t>(bytes));
      return run.MadeProgress();
    };
    for (const HostCopy& copy : copies) {
      SHERD_RETURN_IF_ERROR(
          ForEachUnit(copy, [&](std::byte* to, const BoxPiece& piece) {
            return visit(copy, to, piece);
          }));
    }
    return absl::OkStatus();
  });
}

namespace {

// Copies of shards on one device that share an event.
class DeviceBatch {
 public:
  DeviceBatch(DeviceRuntime& runtime, const DeviceStream& stream, size_t begin)
      : runtime_(runtime), stream_(stream), begin_(begin) {}

  const Device& device() const { return stream_.device; }
  int64_t bytes() const { return bytes_; }
  // The first shard.
  size_t begin() const { return begin_; }

  absl::Status Add(Tensor from, std::byte* to) {
    bytes_ += from.nbytes();
    if (from.is_contiguous() && from.nbytes() >= kLongBytes) {
      SHERD_RETURN_IF_ERROR(runtime_.CopyBytes(
          stream_, to, from.data(), static_cast<size_t>(from.nbytes())));
      from.storage()->UsedOn(stream_);
      return absl::OkStatus();
    }
    strides_.push_back(ContiguousStrides(from.sizes()));
    short_.push_back({std::move(from), to});
    return absl::OkStatus();
  }

  // Launches what is left, and records the end of all.
  absl::StatusOr<std::shared_ptr<const internal::QueuedCopies>> Finish() {
    std::vector<DeviceCopy> copies;
    for (size_t i = 0; i < short_.size(); ++i) {
      const Tensor& from = short_[i].from;
      copies.push_back({.dst = short_[i].to,
                        .dst_strides = strides_[i],
                        .src = from.data(),
                        .src_strides = from.strides(),
                        .sizes = from.sizes(),
                        .element_size = from.element_size()});
    }
    if (!copies.empty()) {
      SHERD_RETURN_IF_ERROR(runtime_.Copy(stream_, copies));
    }
    for (const HostCopy& copy : short_) copy.from.storage()->UsedOn(stream_);
    const int number = stream_.device.index;
    SHERD_ASSIGN_OR_RETURN(const DeviceEvent event, runtime_.TakeEvent(number));
    auto queued =
        std::make_shared<internal::QueuedCopies>(runtime_, number, event);
    SHERD_RETURN_IF_ERROR(runtime_.RecordEvent(event, stream_));
    return queued;
  }

 private:
  DeviceRuntime& runtime_;
  const DeviceStream stream_;
  const size_t begin_;
  int64_t bytes_ = 0;
  std::vector<HostCopy> short_;
  std::vector<Dims> strides_;
};

}  // namespace

absl::Status SaveSnapshot::QueueCopies(const Wave& wave, CopyStreams& streams) {
  std::optional<DeviceBatch> batch;
  const auto finish = [&]() -> absl::Status {
    SHERD_ASSIGN_OR_RETURN(auto queued, batch->Finish());
    copies_.push_back(std::move(queued));
    copies_begin_.push_back(batch->begin());
    batch.reset();
    return absl::OkStatus();
  };
  for (size_t i = wave.begin; i < wave.end && !devices_.empty(); ++i) {
    const PlannedShard& shard = plan_->shards[i];
    const Device device = DeviceOf(shard);
    if (places_[i] == nullptr || device.is_cpu()) continue;
    if (batch.has_value() &&
        (batch->device() != device || batch->bytes() >= kBatchBytes)) {
      SHERD_RETURN_IF_ERROR(finish());
    }
    if (!batch.has_value()) {
      SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                             DeviceRuntime::For(device.type));
      SHERD_ASSIGN_OR_RETURN(const DeviceStream stream, streams.Of(device));
      batch.emplace(*runtime, stream, i);
    }
    SHERD_ASSIGN_OR_RETURN(Tensor from, PartOf(shard));
    const absl::Status added = batch->Add(std::move(from), places_[i]);
    if (!added.ok()) return Annotate(added, Label(shard));
  }
  return batch.has_value() ? finish() : absl::OkStatus();
}

absl::StatusOr<Tensor> SaveSnapshot::Elements(size_t shard) {
  const PlannedShard& planned = plan_->shards[shard];
  if (places_[shard] == nullptr) return PartOf(planned);
  for (; awaited_ < copies_.size() && copies_begin_[awaited_] <= shard;
       ++awaited_) {
    SHERD_RETURN_IF_ERROR(copies_[awaited_]->Await());
  }
  return Tensor::FromBorrowed(places_[shard], planned.box.sizes,
                              TensorOf(planned).dtype());
}

void SaveSnapshot::ReleaseBefore(size_t shard, StagingRing& ring) {
  for (; released_ < std::min(shard, placed_); ++released_) {
    if (places_[released_] != nullptr) ring.FreeOldest();
  }
}

void SaveSnapshot::ReleaseAll(StagingRing& ring) {
  ReleaseBefore(places_.size(), ring);
}

size_t SaveSnapshot::NumberOf(const PlannedShard& shard) const {
  const auto it =
      std::lower_bound(plan_->shards.begin(), plan_->shards.end(), shard,
                       [](const PlannedShard& a, const PlannedShard& b) {
                         return a.data_offset < b.data_offset;
                       });
  return static_cast<size_t>(it - plan_->shards.begin());
}

void SaveSnapshot::MaybeDropTensors() {
  if (has_dropped_ || !complete() || !copies_.empty()) return;
  has_dropped_ = true;
  for (ShardedTensor* tensor : by_index_) *tensor = WithoutElements(*tensor);
}

absl::StatusOr<Tensor> SaveSnapshot::PartOf(const PlannedShard& shard) const {
  return LocalPart(TensorOf(shard), shard.held, shard.box);
}

int64_t SaveSnapshot::BytesOf(const PlannedShard& shard) const {
  return Volume(shard.box) *
         static_cast<int64_t>(SizeOf(TensorOf(shard).dtype()));
}

Device SaveSnapshot::DeviceOf(const PlannedShard& shard) const {
  return LocalShard(TensorOf(shard), shard.held).device();
}

std::string SaveSnapshot::Label(const PlannedShard& shard) const {
  auto it = tensors_->begin();
  std::advance(it, shard.tensor);
  return absl::StrCat("tensor ", Quoted(it->first));
}

}  // namespace sherd
