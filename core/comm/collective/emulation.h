#ifndef SHERD_CORE_COMM_COLLECTIVE_EMULATION_H_
#define SHERD_CORE_COMM_COLLECTIVE_EMULATION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd::internal {

// Emulates operations that a backend does not implement with those that it
// does. A backend needs only all_to_all_v; send and recv cannot be emulated.
//
// Moves. One all_to_all_v from every block's owner to its receivers.
//
// Reductions. Small ones: every rank gets all contributions and reduces them
// alike. Large ones are done in pieces of P slices: slice r of all ranks goes
// to rank r, which reduces it in one pass and hands the result on. Each rank
// receives 2 (P - 1) / P of the bytes, as with a ring, in two rounds per piece,
// and contributions are taken in rank order, so that the result has the same
// bits everywhere (Rabenseifner's reduce-scatter and allgather, on a full
// mesh). An average of 32-bit floats and wider is a native sum, divided, if the
// backend has one.
//
// Memory. At most kMaxScratch bytes, kept for the next call.
//
// For memory other than the host's, a derived class provides the scratch memory
// and the reduction.
//
// Threads. Run is called by one thread at a time.
class Emulation {
 public:
  // Posts one operation that the backend implements, and waits for its end.
  using Post = absl::FunctionRef<absl::Status(const Collective&)>;

  Emulation(NativeOperations native, int rank, int size);
  Emulation(const Emulation&) = delete;
  Emulation& operator=(const Emulation&) = delete;
  virtual ~Emulation() = default;

  // `dtype` and `reduction` matter for reductions only.
  static OperationPath PathOf(const NativeOperations& native, CollectiveOp op,
                              DType dtype, ReduceOp reduction);

  // `desc` is valid, its size() above 1, its path kEmulated. Own blocks of
  // moves have been copied.
  absl::Status Run(const Collective& desc, Post post);

  static constexpr size_t kMaxScratch = size_t{8} << 20;

 protected:
  // Returns at least `bytes` bytes, valid until the end of Run or the next
  // call.
  virtual absl::StatusOr<std::byte*> Scratch(size_t bytes);
  // As Reduce of core/comm/reduction.h.
  virtual absl::Status Reduce(ReduceOp op, DType dtype, void* out,
                              absl::Span<const void* const> ins, size_t count,
                              int divisor);

 private:
  // One rank's share of a piece, in bytes from the start of the buffer.
  struct Slice {
    size_t offset;
    size_t size;
  };

  absl::Status Exchange(const Collective& desc, Post post);
  void ClearLists();
  ConstBytes In(const Collective& desc) const;
  MutableBytes Out(const Collective& desc) const;
  size_t SliceBytes(const Collective& desc) const;
  Slice SliceOf(const Collective& desc, size_t piece, int rank) const;

  absl::Status Move(const Collective& desc, Post post);
  absl::Status DivideNativeSum(const Collective& desc, Post post);
  absl::Status ReduceSmall(const Collective& desc, Post post);
  absl::Status ReducePiece(const Collective& desc, size_t piece, Post post);
  absl::Status ReduceBlocks(const Collective& desc, Post post);
  // Reduces this rank's `own` with the contributions that the others sent into
  // `scratch`, which are `stride` bytes apart, in rank order.
  absl::Status Combine(const Collective& desc, ConstBytes own,
                       const std::byte* scratch, size_t stride, void* out);

  const NativeOperations native_;
  const int rank_;
  const int size_;
  std::vector<ConstBytes> sends_;
  std::vector<MutableBytes> recvs_;
  std::vector<const void*> inputs_;
  std::vector<std::byte> scratch_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_COLLECTIVE_EMULATION_H_
