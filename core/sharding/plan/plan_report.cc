#include "sherd/core/sharding/plan/plan_report.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/box/box_overlap.h"
#include "sherd/core/sharding/box/box_set.h"
#include "sherd/core/sharding/box/distinct_boxes.h"
#include "sherd/core/sharding/plan/message_rounds.h"
#include "sherd/core/sharding/plan/replica_choice.h"
#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/tensor/box.h"

namespace sherd {
namespace {

using internal::BoxSet;
using internal::DistinctBoxes;
using internal::FormatPlacedBox;
using internal::ReplicaChoice;

// Copies and rounds up to which every message is cut as the ranks would.
constexpr int64_t kMaxCut = int64_t{1} << 20;
// Pairs of ranks whose bytes are added up at once.
constexpr size_t kMaxPairs = size_t{1} << 24;
constexpr int kMaxWorldSize = 1 << 20;

int64_t RoundedUp(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// Whether the pieces of a message lie one after the other in a shard of `box`
// that is contiguous itself.
bool IsRun(const std::vector<internal::BoxPiece>& pieces,
           int internal::BoxPiece::*shard, absl::Span<const PlacedBox> boxes,
           int64_t element_size) {
  const PlacedBox& box = boxes[pieces[0].*shard];
  const Dims strides = ContiguousStrides(box.sizes);
  std::optional<int64_t> end;
  for (const internal::BoxPiece& piece : pieces) {
    if (piece.*shard != pieces[0].*shard) return false;
    const int64_t begin = ElementOffset(piece.offsets, box.offsets, strides);
    if (end && begin != *end) return false;
    if (!IsContiguous(piece.sizes, strides)) return false;
    end = begin + piece.bytes / element_size;
  }
  return true;
}

class Simulation {
 public:
  Simulation(absl::Span<const PlacedBox> from, absl::Span<const PlacedBox> to,
             const PlanReportOptions& options)
      : from_(from),
        to_(to),
        options_(options),
        element_(static_cast<int64_t>(options.element_size)),
        choice_(from, to, options.host_of_rank) {}

  absl::StatusOr<PlanReport> Run();

 private:
  // The data that two ranks exchange, unless it is too much to be kept.
  struct Read {
    int src_rank;
    int dst_rank;
    int dst_shard;
    int src_shard;
  };

  absl::Status Prepare();
  void MakeHeatMap();
  absl::Status FindSources(const BoxSet& all);
  absl::Status CountResults();
  void CountLowerBounds();
  absl::Status Exchange();
  absl::Status ExchangeTo(int first_rank, int last_rank);
  void AddRead(size_t source, int target, int64_t bytes, int first_rank);
  void AddPairs(int first_rank, int last_rank);
  void CutMessages();
  void CutPair(absl::Span<const Read> reads);
  void Finish();

  BoxSet BoxesOf(absl::Span<const PlacedBox> boxes,
                 const std::vector<int>& by_rank, int first_rank,
                 int last_rank) const;

  const absl::Span<const PlacedBox> from_;
  const absl::Span<const PlacedBox> to_;
  const PlanReportOptions options_;
  const int64_t element_;
  int dims_ = 0;
  int world_ = 0;
  // 0 for direct moves.
  int64_t message_bytes_ = 0;
  DistinctBoxes sources_ = {.boxes = BoxSet(0)};
  std::vector<int> choice_of_source_;
  ReplicaChoice choice_;
  // Positions in the lists, by rank.
  std::vector<int> from_by_rank_;
  std::vector<int> to_by_rank_;
  std::vector<bool> taken_in_place_;
  std::vector<size_t> heat_index_;
  // From each rank to those of one batch, a row for each of these, all 0
  // between batches; and which entries of a row are not.
  std::vector<int64_t> pair_bytes_;
  std::vector<std::vector<int>> senders_;
  std::vector<Read> reads_;
  PlanReport report_;
};

std::vector<int> ByRank(absl::Span<const PlacedBox> boxes) {
  std::vector<int> order(boxes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return boxes[a].rank < boxes[b].rank; });
  return order;
}

absl::StatusOr<PlanReport> Simulation::Run() {
  SHERD_RETURN_IF_ERROR(Prepare());
  MakeHeatMap();
  SHERD_RETURN_IF_ERROR(CountResults());
  SHERD_RETURN_IF_ERROR(FindSources(internal::ToBoxSet(from_, dims_)));
  CountLowerBounds();
  SHERD_RETURN_IF_ERROR(Exchange());
  if (report_.exact_rounds) CutMessages();
  Finish();
  return std::move(report_);
}

absl::Status Simulation::Prepare() {
  SHERD_ASSIGN_OR_RETURN(
      dims_, internal::CheckBoxes(from_, to_, options_.host_of_rank));
  const int named = internal::LastRank(from_, to_) + 1;
  world_ = options_.world_size == 0 ? named : options_.world_size;
  if (world_ < named || world_ > kMaxWorldSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("world_size is ", world_, ", expected ", named,
                     " at least, the ranks that hold boxes, and ",
                     kMaxWorldSize, " at most"));
  }
  if (options_.element_size == 0 || options_.element_size > 16) {
    return absl::InvalidArgumentError(
        absl::StrCat("element_size is ", options_.element_size,
                     ", expected the size of a dtype, 1 to 16"));
  }
  if (options_.max_heat_map < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_heat_map is ", options_.max_heat_map, ", expected 1 at least"));
  }
  if (!options_.host_of_rank.empty() &&
      options_.host_of_rank.size() < static_cast<size_t>(world_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("hosts are given of ", options_.host_of_rank.size(),
                     " ranks, expected ", world_));
  }
  if (!options_.direct) {
    SHERD_ASSIGN_OR_RETURN(
        message_bytes_,
        internal::MaxMessageBytes(options_.max_staging_bytes,
                                  internal::MaxPeers(from_, to_, dims_),
                                  options_.element_size));
  }
  report_.element_size = options_.element_size;
  report_.max_staging_bytes = options_.max_staging_bytes;
  report_.direct = options_.direct;
  report_.ranks.resize(static_cast<size_t>(world_));
  from_by_rank_ = ByRank(from_);
  to_by_rank_ = ByRank(to_);
  taken_in_place_.resize(from_.size());
  return absl::OkStatus();
}

void Simulation::MakeHeatMap() {
  const int64_t n = std::min(world_, options_.max_heat_map);
  for (int64_t i = 0; i < n; ++i) {
    const int first = static_cast<int>(i * world_ / n);
    const int last = static_cast<int>((i + 1) * world_ / n - 1);
    report_.heat_ranges.push_back({first, last});
    for (int rank = first; rank <= last; ++rank) {
      heat_index_.push_back(static_cast<size_t>(i));
    }
  }
  report_.heat_map.resize(static_cast<size_t>(n * n));
}

BoxSet Simulation::BoxesOf(absl::Span<const PlacedBox> boxes,
                           const std::vector<int>& by_rank, int first_rank,
                           int last_rank) const {
  BoxSet set(dims_);
  const auto begin =
      std::partition_point(by_rank.begin(), by_rank.end(),
                           [&](int i) { return boxes[i].rank < first_rank; });
  for (auto i = begin; i != by_rank.end() && boxes[*i].rank <= last_rank; ++i) {
    set.Add(boxes[*i], *i);
  }
  return set;
}

// Everything that is counted later is part of these results.
absl::Status Simulation::CountResults() {
  const BoxSet all = internal::ToBoxSet(to_, dims_);
  absl::uint128 total = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    total += static_cast<uint64_t>(Volume(all[i]));
  }
  if (total * static_cast<uint64_t>(element_) > absl::uint128(INT64_MAX)) {
    return absl::InvalidArgumentError(
        "the destination boxes of all ranks hold more bytes than fit in 64 "
        "bits");
  }
  for (size_t i = 0; i < all.size(); ++i) {
    report_.ranks[to_[all.id(i)].rank].result_bytes +=
        Volume(all[i]) * element_;
  }
  report_.to_shards = static_cast<int64_t>(all.size());
  return absl::OkStatus();
}

absl::Status Simulation::FindSources(const BoxSet& all) {
  report_.from_shards = static_cast<int64_t>(all.size());
  sources_ = internal::FindDistinct(all, [](size_t) { return true; });
  if (const auto& overlap = sources_.overlap) {
    return absl::InvalidArgumentError(absl::StrCat(
        "source ", FormatPlacedBox(from_[sources_.boxes.id(overlap->first)]),
        " and ", FormatPlacedBox(from_[sources_.boxes.id(overlap->second)]),
        " overlap without being equal"));
  }
  for (const auto& holders : sources_.holders) {
    choice_of_source_.push_back(choice_.Add(holders));
  }
  choice_.Prepare();
  return absl::OkStatus();
}

// From the boxes of each rank alone, whatever is chosen.
void Simulation::CountLowerBounds() {
  for (int rank = 0; rank < world_; ++rank) {
    const BoxSet wanted = BoxesOf(to_, to_by_rank_, rank, rank);
    RankReport& report = report_.ranks[rank];
    report.lower_bound_bytes = report.result_bytes;
    if (wanted.size() == 0) continue;
    const BoxSet all = BoxesOf(from_, from_by_rank_, rank, rank);
    const BoxSet held =
        internal::FindDistinct(all, [](size_t) { return true; }).boxes;
    internal::ForEachOverlap(wanted, held, [&](size_t i, size_t j) {
      report.lower_bound_bytes -= CommonVolume(wanted[i], held[j]) * element_;
      return true;
    });
  }
}

absl::Status Simulation::Exchange() {
  const int batch = static_cast<int>(
      std::max<size_t>(1, kMaxPairs / static_cast<size_t>(world_)));
  for (int first = 0; first < world_; first += batch) {
    SHERD_RETURN_IF_ERROR(
        ExchangeTo(first, std::min(first + batch, world_) - 1));
  }
  return absl::OkStatus();
}

absl::Status Simulation::ExchangeTo(int first_rank, int last_rank) {
  const BoxSet targets = BoxesOf(to_, to_by_rank_, first_rank, last_rank);
  const int ranks = last_rank - first_rank + 1;
  const auto rows = static_cast<size_t>(ranks);
  pair_bytes_.resize(rows * static_cast<size_t>(world_));
  senders_.resize(rows);
  std::vector<int64_t> missing(targets.size());
  for (size_t i = 0; i < missing.size(); ++i) {
    missing[i] = Volume(targets[i]);
  }
  internal::ForEachOverlap(
      targets, sources_.boxes, [&](size_t i, size_t source) {
        const int64_t elements =
            CommonVolume(targets[i], sources_.boxes[source]);
        missing[i] -= elements;
        AddRead(source, targets.id(i), elements * element_, first_rank);
        return true;
      });
  for (size_t i = 0; i < missing.size(); ++i) {
    if (missing[i] == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the source boxes do not hold all elements of the ",
                     FormatPlacedBox(to_[targets.id(i)])));
  }
  AddPairs(first_rank, last_rank);
  return absl::OkStatus();
}

void Simulation::AddRead(size_t source, int target, int64_t bytes,
                         int first_rank) {
  const int src_shard = choice_.Choose(choice_of_source_[source], target);
  const int src = from_[src_shard].rank;
  const int dst = to_[target].rank;
  if (src != dst) {
    const size_t row = static_cast<size_t>(dst - first_rank);
    int64_t& of_pair = pair_bytes_[row * world_ + src];
    if (of_pair == 0) senders_[row].push_back(src);
    of_pair += bytes;
    if (!report_.exact_rounds || options_.direct) return;
    reads_.push_back({src, dst, target, src_shard});
    if (static_cast<int64_t>(reads_.size()) <= kMaxCut) return;
    report_.exact_rounds = false;
    reads_ = {};
    return;
  }
  report_.ranks[dst].bytes_local += bytes;
  if (BoxView(from_[src_shard]) == BoxView(to_[target]) &&
      !taken_in_place_[src_shard]) {
    taken_in_place_[src_shard] = true;
    report_.ranks[dst].bytes_in_place += bytes;
  }
}

// Adds up what the ranks of one batch receive. Rounds and staging are what
// messages need that are full but for the last one, and packed.
void Simulation::AddPairs(int first_rank, int last_rank) {
  for (int dst = first_rank; dst <= last_rank; ++dst) {
    const size_t row = static_cast<size_t>(dst - first_rank);
    for (const int src : std::exchange(senders_[row], {})) {
      const int64_t bytes = std::exchange(pair_bytes_[row * world_ + src], 0);
      RankReport& from = report_.ranks[src];
      RankReport& to = report_.ranks[dst];
      from.bytes_sent += bytes;
      to.bytes_received += bytes;
      ++from.sends;
      ++to.receives;
      ++report_.pairs;
      report_.heat_map[heat_index_[src] * report_.heat_ranges.size() +
                       heat_index_[dst]] += bytes;
      if (!options_.host_of_rank.empty() &&
          options_.host_of_rank[src] != options_.host_of_rank[dst]) {
        report_.bytes_between_hosts += bytes;
      }
      if (options_.direct) continue;
      const int64_t rounds = RoundedUp(bytes, message_bytes_);
      report_.messages += rounds;
      for (RankReport* rank : {&from, &to}) {
        rank->rounds = std::max(rank->rounds, rounds);
        rank->staging_bytes +=
            internal::kRoundsInFlight * std::min(bytes, message_bytes_);
      }
    }
  }
}

// Replaces what AddPairs estimated by cutting messages as the ranks do, unless
// they are too many.
void Simulation::CutMessages() {
  if (options_.direct || reads_.empty()) return;
  if (report_.messages > kMaxCut) {
    report_.exact_rounds = false;
    return;
  }
  std::sort(reads_.begin(), reads_.end(), [](const Read& a, const Read& b) {
    return std::tie(a.src_rank, a.dst_rank, a.dst_shard, a.src_shard) <
           std::tie(b.src_rank, b.dst_rank, b.dst_shard, b.src_shard);
  });
  report_.messages = 0;
  for (RankReport& rank : report_.ranks) rank.rounds = rank.staging_bytes = 0;
  for (size_t begin = 0, end = 0; begin < reads_.size(); begin = end) {
    while (end < reads_.size() &&
           reads_[end].src_rank == reads_[begin].src_rank &&
           reads_[end].dst_rank == reads_[begin].dst_rank) {
      ++end;
    }
    CutPair(absl::MakeConstSpan(reads_).subspan(begin, end - begin));
  }
}

void Simulation::CutPair(absl::Span<const Read> reads) {
  std::vector<BoxCopy> copies;
  copies.reserve(reads.size());
  for (const Read& read : reads) {
    copies.push_back(
        internal::CopyBetween(from_, read.src_shard, to_, read.dst_shard));
  }
  int64_t sent = 0, received = 0, rounds = 0;
  for (const internal::MessageRound& round :
       internal::CutIntoRounds(copies, options_.element_size, message_bytes_)) {
    ++rounds;
    if (!IsRun(round.pieces, &internal::BoxPiece::src_shard, from_, element_)) {
      sent = std::max(sent, round.bytes);
    }
    if (!IsRun(round.pieces, &internal::BoxPiece::dst_shard, to_, element_)) {
      received = std::max(received, round.bytes);
    }
  }
  report_.messages += rounds;
  RankReport& from = report_.ranks[reads[0].src_rank];
  RankReport& to = report_.ranks[reads[0].dst_rank];
  from.rounds = std::max(from.rounds, rounds);
  to.rounds = std::max(to.rounds, rounds);
  from.staging_bytes += internal::kRoundsInFlight * sent;
  to.staging_bytes += internal::kRoundsInFlight * received;
}

void Simulation::Finish() {
  for (const RankReport& rank : report_.ranks) {
    report_.rounds = std::max(report_.rounds, rank.rounds);
  }
}

int64_t Sum(const std::vector<RankReport>& ranks, int64_t RankReport::*member) {
  int64_t sum = 0;
  for (const RankReport& rank : ranks) sum += rank.*member;
  return sum;
}

}  // namespace

int64_t PlanReport::bytes_moved() const {
  return Sum(ranks, &RankReport::bytes_received);
}

int64_t PlanReport::bytes_local() const {
  return Sum(ranks, &RankReport::bytes_local);
}

int64_t PlanReport::bytes_in_place() const {
  return Sum(ranks, &RankReport::bytes_in_place);
}

int64_t PlanReport::lower_bound_bytes() const {
  return Sum(ranks, &RankReport::lower_bound_bytes);
}

int64_t PlanReport::peak_extra_bytes() const {
  int64_t peak = 0;
  for (const RankReport& rank : ranks) {
    peak = std::max(peak, rank.peak_extra_bytes());
  }
  return peak;
}

double PlanReport::ratio() const {
  const int64_t bound = lower_bound_bytes();
  if (bound == 0) return 1;
  return static_cast<double>(bytes_moved()) / static_cast<double>(bound);
}

absl::StatusOr<PlanReport> ExplainPlan(absl::Span<const PlacedBox> from,
                                       absl::Span<const PlacedBox> to,
                                       const PlanReportOptions& options) {
  return Simulation(from, to, options).Run();
}

}  // namespace sherd
