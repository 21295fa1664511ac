#ifndef SHERD_CORE_NN_LOOKUP_LOOKUP_MESSAGES_H_
#define SHERD_CORE_NN_LOOKUP_LOOKUP_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/nn/lookup.h"
#include "sherd/core/nn/lookup/lookup_place.h"
#include "sherd/core/nn/lookup/planned_table.h"
#include "sherd/core/nn/lookup/request_message.h"
#include "sherd/core/nn/lookup/request_router.h"
#include "sherd/core/nn/lookup/row_pool.h"
#include "sherd/core/nn/lookup/table_layout.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/storage.h"

namespace sherd::internal {

// Lookups between ranks that do not reach each other's memory: ids go to the
// owners of rows, and what the owners pooled comes back. For the shared tables
// of a plan.
//
// A message to an owner is the requests of all streams to it, by ascending
// table and stream, or nothing if all are empty:
//   request  see request_message.h; ids are int64 for a table of more than
//            2^31 - 1 rows, weights in the dtype of sums, and lengths of the
//            bags are there unless the mode is kNone
//   reply    a row for each bag: the stream's columns, in the dtype of sums, or
//            of the table if no other stream holds these columns; padded to 8
//            bytes
// Bags without ids in a stream are left out.
class LookUpMessages {
 public:
  // Finds the streams. The memory of own shards is known. Once for a plan.
  void Plan(absl::Span<const PlannedTable> tables, int rank, int ranks);
  bool planned() const { return !lengths_.empty(); }

  // Distributes the ids of the call among the streams.
  void Collect(absl::Span<const PlannedTable> tables);
  // Entry r is the length of the request to rank r.
  absl::Span<const uint64_t> lengths() const { return lengths_; }

  // Looks up what was collected, into the outputs of the tables. `received`:
  // entry r is the length of rank r's request to this one. Collective.
  //
  // Devices. Requests travel in host memory. The rest is queued on the current
  // stream of place.device; the host waits for it before it sends replies
  // itself.
  //
  // Errors. Those of AllToAllV and DeviceRuntime, kDataLoss for a malformed
  // request, kResourceExhausted. The other ranks depend on this one: abort the
  // group after an error.
  absl::Status Run(ProcessGroup& group, const CollectiveOptions& options,
                   const LookUpPlace& place, absl::Span<PlannedTable> tables,
                   absl::Span<const uint64_t> received, RowPool& pool,
                   LookUpStats& stats);

 private:
  // To a request: its rows, and the bytes of one.
  struct Reply {
    const std::byte* rows = nullptr;
    int64_t row_bytes = 0;
  };
  // Of the same streams, at the owner.
  struct Service {
    int table = 0;
    int64_t width = 0;
    bool complete = false;
    std::vector<ReadableStrip> strips = {};
    // Of a reply that is being made.
    RequestView request = {};
  };
  // A strip in the replies of a stream.
  struct Piece {
    size_t request = 0;
    int64_t column = 0;
  };
  struct TableState {
    // Of each strip.
    std::vector<std::vector<Piece>> pieces;
    // Whether each strip lies in one stream, whose replies are final.
    bool complete = false;
    // Of each bag: ids that count.
    std::vector<int64_t> counts;
    std::vector<std::byte> weights;
  };
  // Grows, so that a later message of the length allocates nothing. With
  // devices replies have memory of their own in each call, since queued work
  // uses it longer than the call.
  struct Buffer {
    std::vector<std::byte> data;
    // In place of `data`, if it is not null.
    std::shared_ptr<Storage> storage;
    size_t size = 0;

    std::byte* Resize(size_t bytes);
    // For as many bytes as a peer announces: memory that is not touched before
    // they arrive.
    //   kResourceExhausted  There is no memory.
    absl::Status Expect(size_t bytes);
    std::byte* begin() {
      return storage == nullptr ? data.data()
                                : static_cast<std::byte*>(storage->data());
    }
    MutableBytes bytes() { return MutableBytes(begin(), size); }
  };

  void PlanTable(const PlannedTable& table, int rank);
  void PlanServices(absl::Span<const PlannedTable> tables, int rank,
                    int reader);
  void CollectTable(const PlannedTable& table, size_t index);
  void Encode(absl::Span<const PlannedTable> tables);
  // Finds the requests in the message of rank `reader` and returns the length
  // of the reply.
  absl::Status Decode(absl::Span<const PlannedTable> tables, int reader,
                      size_t& reply_bytes);
  // Makes room for a reply, which leaves this rank if it `travels`.
  static absl::Status ResizeReply(Buffer& buffer, size_t bytes,
                                  const LookUpPlace& place, bool travels);
  absl::Status Serve(absl::Span<const PlannedTable> tables, int reader,
                     const Device& device, RowPool& pool);
  absl::Status ExpectReplies(absl::Span<const PlannedTable> tables, int rank,
                             const LookUpPlace& place);
  absl::Status Combine(PlannedTable& table, const TableState& state,
                       const Device& device);
  // Gives back the memory of replies on devices.
  void ReleaseReplies(const Device& device);
  absl::Status Exchange(ProcessGroup& group, const CollectiveOptions& options,
                        std::vector<Buffer>& out, std::vector<Buffer>& in);

  RequestRouter router_;
  // Of each request.
  std::vector<Reply> replies_;
  std::vector<TableState> tables_;
  // Of each rank that requests.
  std::vector<std::vector<Service>> services_;
  std::vector<uint64_t> lengths_;
  // Of each rank. What a rank sends to itself stays in the first.
  std::vector<Buffer> requests_out_;
  std::vector<Buffer> requests_in_;
  std::vector<Buffer> replies_out_;
  std::vector<Buffer> replies_in_;
  std::vector<ConstBytes> sends_;
  std::vector<MutableBytes> recvs_;
  // Of Encode, Serve and Combine.
  std::vector<std::byte*> writers_;
  std::vector<int64_t> bounds_;
  std::vector<size_t> next_;
  std::vector<int64_t> ends_;
  std::vector<const std::byte*> rows_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_LOOKUP_LOOKUP_MESSAGES_H_
