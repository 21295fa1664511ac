#include "sherd/core/nn/lookup/lookup_messages.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/cleanup/cleanup.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/nn/lookup/peer_counts.h"
#include "sherd/core/nn/lookup/pool_kernels.h"
#include "sherd/core/nn/lookup/pool_on_device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"

namespace sherd::internal {
namespace {

constexpr absl::string_view kMalformed = "a malformed lookup request";

RequestFormat FormatOf(const PlannedTable& table) {
  return {.wide_ids = table.rows > std::numeric_limits<int32_t>::max(),
          .weight_bytes =
              table.bags.weighted() ? SizeOf(AccumulatorOf(table.dtype)) : 0,
          .has_lengths = table.options.mode != BagMode::kNone};
}

// The dtype of replies.
DType ReplyDType(const PlannedTable& table, bool complete) {
  return complete || table.options.mode == BagMode::kNone
             ? table.dtype
             : AccumulatorOf(table.dtype);
}

bool IsComplete(absl::Span<const StreamShape> streams, size_t strips) {
  size_t held = 0;
  for (const StreamShape& stream : streams) held += stream.strips.size();
  return held == strips;
}

// Waits until the replies that the host is about to send have been made.
absl::Status AwaitReplies(const ProcessGroup& group,
                          const CollectiveOptions& options,
                          const LookUpPlace& place) {
  if (place.device.is_cpu() || place.moved_by_group) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(place.device.type));
  return runtime->Synchronize(
      CurrentStream(place.device),
      Deadline::After(options.timeout.value_or(group.timeout())));
}

}  // namespace

std::byte* LookUpMessages::Buffer::Resize(size_t bytes) {
  if (data.size() < bytes) data.resize(bytes);
  size = bytes;
  return data.data();
}

absl::Status LookUpMessages::Buffer::Expect(size_t bytes) {
  if (storage == nullptr || storage->size() < bytes) {
    storage = nullptr;
    // Some more, since calls differ in their numbers of ids.
    SHERD_ASSIGN_OR_RETURN(storage, Storage::Allocate(bytes + bytes / 4));
  }
  size = bytes;
  return absl::OkStatus();
}

absl::Status LookUpMessages::ResizeReply(Buffer& buffer, size_t bytes,
                                         const LookUpPlace& place,
                                         bool travels) {
  if (place.device.is_cpu()) {
    buffer.Resize(bytes);
    return absl::OkStatus();
  }
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(place.device.type));
  Allocator* memory = runtime->PinnedMemory();
  if (place.moved_by_group || !travels) {
    SHERD_ASSIGN_OR_RETURN(memory, runtime->MemoryOf(place.device.index));
  }
  SHERD_ASSIGN_OR_RETURN(buffer.storage, Storage::Allocate(bytes, *memory));
  buffer.size = bytes;
  return absl::OkStatus();
}

void LookUpMessages::ReleaseReplies(const Device& device) {
  if (device.is_cpu()) return;
  for (auto* buffers : {&replies_out_, &replies_in_}) {
    for (Buffer& buffer : *buffers) {
      if (buffer.storage != nullptr) {
        buffer.storage->UsedOn(CurrentStream(device));
      }
      buffer.storage = nullptr;
    }
  }
}

void LookUpMessages::PlanTable(const PlannedTable& table, int rank) {
  TableState& state = tables_.emplace_back();
  const std::vector<StreamShape> streams =
      table.shared ? StreamsOf(StripsOf(table.boxes, rank), table.boxes)
                   : std::vector<StreamShape>();
  state.complete = IsComplete(streams, table.strips.size());
  state.pieces.resize(table.strips.size());
  size_t request = router_.requests().size();
  for (const StreamShape& stream : streams) {
    int64_t column = 0;
    for (const ColumnStrip& strip : stream.strips) {
      const auto at = std::lower_bound(
          table.strips.begin(), table.strips.end(), strip.column,
          [](const ColumnStrip& s, int64_t c) { return s.column < c; });
      state.pieces[static_cast<size_t>(at - table.strips.begin())].push_back(
          {.request = request, .column = column});
      column += strip.width;
    }
    ++request;
  }
  router_.AddTable(streams);
}

void LookUpMessages::PlanServices(absl::Span<const PlannedTable> tables,
                                  int rank, int reader) {
  std::vector<Service>& services = services_.emplace_back();
  for (size_t t = 0; t < tables.size(); ++t) {
    const PlannedTable& table = tables[t];
    if (!table.shared) continue;
    const std::vector<ColumnStrip> strips = StripsOf(table.boxes, reader);
    const std::vector<StreamShape> streams = StreamsOf(strips, table.boxes);
    for (const StreamShape& stream : streams) {
      if (stream.owner != rank) continue;
      Service& service = services.emplace_back();
      service.table = static_cast<int>(t);
      service.width = stream.width;
      service.complete = IsComplete(streams, strips.size());
      int64_t column = 0;
      for (const ColumnStrip& strip : stream.strips) {
        SetReadable(strip, table.boxes, table.shards, SizeOf(table.dtype),
                    column, service.strips.emplace_back());
        column += strip.width;
      }
    }
  }
}

void LookUpMessages::Plan(absl::Span<const PlannedTable> tables, int rank,
                          int ranks) {
  for (const PlannedTable& table : tables) PlanTable(table, rank);
  replies_.resize(router_.requests().size());
  for (int reader = 0; reader < ranks; ++reader) {
    PlanServices(tables, rank, reader);
  }
  const auto count = static_cast<size_t>(ranks);
  lengths_.resize(count);
  for (auto* buffers :
       {&requests_out_, &requests_in_, &replies_out_, &replies_in_}) {
    buffers->resize(count);
  }
  sends_.resize(count);
  recvs_.resize(count);
}

void LookUpMessages::CollectTable(const PlannedTable& table, size_t index) {
  TableState& state = tables_[index];
  const BagView& bags = table.bags;
  const size_t weight_size = SizeOf(AccumulatorOf(table.dtype));
  if (bags.weighted()) {
    state.weights.resize(static_cast<size_t>(bags.ids().size()) * weight_size);
    bags.CopyWeights(0, bags.ids().size(), state.weights.data());
  }
  state.counts.clear();
  int64_t i = 0;
  for (int64_t b = 0; b < bags.bags(); ++b) {
    int64_t count = 0;
    for (const int64_t end = bags.begin(b + 1); i < end; ++i) {
      count += bags.ids()[i] == bags.padding() ? 0 : 1;
    }
    state.counts.push_back(count);
  }
  router_.Route(index, bags, bags.padding(),
                bags.weighted() ? state.weights.data() : nullptr, weight_size);
}

void LookUpMessages::Collect(absl::Span<const PlannedTable> tables) {
  router_.Clear();
  for (size_t t = 0; t < tables.size(); ++t) {
    if (tables[t].shared) CollectTable(tables[t], t);
  }
  Encode(tables);
}

void LookUpMessages::Encode(absl::Span<const PlannedTable> tables) {
  const auto format = [&](int table) {
    return FormatOf(tables[static_cast<size_t>(table)]);
  };
  const auto no_bytes = [](const StreamRequest&) { return size_t{0}; };
  const auto write_none = [](const StreamRequest&, std::byte*) {};
  const RequestRouter::Attachment none = {no_bytes, write_none};
  router_.Measure(format, none, absl::MakeSpan(lengths_));
  writers_.clear();
  for (size_t r = 0; r < lengths_.size(); ++r) {
    std::byte* const to = requests_out_[r].Resize(lengths_[r]);
    writers_.push_back(lengths_[r] == 0 ? nullptr : to);
  }
  router_.Write(format, none, writers_);
}

absl::Status LookUpMessages::Decode(absl::Span<const PlannedTable> tables,
                                    int reader, size_t& reply_bytes) {
  absl::Span<const std::byte> rest =
      requests_in_[static_cast<size_t>(reader)].bytes();
  const bool empty = rest.empty();
  reply_bytes = 0;
  for (Service& service : services_[static_cast<size_t>(reader)]) {
    service.request = {};
    if (empty) continue;
    const PlannedTable& table = tables[static_cast<size_t>(service.table)];
    if (!TakeRequest(FormatOf(table), rest, service.request)) {
      return Malformed(reader, kMalformed);
    }
    reply_bytes +=
        PaddedPart(service.request.bags * static_cast<size_t>(service.width) *
                   SizeOf(ReplyDType(table, service.complete)));
  }
  return rest.empty() ? absl::OkStatus() : Malformed(reader, kMalformed);
}

absl::Status LookUpMessages::Serve(absl::Span<const PlannedTable> tables,
                                   int reader, const Device& device,
                                   RowPool& pool) {
  std::byte* to = replies_out_[static_cast<size_t>(reader)].begin();
  for (const Service& service : services_[static_cast<size_t>(reader)]) {
    const RequestView& request = service.request;
    if (request.bags == 0) continue;
    const PlannedTable& table = tables[static_cast<size_t>(service.table)];
    // Its strips hold the same rows.
    if (!FindBags(request, service.strips[0], bounds_)) {
      return Malformed(reader, kMalformed);
    }
    const size_t weight_size = SizeOf(AccumulatorOf(table.dtype));
    const DType dtype = ReplyDType(table, service.complete);
    const int64_t row_bytes =
        service.width * static_cast<int64_t>(SizeOf(dtype));
    SHERD_RETURN_IF_ERROR(pool.Run(
        {.ids = request.ids,
         .bags = static_cast<int64_t>(request.bags),
         .begin = [&](int64_t b) { return bounds_[static_cast<size_t>(b)]; },
         .weighted = table.bags.weighted(),
         .copy_weights =
             [&](int64_t begin, int64_t end, void* copy) {
               std::memcpy(
                   copy,
                   request.weights + static_cast<size_t>(begin) * weight_size,
                   static_cast<size_t>(end - begin) * weight_size);
             }},
        service.strips,
        {.mode = table.options.mode,
         .divide = service.complete,
         .table = table.dtype,
         .dtype = dtype,
         .device = device,
         .data = to,
         .stride = row_bytes}));
    to += PaddedPart(request.bags * static_cast<size_t>(row_bytes));
  }
  return absl::OkStatus();
}

absl::Status LookUpMessages::ExpectReplies(
    absl::Span<const PlannedTable> tables, int rank, const LookUpPlace& place) {
  const std::vector<StreamRequest>& requests = router_.requests();
  const auto bytes_of = [&](size_t i) {
    return PaddedPart(requests[i].bags.size() *
                      static_cast<size_t>(replies_[i].row_bytes));
  };
  for (Buffer& buffer : replies_in_) buffer.size = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto t = static_cast<size_t>(requests[i].table);
    replies_[i].row_bytes =
        requests[i].width * static_cast<int64_t>(SizeOf(
                                ReplyDType(tables[t], tables_[t].complete)));
    replies_in_[static_cast<size_t>(requests[i].owner)].size += bytes_of(i);
  }
  next_.assign(replies_in_.size(), 0);
  for (size_t r = 0; r < replies_in_.size(); ++r) {
    // What a rank sends to itself stays where it is.
    if (static_cast<int>(r) == rank) continue;
    SHERD_RETURN_IF_ERROR(ResizeReply(replies_in_[r], replies_in_[r].size,
                                      place, /*travels=*/true));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto owner = static_cast<size_t>(requests[i].owner);
    Buffer& buffer =
        requests[i].owner == rank ? replies_out_[owner] : replies_in_[owner];
    replies_[i].rows = buffer.begin() + next_[owner];
    next_[owner] += bytes_of(i);
  }
  return absl::OkStatus();
}

absl::Status LookUpMessages::Exchange(ProcessGroup& group,
                                      const CollectiveOptions& options,
                                      std::vector<Buffer>& out,
                                      std::vector<Buffer>& in) {
  const auto rank = static_cast<size_t>(group.rank());
  for (size_t r = 0; r < out.size(); ++r) {
    const bool own = r == rank;
    sends_[r] = own ? MutableBytes() : out[r].bytes();
    recvs_[r] = own ? MutableBytes() : in[r].bytes();
  }
  return group.AllToAllV(sends_, recvs_, options);
}

absl::Status LookUpMessages::Combine(PlannedTable& table,
                                     const TableState& state,
                                     const Device& device) {
  if (table.bags.bags() == 0) return absl::OkStatus();
  const auto element = static_cast<int64_t>(SizeOf(table.dtype));
  auto* const out = static_cast<std::byte*>(table.output.data());
  const DType dtype = ReplyDType(table, state.complete);
  const auto reply_element = static_cast<int64_t>(SizeOf(dtype));
  for (size_t s = 0; s < state.pieces.size(); ++s) {
    const std::vector<Piece>& pieces = state.pieces[s];
    next_.assign(pieces.size(), 0);
    rows_.clear();
    ends_.clear();
    for (int64_t b = 0; b < table.bags.bags(); ++b) {
      for (size_t p = 0; p < pieces.size(); ++p) {
        const std::vector<int64_t>& with_ids =
            router_.requests()[pieces[p].request].bags;
        const Reply& reply = replies_[pieces[p].request];
        const size_t at = next_[p];
        if (at == with_ids.size() || with_ids[at] != b) continue;
        ++next_[p];
        rows_.push_back(reply.rows +
                        static_cast<int64_t>(at) * reply.row_bytes +
                        pieces[p].column * reply_element);
      }
      ends_.push_back(static_cast<int64_t>(rows_.size()));
    }
    rows_.resize(rows_.size() + kRowsAhead,
                 rows_.empty() ? nullptr : rows_.back());
    const ColumnStrip& strip = table.strips[s];
    std::byte* const to = out + strip.column * element;
    const bool divide = table.options.mode == BagMode::kMean && !state.complete;
    SHERD_RETURN_IF_ERROR(
        PoolOn(device, dtype, table.dtype, table.options.mode,
               {.out = to,
                .out_stride = table.columns * element,
                .width = strip.width,
                .bags = table.bags.bags(),
                .ends = ends_.data(),
                .rows = rows_.data(),
                .divisors = divide ? state.counts.data() : nullptr}));
  }
  return absl::OkStatus();
}

absl::Status LookUpMessages::Run(ProcessGroup& group,
                                 const CollectiveOptions& options,
                                 const LookUpPlace& place,
                                 absl::Span<PlannedTable> tables,
                                 absl::Span<const uint64_t> received,
                                 RowPool& pool, LookUpStats& stats) {
  const absl::Cleanup release = [&] { ReleaseReplies(place.device); };
  const int rank = group.rank();
  for (size_t r = 0; r < received.size(); ++r) {
    if (static_cast<int>(r) == rank) continue;
    SHERD_RETURN_IF_ERROR(requests_in_[r].Expect(received[r]));
    stats.id_bytes_sent += static_cast<int64_t>(lengths_[r]);
  }
  SHERD_RETURN_IF_ERROR(Exchange(group, options, requests_out_, requests_in_));
  for (int reader = 0; reader < group.size(); ++reader) {
    const auto r = static_cast<size_t>(reader);
    // In place of a copy; swapped back below.
    if (reader == rank) std::swap(requests_in_[r], requests_out_[r]);
    size_t bytes = 0;
    absl::Status status = Decode(tables, reader, bytes);
    if (status.ok()) {
      status = ResizeReply(replies_out_[r], bytes, place, reader != rank);
    }
    if (status.ok()) status = Serve(tables, reader, place.device, pool);
    if (reader == rank) std::swap(requests_in_[r], requests_out_[r]);
    SHERD_RETURN_IF_ERROR(status);
  }
  SHERD_RETURN_IF_ERROR(AwaitReplies(group, options, place));
  SHERD_RETURN_IF_ERROR(ExpectReplies(tables, rank, place));
  for (size_t r = 0; r < replies_in_.size(); ++r) {
    if (static_cast<int>(r) == rank) continue;
    stats.row_bytes_received += static_cast<int64_t>(replies_in_[r].size);
  }
  CollectiveOptions placed = options;
  if (place.moved_by_group) placed.device = place.device;
  SHERD_RETURN_IF_ERROR(Exchange(group, placed, replies_out_, replies_in_));
  for (size_t t = 0; t < tables.size(); ++t) {
    if (!tables[t].shared) continue;
    SHERD_RETURN_IF_ERROR(Combine(tables[t], tables_[t], place.device));
  }
  return absl::OkStatus();
}

}  // namespace sherd::internal
