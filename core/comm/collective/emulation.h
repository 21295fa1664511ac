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

// Runs operations that a backend lacks with those that it has. A backend needs
// no more than all_to_all_v; send and recv cannot be emulated.
//
// Moves. One all_to_all_v from every block's owner to those who want it.
//
// Reductions. Small ones: everybody gets all contributions and reduces them
// alike. Others go in pieces of P slices: slice r of all ranks goes to rank r,
// which reduces it in one pass and hands the result on. Each rank receives
// 2 (P - 1) / P of the bytes, as with a ring, in two rounds per piece, and
// contributions are taken in rank order, so that the result has the same bits
// everywhere (Rabenseifner's reduce-scatter and allgather, on a full mesh). An
// average of 32-bit floats and wider is a native sum, divided, where there is
// one.
//
// Memory. At most kMaxScratch bytes, kept for the next call.
//
// On other memory than the host's, a derived class has the scratch and reduces.
//
// Threads. Run is called by one thread at a time.
class Emulation {
 public:
  // Posts one operation that the backend has, and waits for its end.
  using Post = absl::FunctionRef<absl::Status(const Collective&)>;

  Emulation(NativeOperations native, int rank, int size);
  Emulation(const Emulation&) = delete;
  Emulation& operator=(const Emulation&) = delete;
  virtual ~Emulation() = default;

  // `dtype` and `reduction` count for reductions only.
  static OperationPath PathOf(const NativeOperations& native, CollectiveOp op,
                              DType dtype, ReduceOp reduction);

  // `desc` is valid, its size() above 1, its path kEmulated. Own blocks of
  // moves have been copied.
  absl::Status Run(const Collective& desc, Post post);

  static constexpr size_t kMaxScratch = size_t{8} << 20;

 protected:
  // At least so many bytes, until the end of Run or the next call.
  virtual absl::StatusOr<std::byte*> Scratch(size_t bytes);
  // As core/comm/reduction.h does it.
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
  // Reduces this rank's `own` with what the others sent into `scratch`, where
  // theirs stand `stride` bytes apart, in rank order.
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
