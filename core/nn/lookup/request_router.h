#ifndef SHERD_CORE_NN_LOOKUP_REQUEST_ROUTER_H_
#define SHERD_CORE_NN_LOOKUP_REQUEST_ROUTER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "sherd/core/nn/lookup/bag_view.h"
#include "sherd/core/nn/lookup/request_message.h"
#include "sherd/core/nn/lookup/table_layout.h"

namespace sherd::internal {

// The ids of a call that one stream serves. Bags without any are left out.
struct StreamRequest {
  int table = 0;
  int owner = 0;
  int64_t width = 0;
  // Of the call.
  std::vector<int64_t> bags = {};
  // Of each of these bags.
  std::vector<uint32_t> lengths = {};
  std::vector<int64_t> ids = {};
  std::vector<std::byte> weights = {};
};

// Distributes ids among streams, and writes messages of them: to each owner the
// requests of all streams to it, by ascending table and stream, or nothing if
// all are empty. Keeps its buffers.
class RequestRouter {
 public:
  // What a message has beside the parts of request_message.h: behind each
  // request so many bytes, a multiple of 8.
  struct Attachment {
    absl::FunctionRef<size_t(const StreamRequest& request)> size;
    absl::FunctionRef<void(const StreamRequest& request, std::byte* to)> write;
  };
  using FormatOfTable = absl::FunctionRef<RequestFormat(int table)>;

  // The streams of the next table.
  void AddTable(absl::Span<const StreamShape> streams);

  // Forgets the ids.
  void Clear();
  // Distributes the ids of a table, except for `padding`. `weights`: a factor
  // for each id, of `weight_size` bytes; null: there are none.
  void Route(size_t table, const BagView& bags, int64_t padding,
             const std::byte* weights, size_t weight_size);

  // Sets entry r of `lengths` to the length of the message to rank r.
  void Measure(FormatOfTable format, const Attachment& attachment,
               absl::Span<uint64_t> lengths);
  // Writes the message to rank r to to[r], an address that is a multiple of 8;
  // null: none, since its length is 0.
  void Write(FormatOfTable format, const Attachment& attachment,
             absl::Span<std::byte* const> to);

  const std::vector<StreamRequest>& requests() const { return requests_; }

 private:
  struct Table {
    size_t first = 0;
    StreamRoutes routes = {};
  };

  std::vector<StreamRequest> requests_;
  std::vector<Table> tables_;
  std::vector<std::byte*> next_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_LOOKUP_REQUEST_ROUTER_H_
