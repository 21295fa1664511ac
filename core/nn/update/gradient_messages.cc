#include "sherd/core/nn/update/gradient_messages.h"

#include <cstring>
#include <limits>

#include "sherd/core/nn/lookup/peer_counts.h"
#include "sherd/core/nn/lookup/pool_kernels.h"

namespace sherd::internal {
namespace {

constexpr absl::string_view kMalformed = "a malformed message of gradients";

bool HasFactors(const PlannedTable& table) {
  return table.bags.weighted() || table.options.mode == BagMode::kMean;
}

RequestFormat FormatOf(const PlannedTable& table) {
  return {.wide_ids = table.rows > std::numeric_limits<int32_t>::max(),
          .weight_bytes =
              HasFactors(table) ? SizeOf(AccumulatorOf(table.dtype)) : 0,
          .has_lengths = table.options.mode != BagMode::kNone};
}

// With kNone, BagView has none.
int64_t PaddingOf(const PlannedTable& table) {
  const int64_t padding = table.options.padding_idx.value_or(-1);
  if (!table.options.padding_idx || padding >= 0) return padding;
  return padding + table.rows;
}

// 1 / n for each id of a bag of n ids that are not padding.
template <typename Number>
void WriteMeans(const BagView& bags, int64_t padding, Number* factors) {
  int64_t i = 0;
  for (int64_t b = 0; b < bags.bags(); ++b) {
    const int64_t end = bags.begin(b + 1);
    int64_t count = 0;
    for (int64_t k = i; k < end; ++k) count += bags.ids()[k] == padding ? 0 : 1;
    const Number factor = Number{1} / static_cast<Number>(count);
    for (; i < end; ++i) factors[i] = factor;
  }
}

StreamShape StreamOf(const PlacedBox& box, int owner, size_t shard) {
  return {.owner = owner,
          .width = box.sizes[1],
          .strips = {{.column = box.offsets[1],
                      .width = box.sizes[1],
                      .bands = {{.begin = box.offsets[0],
                                 .end = box.offsets[0] + box.sizes[0],
                                 .shard = static_cast<int>(shard)}}}}};
}

}  // namespace

void GradientMessages::AddTable(const PlannedTable& table, size_t index,
                                bool whole) {
  std::vector<StreamShape> streams;
  if (whole && table.rows > 0 && table.columns > 0) {
    PlacedBox all;
    all.offsets = {0, 0};
    all.sizes = {table.rows, table.columns};
    // The only message, or that to this rank.
    streams.push_back(StreamOf(all, lengths_.size() == 1 ? 0 : rank_, 0));
    slots_.push_back({.table = index, .width = table.columns});
  }
  for (size_t b = 0; b < table.boxes.size() && !whole; ++b) {
    const PlacedBox& box = table.boxes[b];
    if (!HasElements(box)) continue;
    streams.push_back(StreamOf(box, box.rank, b));
    if (box.rank != rank_) continue;
    slots_.push_back({.table = index,
                      .box = static_cast<int64_t>(b),
                      .width = box.sizes[1]});
  }
  for (const StreamShape& stream : streams) {
    columns_.push_back(stream.strips[0].column);
  }
  router_.AddTable(streams);
}

void GradientMessages::Plan(absl::Span<const PlannedTable> tables, int rank,
                            int ranks, bool for_all) {
  rank_ = rank;
  lengths_.resize(for_all ? 1 : static_cast<size_t>(ranks));
  for (const bool shared : {true, false}) {
    for (size_t t = 0; t < tables.size(); ++t) {
      if (tables[t].shared != shared) continue;
      order_.push_back(t);
      AddTable(tables[t], t, for_all || !shared);
    }
  }
  sources_.assign(static_cast<size_t>(ranks),
                  std::vector<GradientSource>(slots_.size()));
}

const std::byte* GradientMessages::FactorsOf(const PlannedTable& table) {
  if (!HasFactors(table)) return nullptr;
  const BagView& bags = table.bags;
  const int64_t count = bags.ids().size();
  factors_.resize(static_cast<size_t>(count + 1) *
                  SizeOf(AccumulatorOf(table.dtype)));
  if (bags.weighted()) {
    bags.CopyWeights(0, count, factors_.data());
  } else if (table.dtype == kFloat64) {
    WriteMeans(bags, PaddingOf(table),
               reinterpret_cast<double*>(factors_.data()));
  } else {
    WriteMeans(bags, PaddingOf(table),
               reinterpret_cast<float*>(factors_.data()));
  }
  return factors_.data();
}

void GradientMessages::Collect(absl::Span<const PlannedTable> tables) {
  router_.Clear();
  for (size_t i = 0; i < order_.size(); ++i) {
    const PlannedTable& table = tables[order_[i]];
    router_.Route(i, table.bags, PaddingOf(table), FactorsOf(table),
                  SizeOf(AccumulatorOf(table.dtype)));
  }
  const auto format = [&](int i) {
    return FormatOf(tables[order_[static_cast<size_t>(i)]]);
  };
  const auto size = [&](const StreamRequest& request) {
    const PlannedTable& table =
        tables[order_[static_cast<size_t>(request.table)]];
    return PaddedPart(request.bags.size() * static_cast<size_t>(request.width) *
                      SizeOf(table.dtype));
  };
  const auto write = [](const StreamRequest&, std::byte*) {};
  router_.Measure(format, {size, write}, absl::MakeSpan(lengths_));
}

void GradientMessages::Write(absl::Span<const PlannedTable> tables,
                             absl::Span<const Tensor> gradients,
                             absl::Span<std::byte* const> to) {
  const auto format = [&](int i) {
    return FormatOf(tables[order_[static_cast<size_t>(i)]]);
  };
  const auto size = [&](const StreamRequest& request) {
    const size_t t = order_[static_cast<size_t>(request.table)];
    return PaddedPart(request.bags.size() * static_cast<size_t>(request.width) *
                      SizeOf(tables[t].dtype));
  };
  const auto write = [&](const StreamRequest& request, std::byte* rows) {
    const size_t t = order_[static_cast<size_t>(request.table)];
    const auto element = static_cast<int64_t>(SizeOf(tables[t].dtype));
    const auto index =
        static_cast<size_t>(&request - router_.requests().data());
    const auto* const gradient =
        static_cast<const std::byte*>(gradients[t].data());
    for (const int64_t bag : request.bags) {
      const int64_t at = bag * tables[t].columns + columns_[index];
      std::memcpy(rows, gradient + at * element,
                  static_cast<size_t>(request.width * element));
      rows += request.width * element;
    }
  };
  router_.Write(format, {size, write}, to);
}

absl::Status GradientMessages::Read(absl::Span<const PlannedTable> tables,
                                    int sender,
                                    absl::Span<const std::byte> message) {
  const bool empty = message.empty();
  std::vector<GradientSource>& sources = sources_[static_cast<size_t>(sender)];
  // Of a message for all, the tables of the sender alone come last.
  const bool has_more = lengths_.size() == 1 && sender != rank_;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const PlannedTable& table = tables[slots_[i].table];
    sources[i] = {};
    if (empty || (!table.shared && sender != rank_)) continue;
    if (!TakeRequest(FormatOf(table), message, sources[i].request)) {
      return Malformed(sender, kMalformed);
    }
    const size_t stride =
        static_cast<size_t>(slots_[i].width) * SizeOf(table.dtype);
    const uint64_t bags = sources[i].request.bags;
    if (bags > message.size() / stride) return Malformed(sender, kMalformed);
    const size_t bytes = PaddedPart(bags * stride);
    if (message.size() < bytes) return Malformed(sender, kMalformed);
    sources[i].gradients = message.data();
    sources[i].stride = static_cast<int64_t>(stride);
    if (HasFactors(table)) {
      sources[i].factors = sources[i].request.weights;
      sources[i].factor_stride = SizeOf(AccumulatorOf(table.dtype));
    }
    message.remove_prefix(bytes);
  }
  return message.empty() || has_more ? absl::OkStatus()
                                     : Malformed(sender, kMalformed);
}

bool GradientMessages::FindSources(absl::Span<const PlannedTable> tables,
                                   size_t table, size_t box,
                                   std::vector<GradientSource>& sources) const {
  bool all = true;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.table != table) continue;
    if (slot.box >= 0 && slot.box != static_cast<int64_t>(box)) continue;
    all = all && slot.box >= 0;
    const int64_t skipped =
        slot.box >= 0 ? 0
                      : tables[table].boxes[box].offsets[1] *
                            static_cast<int64_t>(SizeOf(tables[table].dtype));
    for (const std::vector<GradientSource>& of_rank : sources_) {
      sources.push_back(of_rank[i]);
      if (sources.back().gradients == nullptr) {
        sources.pop_back();
      } else {
        sources.back().gradients += skipped;
      }
    }
  }
  return all;
}

}  // namespace sherd::internal
