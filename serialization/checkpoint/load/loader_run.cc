#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/parallel_run.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/transfer/reshard_executor.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/serialization/checkpoint/host_share.h"
#include "sherd/serialization/checkpoint/load/loaded_fingerprint.h"
#include "sherd/serialization/checkpoint/load/loader.h"
#include "sherd/serialization/checkpoint/sharded_layout.h"
#include "sherd/serialization/safetensors/crc32c.h"

namespace sherd {
namespace {

// Long enough that an exchange costs little beside reading. Ranks that share
// cores wait for one another in each, which costs more than to fetch from
// memory what is no longer in the cache.
constexpr int64_t kPartBytes = int64_t{16} << 20;
constexpr int64_t kMaxMessageStaging = int64_t{64} << 20;

// Of what a thread reads before it takes more.
constexpr int64_t kMinUnitBytes = int64_t{4} << 10;
constexpr int64_t kMaxUnitBytes = int64_t{16} << 20;

// Up to this many bytes of all ranks together, every rank checks all chunks
// that several ranks read parts of; above, each checks a share.
constexpr int64_t kMaxGatheredChunks = int64_t{256} << 10;

ConstBytes BytesOf(absl::Span<const PartialChunk> chunks) {
  return {reinterpret_cast<const std::byte*>(chunks.data()),
          chunks.size() * sizeof(PartialChunk)};
}
MutableBytes BytesOf(absl::Span<PartialChunk> chunks) {
  return {reinterpret_cast<std::byte*>(chunks.data()),
          chunks.size() * sizeof(PartialChunk)};
}

// The rank that checks a chunk, if each checks a share.
int CheckerOf(const PartialChunk& chunk, int ranks) {
  return static_cast<int>((chunk.tensor + chunk.shard + chunk.chunk) % ranks);
}

}  // namespace

// Of two rounds at once; the other half is for messages.
int64_t Loader::part_bytes() const {
  return std::min(kPartBytes, memory_ / 16 * 3);
}

// Of data, the same on all ranks.
int64_t Loader::NumMoves() const {
  int64_t moves = static_cast<int64_t>(copies_.size());
  for (const auto& [element_size, exchange] : exchanges_) {
    moves += exchange.rounds();
  }
  return moves;
}

void Loader::BeginStep(bool with_notes) {
  step_.emplace(group_, operation_,
                LongStepOptions{.timeout = options_.timeout,
                                .note_bytes = with_notes ? sizeof(Note) : 0});
}

absl::StatusOr<std::vector<Loader::Note>> Loader::EndStep(
    const absl::Status& status, const AgreedValue& value) {
  static_assert(std::is_trivially_copyable_v<Note>);
  const Note mine = {
      files_reader_.has_value() ? files_reader_->bytes_read() : 0,
      bytes_exchanged_, static_cast<int64_t>(partial_.size()), phases_};
  std::vector<Note> notes(static_cast<size_t>(group_.size()));
  SHERD_RETURN_IF_ERROR(step_->AgreeAndGather(
      status, value,
      ConstBytes(reinterpret_cast<const std::byte*>(&mine), sizeof(mine)),
      MutableBytes(reinterpret_cast<std::byte*>(notes.data()),
                   notes.size() * sizeof(Note))));
  step_.reset();
  return notes;
}

absl::Status Loader::Run() {
  BeginStep(/*with_notes=*/true);
  // First this, since it fills the fingerprint.
  const absl::Status prepared = Prepare();
  clock_.End(phases_.plan);
  const absl::Status read = ReadEarly(prepared);
  clock_.End(phases_.read);
  SHERD_ASSIGN_OR_RETURN(
      const std::vector<Note> notes,
      EndStep(read, {fingerprint_.value(), [this] { return DescribeCall(); }}));
  clock_.End(phases_.exchange);
  if (IsComplete()) return Finish(notes);
  if (!destinations_.are_new() && has_pieces_) {
    BeginStep(/*with_notes=*/NumMoves() == 0);
    failure_ = ReadPieces();
    clock_.End(phases_.read);
  }
  SHERD_RETURN_IF_ERROR(Move());
  if (failure_.ok()) failure_ = CloseLedger();
  SHERD_ASSIGN_OR_RETURN(const std::vector<Note> last_notes,
                         EndStep(failure_, {}));
  return Finish(last_notes);
}

absl::Status Loader::ReadEarly(const absl::Status& prepared) {
  SHERD_RETURN_IF_ERROR(prepared);
  if (destinations_.are_new()) SHERD_RETURN_IF_ERROR(ReadPieces());
  const auto first = std::find_if(
      exchanges_.begin(), exchanges_.end(),
      [](const auto& exchange) { return exchange.second.rounds() > 0; });
  if (first != exchanges_.end()) {
    SHERD_ASSIGN_OR_RETURN(first_round_,
                           ReadRound(first->second, 0, /*ahead=*/false));
  }
  return IsComplete() ? CloseLedger() : absl::OkStatus();
}

absl::Status Loader::CloseLedger() {
  SHERD_RETURN_IF_ERROR(ledger_->Finish());
  partial_ = ledger_->TakePartial();
  return absl::OkStatus();
}

ShardSource Loader::SourceOf(const Item& item, int32_t number, int64_t shard,
                             const Dims& sizes) const {
  return {number, shard, item.saved->dtype, sizes,
          item.saved->PlaceOf(shard, files_reader_->chunk_bytes()).extents};
}

// Called by any thread that reads.
absl::Status Loader::MadeProgress() {
  if (readers_ != nullptr) return readers_->MadeProgress();
  return step_.has_value() ? step_->MadeProgress() : absl::OkStatus();
}

ChunkLedger Loader::MakeLedger() {
  return ChunkLedger(*files_reader_,
                     [this](int32_t item) -> const ManifestTensor& {
                       return *items_[static_cast<size_t>(item)].saved;
                     });
}

// Each thread takes the next unit of what is to be read, so that all together
// read in the order of the files.
absl::Status Loader::ReadPieces() {
  int threads = MostThreads();
  std::vector<ReadUnit> units = {{0, reads_.size(), std::nullopt}};
  if (threads > 1) units = DivideReads(threads);
  ParallelRun run({.threads = threads,
                   .name = "sherd-read",
                   .progress = [this] { return step_->MadeProgress(); }});
  if (threads > 1) readers_ = &run;
  const absl::Cleanup end = [this] { readers_ = nullptr; };
  std::atomic<size_t> next = 0;
  absl::Mutex mutex;
  return run.Run(threads, [&](int64_t) -> absl::Status {
    ChunkLedger ledger = MakeLedger();
    PieceReader reader(*files_reader_, ledger);
    for (size_t i; (i = next++) < units.size();) {
      SHERD_RETURN_IF_ERROR(ReadBoxes(units[i], reader));
    }
    SHERD_RETURN_IF_ERROR(reader.Flush());
    SHERD_RETURN_IF_ERROR(ledger.Finish());
    absl::MutexLock lock(&mutex);
    return ledger_->Merge(ledger);
  });
}

int Loader::NumThreads() const {
  return options_.threads > 0 ? options_.threads
                              : std::min(ThreadsPerRank(group_), kMostThreads);
}

int Loader::MostThreads() const {
  // Each thread would take pinned memory.
  return has_device_shards_ ? 1 : NumThreads();
}

// Leaves `threads` as many as are worth their start.
std::vector<ReadUnit> Loader::DivideReads(int& threads) const {
  std::vector<BoxToRead> boxes;
  boxes.reserve(reads_.size());
  int64_t bytes = 0;
  Box saved;
  for (const ShardRead& read : reads_) {
    const Item& item = items_[static_cast<size_t>(read.tensor)];
    item.saved->layout.BoxAt(read.saved, saved);
    const WantedBox& wanted = item.boxes[static_cast<size_t>(read.wanted)];
    const std::optional<Box> box =
        Intersect(saved, wanted.In(item.tensor->placed_boxes()));
    boxes.push_back({box ? *box : Box{{0}, {0}},
                     static_cast<int64_t>(SizeOf(item.saved->dtype))});
    bytes += boxes.back().bytes();
  }
  if (options_.threads <= 0) {
    threads = static_cast<int>(
        std::clamp<int64_t>(bytes / kMinThreadBytes, 1, threads));
  }
  std::vector<ReadUnit> units = sherd::DivideReads(
      boxes, std::clamp(bytes / threads / 16, kMinUnitBytes, kMaxUnitBytes));
  // A thread without a unit would start for nothing.
  threads = static_cast<int>(
      std::clamp<int64_t>(static_cast<int64_t>(units.size()), 1, threads));
  return units;
}

absl::Status Loader::ReadBoxes(const ReadUnit& unit,
                               PieceReader& reader) const {
  Box saved;
  for (size_t i = unit.first; i < unit.last; ++i) {
    const ShardRead& read = reads_[i];
    const Item& item = items_[static_cast<size_t>(read.tensor)];
    const WantedBox& wanted = item.boxes[static_cast<size_t>(read.wanted)];
    if (read.elements > 0 && wanted.data != nullptr && !unit.part) {
      SHERD_RETURN_IF_ERROR(ReadWholeRun(read, item, wanted.data, reader));
      continue;
    }
    item.saved->layout.BoxAt(read.saved, saved);
    const std::optional<Box> box =
        unit.part ? unit.part
                  : Intersect(saved, wanted.In(item.tensor->placed_boxes()));
    if (!box) continue;
    SHERD_ASSIGN_OR_RETURN(const Tensor destination,
                           LocalPart(*item.tensor, wanted.shard, *box));
    SHERD_RETURN_IF_ERROR(
        reader.ReadBox(SourceOf(item, read.tensor, read.saved, saved.sizes),
                       OffsetsFrom(saved.offsets, *box), destination));
  }
  return absl::OkStatus();
}

// Reads what is one run in the shard and in a wanted box, which begins at
// `data`.
absl::Status Loader::ReadWholeRun(const ShardRead& read, const Item& item,
                                  std::byte* data, PieceReader& reader) const {
  const auto size = static_cast<int64_t>(SizeOf(item.dtype));
  return reader.ReadContiguous(
      SourceOf(item, read.tensor, read.saved, {}), read.from * size, item.dtype,
      absl::MakeSpan(data + read.to * size,
                     static_cast<size_t>(read.elements * size)));
}

// Fails only where all ranks do; otherwise what went wrong is in failure_.
absl::Status Loader::Move() {
  int64_t left = NumMoves();
  // One after another, so that only one has staging memory.
  while (!exchanges_.empty()) {
    auto& [element_size, exchange] = *exchanges_.begin();
    SHERD_RETURN_IF_ERROR(MoveRounds(exchange, element_size, left));
    exchanges_.erase(exchanges_.begin());
  }
  for (auto& [element_size, copies] : copies_) {
    absl::StatusOr<MoveList> moves = std::move(copies.moves);
    if (!failure_.ok()) moves = failure_;
    SHERD_RETURN_IF_ERROR(RunMove(std::move(moves), element_size, --left == 0));
  }
  return absl::OkStatus();
}

bool Loader::ReadsAhead() const {
  return options_.threads != 1 && (NumThreads() > 1 || is_cold_);
}

absl::Status Loader::MoveRounds(LoadExchange& exchange, size_t element_size,
                                int64_t& left) {
  if (exchange.rounds() == 0) return absl::OkStatus();
  absl::StatusOr<MoveList> moves = MoveList();
  if (!failure_.ok()) {
    moves = failure_;
  } else if (first_round_.has_value()) {
    moves = *std::exchange(first_round_, std::nullopt);
  } else {
    moves = ReadRound(exchange, 0, /*ahead=*/false);
  }
  for (int64_t round = 1; round < exchange.rounds(); ++round) {
    clock_.End(phases_.read);
    const bool ahead = moves.ok() && ReadsAhead();
    absl::StatusOr<MoveList> next;
    const auto read = [&](int64_t) {
      next = ReadRound(exchange, round, ahead);
      return next.status();
    };
    const absl::Cleanup end = [this] { readers_ = nullptr; };
    ParallelRun reader({.threads = ahead ? 2 : 1,
                        .name = "sherd-read",
                        .progress = [this] { return step_->MadeProgress(); }});
    readers_ = &reader;
    reader.Start(1, read);
    SHERD_RETURN_IF_ERROR(RunMove(std::move(moves), element_size, --left == 0));
    const absl::Status done = reader.Finish();
    moves = done.ok() ? std::move(next) : done;
  }
  clock_.End(phases_.read);
  return RunMove(std::move(moves), element_size, --left == 0);
}

SavedExtent Loader::FirstExtentOf(const ManifestTensor& saved,
                                  int64_t shard) const {
  const SavedExtents extents =
      saved.PlaceOf(shard, files_reader_->chunk_bytes()).extents;
  return extents.empty() ? SavedExtent() : extents[0];
}

// Reads in the order of the files, in which short parts are read together.
absl::StatusOr<MoveList> Loader::ReadRound(LoadExchange& exchange,
                                           int64_t round, bool ahead) {
  struct PartRead {
    int32_t file;
    int64_t data_offset;
    int64_t number;
    ExchangeStream::ShardPart part;
    absl::Span<std::byte> buffer;
  };
  std::vector<PartRead> reads;
  SHERD_ASSIGN_OR_RETURN(
      MoveList moves,
      exchange.PlanRound(
          round, ahead,
          [&](int64_t number, const ExchangeStream::ShardPart& part,
              absl::Span<std::byte> buffer) {
            const Item& item = items_[static_cast<size_t>(number)];
            const SavedExtent first = FirstExtentOf(*item.saved, part.shard);
            const auto saved_size =
                static_cast<int64_t>(SizeOf(item.saved->dtype));
            const auto size = static_cast<int64_t>(SizeOf(item.dtype));
            reads.push_back(
                {first.file,
                 first.data_offset + part.offset / size * saved_size, number,
                 part, buffer});
            return absl::OkStatus();
          }));
  const auto before = [](const PartRead& a, const PartRead& b) {
    return std::tie(a.file, a.data_offset) < std::tie(b.file, b.data_offset);
  };
  if (!std::is_sorted(reads.begin(), reads.end(), before)) {
    std::sort(reads.begin(), reads.end(), before);
  }
  const int64_t from_medium = MediumBytesRead();
  int64_t bytes = 0;
  for (const PartRead& read : reads) {
    const Item& item = items_[static_cast<size_t>(read.number)];
    bytes += static_cast<int64_t>(read.buffer.size());
    SHERD_RETURN_IF_ERROR(reader_->ReadContiguous(
        SourceOf(item, static_cast<int32_t>(read.number), read.part.shard, {}),
        read.part.offset, item.dtype, read.buffer));
  }
  SHERD_RETURN_IF_ERROR(reader_->Flush());
  is_cold_ = (MediumBytesRead() - from_medium) * 2 > bytes;
  return moves;
}

// Moves data between ranks, once all have read it.
absl::Status Loader::RunMove(absl::StatusOr<MoveList> moves,
                             size_t element_size, bool is_last) {
  if (step_.has_value()) {
    SHERD_RETURN_IF_ERROR(step_->Agree(moves.status()));
  }
  ReshardStats stats;
  const ReshardOptions options = {
      .max_staging_bytes = std::min(kMaxMessageStaging, memory_ / 8 * 3),
      .timeout = options_.timeout,
      .stats = &stats};
  SHERD_RETURN_IF_ERROR(RunReshard(
      group_, operation_,
      moves.ok()
          ? MakeExecutor(*std::move(moves), element_size, group_, options)
          : moves.status(),
      {}, options_.timeout));
  bytes_exchanged_ += stats.bytes_sent;
  ++num_exchanges_;
  clock_.End(phases_.exchange);
  BeginStep(is_last);
  return absl::OkStatus();
}

absl::Status Loader::Finish(absl::Span<const Note> notes) {
  SumUp(notes);
  clock_.End();
  SHERD_RETURN_IF_ERROR(CheckPartial(notes));
  if (options_.check_elements) SHERD_RETURN_IF_ERROR(CheckElements());
  clock_.End(stats_.check);
  return absl::OkStatus();
}

void Loader::SumUp(absl::Span<const Note> notes) {
  absl::Duration longest;
  for (const Note& note : notes) {
    stats_.file_bytes += note.bytes_read;
    stats_.exchanged_bytes += note.bytes_exchanged;
    const absl::Duration busy = note.phases.plan + note.phases.read;
    if (busy > longest) {
      longest = busy;
      stats_.slowest_rank = static_cast<int>(stats_.load_phases.size());
    }
    stats_.load_phases.push_back(note.phases);
  }
  stats_.exchanges = num_exchanges_;
}

// Checks the CRCs of what several ranks read.
absl::Status Loader::CheckPartial(absl::Span<const Note> notes) {
  int64_t total = 0;
  for (const Note& note : notes) total += note.partial_chunks;
  if (total == 0) return absl::OkStatus();
  const bool gather =
      total <= kMaxGatheredChunks / static_cast<int64_t>(sizeof(PartialChunk));
  SHERD_ASSIGN_OR_RETURN(std::vector<PartialChunk> all,
                         gather ? GatherPartial(notes) : TradePartial());
  const absl::Status status = ledger_->CheckTogether(std::move(all));
  // Where all ranks check the same numbers they know that all find them right;
  // but of damage each may say something else.
  if (gather && status.ok()) return status;
  return Agree(group_, operation_, status, {}, collective_);
}

absl::StatusOr<std::vector<PartialChunk>> Loader::GatherPartial(
    absl::Span<const Note> notes) {
  size_t total = 0;
  for (const Note& note : notes) total += note.partial_chunks;
  std::vector<PartialChunk> all(total);
  std::vector<MutableBytes> recvs;
  size_t first = 0;
  for (const Note& note : notes) {
    const auto count = static_cast<size_t>(note.partial_chunks);
    recvs.push_back(BytesOf(absl::MakeSpan(all).subspan(first, count)));
    first += count;
  }
  SHERD_RETURN_IF_ERROR(group_.AllGatherV(
      BytesOf(absl::MakeConstSpan(partial_)), recvs, collective_));
  return all;
}

absl::StatusOr<std::vector<PartialChunk>> Loader::TradePartial() {
  const int ranks = group_.size();
  std::stable_sort(partial_.begin(), partial_.end(),
                   [ranks](const PartialChunk& a, const PartialChunk& b) {
                     return CheckerOf(a, ranks) < CheckerOf(b, ranks);
                   });
  std::vector<int64_t> sent(static_cast<size_t>(ranks));
  std::vector<int64_t> received(sent.size());
  for (const PartialChunk& chunk : partial_) ++sent[CheckerOf(chunk, ranks)];
  SHERD_RETURN_IF_ERROR(group_.AllToAll<int64_t>(
      absl::MakeConstSpan(sent), absl::MakeSpan(received), collective_));
  int64_t total = 0;
  for (const int64_t count : received) total += count;
  std::vector<PartialChunk> all(static_cast<size_t>(total));
  std::vector<ConstBytes> sends;
  std::vector<MutableBytes> recvs;
  size_t from = 0;
  size_t to = 0;
  for (size_t r = 0; r < sent.size(); ++r) {
    const auto out = static_cast<size_t>(sent[r]);
    const auto in = static_cast<size_t>(received[r]);
    sends.push_back(BytesOf(absl::MakeConstSpan(partial_).subspan(from, out)));
    recvs.push_back(BytesOf(absl::MakeSpan(all).subspan(to, in)));
    from += out;
    to += in;
  }
  SHERD_RETURN_IF_ERROR(group_.AllToAllV(sends, recvs, collective_));
  return all;
}

// Compares what the destinations have with what was saved. After it all ranks
// have the same sums, and so the same result.
absl::Status Loader::CheckElements() {
  std::vector<uint32_t> sums(items_.size());
  std::vector<int64_t> load(static_cast<size_t>(group_.size()));
  absl::Status status;
  BeginStep(false);
  for (size_t i = 0; i < items_.size() && status.ok(); ++i) {
    const ShardedTensor& tensor = *items_[i].tensor;
    const absl::StatusOr<uint32_t> sum = LoadedFingerprint(
        tensor, LayoutOf(tensor).has_replicas, group_.rank(),
        absl::MakeSpan(load), [this] { return step_->MadeProgress(); });
    status = sum.status();
    if (sum.ok()) sums[i] = *sum;
  }
  SHERD_RETURN_IF_ERROR(step_->Agree(status));
  step_.reset();
  SHERD_RETURN_IF_ERROR(InOperation(
      operation_, group_.AllReduce<uint32_t>(absl::MakeSpan(sums),
                                             ReduceOp::kBxor, collective_)));
  for (size_t i = 0; i < items_.size(); ++i) {
    const ManifestTensor& saved = *items_[i].saved;
    if (!saved.fingerprint || items_[i].dtype != saved.dtype) continue;
    const uint32_t loaded =
        Crc32cFromLinear(sums[i], static_cast<uint64_t>(saved.bytes()));
    if (loaded == *saved.fingerprint) continue;
    return absl::DataLossError(absl::StrFormat(
        "tensor %s: what was read is sound, but the elements that were loaded "
        "have the fingerprint %08x, expected %08x, that of those that were "
        "saved; they were changed between file and destination: load again, "
        "and check the memory of the ranks if that does not help",
        Quoted(NameOf(items_[i])), loaded, *saved.fingerprint));
  }
  return absl::OkStatus();
}

}  // namespace sherd
