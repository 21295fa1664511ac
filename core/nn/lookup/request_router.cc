#include "sherd/core/nn/lookup/request_router.h"

#include <algorithm>

namespace sherd::internal {

void RequestRouter::AddTable(absl::Span<const StreamShape> streams) {
  const auto index = static_cast<int>(tables_.size());
  tables_.push_back({requests_.size(), RoutesOf(streams)});
  for (const StreamShape& stream : streams) {
    requests_.push_back(
        {.table = index, .owner = stream.owner, .width = stream.width});
  }
}

void RequestRouter::Clear() {
  for (StreamRequest& request : requests_) {
    request.bags.clear();
    request.lengths.clear();
    request.ids.clear();
    request.weights.clear();
  }
}

void RequestRouter::Route(size_t table, const BagView& bags, int64_t padding,
                          const std::byte* weights, size_t weight_size) {
  const Table& state = tables_[table];
  // A table without columns has no streams.
  if (state.routes.streams.empty()) return;
  bags.ids().Dispatch([&](const auto* ids) {
    int64_t i = 0;
    for (int64_t b = 0; b < bags.bags(); ++b) {
      for (const int64_t end = bags.begin(b + 1); i < end; ++i) {
        const int64_t id = ids[i];
        if (id == padding) continue;
        const size_t band = LastAtOrBefore(state.routes.begins, id);
        for (const int stream : state.routes.streams[band]) {
          StreamRequest& request =
              requests_[state.first + static_cast<size_t>(stream)];
          if (request.bags.empty() || request.bags.back() != b) {
            request.bags.push_back(b);
            request.lengths.push_back(0);
          }
          ++request.lengths.back();
          request.ids.push_back(id);
          if (weights == nullptr) continue;
          const std::byte* const weight =
              weights + static_cast<size_t>(i) * weight_size;
          request.weights.insert(request.weights.end(), weight,
                                 weight + weight_size);
        }
      }
    }
  });
}

void RequestRouter::Measure(FormatOfTable format, const Attachment& attachment,
                            absl::Span<uint64_t> lengths) {
  std::fill(lengths.begin(), lengths.end(), 0);
  // An owner gets nothing, or all of its requests.
  for (const StreamRequest& request : requests_) {
    if (!request.ids.empty()) lengths[static_cast<size_t>(request.owner)] = 1;
  }
  for (const StreamRequest& request : requests_) {
    uint64_t& length = lengths[static_cast<size_t>(request.owner)];
    if (length == 0) continue;
    length += RequestBytes(format(request.table), request.bags.size(),
                           request.ids.size()) +
              attachment.size(request);
  }
  for (uint64_t& length : lengths) length -= length == 0 ? 0 : 1;
}

void RequestRouter::Write(FormatOfTable format, const Attachment& attachment,
                          absl::Span<std::byte* const> to) {
  next_.assign(to.begin(), to.end());
  for (const StreamRequest& request : requests_) {
    std::byte*& next = next_[static_cast<size_t>(request.owner)];
    if (next == nullptr) continue;
    const RequestFormat of_table = format(request.table);
    WriteRequest(of_table,
                 {.bags = request.bags.size(),
                  .ids = request.ids,
                  .weights = request.weights,
                  .lengths = request.lengths},
                 next);
    next += RequestBytes(of_table, request.bags.size(), request.ids.size());
    attachment.write(request, next);
    next += attachment.size(request);
  }
}

}  // namespace sherd::internal
