#include "sherd/core/sharding/transfer/direct_move.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"

namespace sherd::internal {
namespace {

static_assert(std::is_trivially_copyable_v<DirectOffer>);

// A shard in a list of words:
//   - shard | dims << 32 | 1 << 62 if a handle follows | 1 << 63 for a
//     destination
//   - the handle of the memory that others read or write, unless it is that of
//     the shard before
//   - where element 0 of the global tensor would be, in bytes from there
//   - strides
constexpr uint64_t kHandleBit = uint64_t{1} << 62;
constexpr uint64_t kDestinationBit = uint64_t{1} << 63;
constexpr size_t kHandleWords =
    std::tuple_size_v<decltype(MemoryHandle::words)>;
// Shards of one storage that lie no further apart have one handle: pages
// between them are mapped for nothing.
constexpr std::ptrdiff_t kMaxGap = 64 << 10;
// With more destinations a rank does not offer to be written to if it can be
// read from: a gather, which is better written, has few.
constexpr size_t kFewDestinations = 64;
// Limit for all ranks together; more is a defect.
constexpr uint64_t kMaxWords = uint64_t{1} << 27;

// The part of a shard that takes part in copies between ranks.
struct Window {
  Dims begin;
  Dims end;
};

void Extend(Window& window, const BoxCopy& copy) {
  if (window.begin.empty() && window.end.empty()) {
    window.begin = copy.offsets;
    window.end = copy.offsets;
  }
  for (size_t d = 0; d < copy.offsets.size(); ++d) {
    window.begin[d] = std::min(window.begin[d], copy.offsets[d]);
    window.end[d] = std::max(window.end[d], copy.offsets[d] + copy.sizes[d]);
  }
}

// The windows of all shards of one side, by shard.
absl::flat_hash_map<int, Window> WindowsOf(absl::Span<const PeerCopies> peers,
                                           int BoxCopy::*shard_of) {
  absl::flat_hash_map<int, Window> windows;
  for (const PeerCopies& peer : peers) {
    for (const BoxCopy& copy : peer.copies) {
      Extend(windows[copy.*shard_of], copy);
    }
  }
  return windows;
}

// The bytes of a shard that take part in copies between ranks.
template <typename Pointer>
struct ShardExtent {
  const BasicShardMemory<Pointer>* shard = nullptr;
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  // From `begin` to element 0 of the global tensor.
  int64_t origin = 0;
};

template <typename Pointer>
ShardExtent<Pointer> ExtentOf(const BasicShardMemory<Pointer>& shard,
                              const Window& window, size_t element_size) {
  const int64_t bytes = static_cast<int64_t>(element_size);
  ShardExtent<Pointer> result;
  result.shard = &shard;
  result.begin = AddressIn(shard, window.begin, element_size);
  int64_t length = bytes;
  for (size_t d = 0; d < window.begin.size(); ++d) {
    const int64_t stride = shard.strides[d] * bytes;
    const int64_t extent = (window.end[d] - 1 - window.begin[d]) * stride;
    length += std::abs(extent);
    result.begin += std::min<int64_t>(extent, 0);
    // From the lowest address to the first element, and on to element 0.
    result.origin -= std::min<int64_t>(extent, 0) + window.begin[d] * stride;
  }
  result.end = result.begin + length;
  return result;
}

// The end of the shards from `first` on that have one handle; `end` becomes
// that of their memory.
template <typename Pointer>
size_t EndOfGroup(const std::vector<ShardExtent<Pointer>>& extents,
                  size_t first, const std::byte*& end) {
  const Storage* const storage = extents[first].shard->storage;
  end = extents[first].end;
  size_t next = first + 1;
  for (; storage != nullptr && next < extents.size() &&
         extents[next].shard->storage == storage &&
         extents[next].begin - end <= kMaxGap;
       ++next) {
    end = std::max(end, extents[next].end);
  }
  return next;
}

// Appends the words of all shards of one side; false, and appends nothing, if
// peers cannot reach one of them.
template <typename Pointer>
bool DescribeSide(const absl::flat_hash_map<int, Window>& windows,
                  const ShardTable<Pointer>& shards, size_t element_size,
                  uint64_t kind, PeerMemory& memory,
                  std::vector<uint64_t>& words) {
  std::vector<ShardExtent<Pointer>> extents;
  extents.reserve(windows.size());
  for (const auto& [index, window] : windows) {
    const auto shard = shards.Find(index, window.begin.size());
    SHERD_CHECK(shard.ok());
    extents.push_back(ExtentOf(**shard, window, element_size));
  }
  std::sort(extents.begin(), extents.end(), [](const auto& a, const auto& b) {
    return std::tie(a.shard->storage, a.begin, a.shard->shard) <
           std::tie(b.shard->storage, b.begin, b.shard->shard);
  });
  const size_t before = words.size();
  for (size_t i = 0; i < extents.size();) {
    const std::byte* const begin = extents[i].begin;
    const std::byte* end = nullptr;
    const size_t last = EndOfGroup(extents, i, end);
    const std::optional<MemoryHandle> handle =
        memory.Export(begin, static_cast<size_t>(end - begin));
    if (!handle) {
      words.resize(before);
      return false;
    }
    for (uint64_t bit = kHandleBit; i < last; ++i, bit = 0) {
      const BasicShardMemory<Pointer>& shard = *extents[i].shard;
      words.push_back(static_cast<uint64_t>(shard.shard) |
                      static_cast<uint64_t>(shard.strides.size()) << 32 | bit |
                      kind);
      if (bit != 0) {
        words.insert(words.end(), handle->words.begin(), handle->words.end());
      }
      words.push_back(static_cast<uint64_t>(extents[i].origin +
                                            (extents[i].begin - begin)));
      words.insert(words.end(), shard.strides.begin(), shard.strides.end());
    }
  }
  return true;
}

absl::Status Malformed(int rank) {
  return WithRank(absl::InternalError(absl::StrCat(
                      "rank ", rank, " sent a malformed list of handles")),
                  rank);
}

absl::Status Pass(FaultPoint point, const ProcessGroup& group,
                  absl::string_view subject) {
  if (!FaultPointsAreArmed()) return absl::OkStatus();
  return MaybeInjectFault({.point = point,
                           .rank = group.world_ranks()[group.rank()],
                           .subject = subject});
}

}  // namespace

void DirectMove::Describe(PeerMemory* memory, DirectOffer& offer) {
  if (memory == nullptr) {
    if (!plan_.sends().empty() || !plan_.receives().empty()) return;
    offer.abilities |=
        DirectOffer::kSourcesReachable | DirectOffer::kDestinationsReachable;
    return;
  }
  words_.clear();
  if (DescribeSide(WindowsOf(plan_.sends(), &BoxCopy::src_shard), sources_,
                   element_size_, 0, *memory, words_)) {
    offer.abilities |= DirectOffer::kSourcesReachable;
  }
  const auto windows = WindowsOf(plan_.receives(), &BoxCopy::dst_shard);
  const bool is_read_only = offer.can(DirectOffer::kSourcesReachable) &&
                            windows.size() > kFewDestinations;
  if (!is_read_only && DescribeSide(windows, destinations_, element_size_,
                                    kDestinationBit, *memory, words_)) {
    offer.abilities |= DirectOffer::kDestinationsReachable;
  }
  offer.words = words_.size();
  std::copy_n(words_.begin(), std::min(words_.size(), DirectOffer::kRoom),
              offer.room.begin());
}

absl::Status DirectMove::Complete(ProcessGroup& group,
                                  std::vector<DirectOffer> offers,
                                  const CollectiveOptions& options) {
  offers_ = std::move(offers);
  uint64_t total = 0;
  bool fits = true;
  for (const DirectOffer& offer : offers_) {
    total = CheckedAdd(total, offer.words).value_or(UINT64_MAX);
    fits = fits && offer.words <= DirectOffer::kRoom;
  }
  if (fits) return absl::OkStatus();
  if (total > kMaxWords) {
    return absl::InternalError(
        absl::StrCat("the ranks have handles of ", total, " words"));
  }
  long_words_.resize(offers_.size());
  std::vector<MutableBytes> recvs(offers_.size());
  for (size_t r = 0; r < offers_.size(); ++r) {
    if (offers_[r].words <= DirectOffer::kRoom) continue;
    std::vector<uint64_t>& words = long_words_[r];
    if (static_cast<int>(r) == group.rank()) {
      words = words_;
    } else {
      words.resize(offers_[r].words);
    }
    recvs[r] = MutableBytes(reinterpret_cast<std::byte*>(words.data()),
                            words.size() * sizeof(uint64_t));
  }
  return group.AllGatherV(recvs[static_cast<size_t>(group.rank())], recvs,
                          options);
}

absl::Span<const uint64_t> DirectMove::WordsOf(int peer) const {
  const size_t r = static_cast<size_t>(peer);
  const DirectOffer& offer = offers_[r];
  if (offer.words > DirectOffer::kRoom) return long_words_[r];
  return absl::MakeConstSpan(offer.room).first(offer.words);
}

std::byte* DirectMove::RemoteShard::Find(const BoxCopy& copy,
                                         size_t element_size) const {
  if (strides.size() != copy.sizes.size()) return nullptr;
  const auto element = static_cast<int64_t>(element_size);
  // Bytes from the beginning of `bytes`: of the first element, and of the
  // lowest and the highest one.
  std::optional<int64_t> first = origin;
  int64_t below = 0;
  int64_t above = element;
  for (size_t d = 0; d < strides.size(); ++d) {
    const auto stride = CheckedMul(strides[d], element);
    const auto offset = stride ? CheckedMul(*stride, copy.offsets[d]) : stride;
    const auto extent =
        stride ? CheckedMul(*stride, copy.sizes[d] - 1) : stride;
    if (!offset || !extent) return nullptr;
    first = CheckedAdd(*first, *offset);
    const auto sum = CheckedAdd(*extent < 0 ? below : above, *extent);
    if (!first || !sum) return nullptr;
    (*extent < 0 ? below : above) = *sum;
  }
  const auto lowest = CheckedAdd(*first, below);
  const auto end = CheckedAdd(*first, above);
  if (!lowest || !end || *lowest < 0 ||
      static_cast<uint64_t>(*end) > bytes.size()) {
    return nullptr;
  }
  return bytes.data() + *first;
}

absl::StatusOr<DirectMove::RemoteShards> DirectMove::Locate(
    ProcessGroup& group, PeerMemory& memory, TransferStrategy strategy,
    const PeerCopies& peer) const {
  const bool pulls = strategy == TransferStrategy::kPulled;
  const uint64_t side = pulls ? 0 : kDestinationBit;
  RemoteShards shards;
  for (const BoxCopy& copy : peer.copies) {
    shards.try_emplace(pulls ? copy.src_shard : copy.dst_shard);
  }
  absl::Span<const uint64_t> words = WordsOf(peer.peer);
  std::optional<MemoryHandle> handle;
  // That of the handle, once a shard needs it.
  std::optional<absl::Span<std::byte>> bytes;
  while (!words.empty()) {
    const uint64_t head = words[0];
    const size_t dims = head >> 32 & 0xff;
    const size_t handle_words = (head & kHandleBit) != 0 ? kHandleWords : 0;
    const size_t before_strides = 1 + handle_words + 1;
    if (words.size() < before_strides + dims) return Malformed(peer.peer);
    if (handle_words > 0) {
      handle.emplace();
      std::copy_n(words.begin() + 1, kHandleWords, handle->words.begin());
      bytes.reset();
    }
    if (!handle.has_value()) return Malformed(peer.peer);
    const auto shard = shards.find(static_cast<int>(head & 0xffffffff));
    if (shard != shards.end() && (head & kDestinationBit) == side) {
      if (!bytes.has_value()) {
        SHERD_RETURN_IF_ERROR(
            Pass(FaultPoint::kShardImport, group, Name(strategy)));
        SHERD_ASSIGN_OR_RETURN(bytes, memory.Import(peer.peer, *handle));
      }
      const absl::Span<const uint64_t> strides =
          words.subspan(before_strides, dims);
      shard->second = {
          .bytes = *bytes,
          .origin = static_cast<int64_t>(words[before_strides - 1]),
          .strides = Dims(strides.begin(), strides.end())};
    }
    words.remove_prefix(before_strides + dims);
  }
  return shards;
}

absl::Status DirectMove::CopyWith(const PeerCopies& peer,
                                  const RemoteShards& remote,
                                  TransferStrategy strategy,
                                  size_t whole_bytes) const {
  const bool pulls = strategy == TransferStrategy::kPulled;
  for (const BoxCopy& copy : peer.copies) {
    const RemoteShard& there =
        remote.at(pulls ? copy.src_shard : copy.dst_shard);
    std::byte* const far = there.Find(copy, element_size_);
    if (far == nullptr) return Malformed(peer.peer);
    if (pulls) {
      const auto to = destinations_.Find(copy.dst_shard, copy.sizes.size());
      SHERD_CHECK(to.ok());
      StridedCopy(AddressIn(**to, copy.offsets, element_size_), (*to)->strides,
                  far, there.strides, copy.sizes, element_size_, whole_bytes);
    } else {
      const auto from = sources_.Find(copy.src_shard, copy.sizes.size());
      SHERD_CHECK(from.ok());
      StridedCopy(far, there.strides,
                  AddressIn(**from, copy.offsets, element_size_),
                  (*from)->strides, copy.sizes, element_size_, whole_bytes);
    }
  }
  return absl::OkStatus();
}

absl::Status DirectMove::Copy(ProcessGroup& group, PeerMemory* memory,
                              TransferStrategy strategy, int64_t local_bytes) {
  SHERD_RETURN_IF_ERROR(
      Pass(FaultPoint::kBeforeShardCopy, group, Name(strategy)));
  const bool pulls = strategy == TransferStrategy::kPulled;
  const std::vector<PeerCopies>& peers =
      pulls ? plan_.receives() : plan_.sends();
  const size_t whole_bytes = static_cast<size_t>(
      local_bytes + (pulls ? plan_.bytes_received(element_size_)
                           : plan_.bytes_sent(element_size_)));
  // Peers ascend.
  const auto next = std::find_if(
      peers.begin(), peers.end(),
      [&](const PeerCopies& peer) { return peer.peer > group.rank(); });
  const size_t first = static_cast<size_t>(next - peers.begin());
  for (size_t i = 0; i < peers.size(); ++i) {
    const PeerCopies& peer = peers[(first + i) % peers.size()];
    SHERD_ASSIGN_OR_RETURN(const RemoteShards remote,
                           Locate(group, *memory, strategy, peer));
    SHERD_RETURN_IF_ERROR(CopyWith(peer, remote, strategy, whole_bytes));
  }
  return Pass(FaultPoint::kAfterShardCopy, group, Name(strategy));
}

}  // namespace sherd::internal
