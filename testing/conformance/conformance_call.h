#ifndef SHERD_TESTING_CONFORMANCE_CONFORMANCE_CALL_H_
#define SHERD_TESTING_CONFORMANCE_CONFORMANCE_CALL_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/tensor/device.h"
#include "sherd/testing/conformance/conformance_data.h"

namespace sherd::testing::internal {

// One call of a collective with buffers of its own and data that can be
// checked.

struct CallSpec {
  CollectiveOp op = CollectiveOp::kBarrier;
  // Uses the lists of the operations that have them (…V), not blocks.
  bool lists = false;
  // Elements of `dtype` for reductions, bytes otherwise; per block.
  size_t count = 0;
  DType dtype = DType::kUInt8;
  ReduceOp reduction = ReduceOp::kSum;
  // The root, or the other end of a send or recv.
  int root = 0;
  int64_t tag = 0;
  // The type of an operation that only moves elements, if it gives one.
  std::optional<DType> type = {};
  // With lists: blocks have different lengths, some 0; they depend on `skew`.
  bool uneven = false;
  size_t skew = 0;
  bool in_place = false;
  bool asynchronous = false;
  // Bytes after an aligned address, for operations that only move.
  size_t shift = 0;
  std::optional<absl::Duration> timeout = {};
};

// "all_reduce of 3 float32 (sum), in place", for messages.
std::string Describe(const CallSpec& spec);

// Bytes of the block from one rank to another in an operation that moves; for
// all_gather and gather, `to` is 0.
size_t MessageBytes(const CallSpec& spec, int from, int to);

// Elements of rank r's block in a reduce_scatter.
size_t BlockCount(const CallSpec& spec, int r);

class Call {
 public:
  // `number` is the same on all ranks and selects the data. Allocates and fills
  // the buffers of rank `rank` of `size`.
  Call(const CallSpec& spec, uint64_t number, int rank, int size);

  // Starts the call; the buffers must outlive the result.
  Work Start(ProcessGroup& group);

  // Makes the call as specified. In a group with a device part, all buffers are
  // on its device until the operation has ended.
  absl::Status Run(ProcessGroup& group);

  // Returns OK if the result is right, nothing outside of it was written, and
  // inputs are unchanged.
  absl::Status Check(Rounding rounding) const;

  // Returns OK if nothing was received or written.
  absl::Status CheckNothingHappened() const;

  // Returns OK if nothing was written but the result.
  absl::Status CheckSurroundings() const;

 private:
  // The contents of a block before or after the call.
  struct Content {
    enum class Kind { kMessage, kElements, kReduced } kind;
    int from = 0;
    int to = 0;
    size_t first_element = 0;
  };
  struct Block {
    MutableBytes bytes;
    // Unset: as allocated.
    std::optional<Content> before = {};
    // Unset: as before the call.
    std::optional<Content> after = {};
  };
  // Adjacent blocks, or each in a buffer of its own.
  struct Area {
    MutableBytes whole;
    std::vector<Block*> blocks;
  };

  Content Message(int from, int to) const;
  Content Elements(int rank, size_t first) const;
  Content Reduced(size_t first) const;
  size_t ElementBytes() const;
  Block* AddBlock(size_t size);
  Area MakeArea(const std::vector<size_t>& sizes);

  void Build();
  void BuildBroadcast();
  void BuildGather(bool receives);
  void BuildScatter();
  void BuildAllToAll();
  void BuildMessage();
  void BuildReduce(bool receives);
  void BuildReduceScatter();
  void Fill(const Content& content, MutableBytes bytes) const;
  absl::Status CheckContent(const std::optional<Content>& content,
                            Rounding rounding, ConstBytes bytes) const;
  Work StartWith(ProcessGroup& group, const CollectiveOptions& options);
  Work StartReduction(ProcessGroup& group, const CollectiveOptions& options);
  absl::Status RunWith(ProcessGroup& group, const CollectiveOptions& options);
  absl::Status RunOnDevice(ProcessGroup& group, const Device& device);
  // The arguments of the call are then `copies` away.
  void Move(const std::vector<std::byte*>& copies, bool back);

  const CallSpec spec_;
  const uint64_t number_;
  const int rank_;
  const int size_;
  // Stable addresses.
  std::deque<GuardedBuffer> buffers_;
  std::deque<Block> blocks_;
  // The arguments of the call.
  MutableBytes send_;
  MutableBytes recv_;
  std::vector<ConstBytes> sends_;
  std::vector<MutableBytes> recvs_;
};

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_CONFORMANCE_CONFORMANCE_CALL_H_
