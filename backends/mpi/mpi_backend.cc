// Collectives over MPI, with functions of MPI 3 only.
//
// MPI's blocking calls take no deadline and cannot be ended from another
// thread, so each operation is a non-blocking call and a loop around MPI_Test.
// There are two kinds:
//   - MPI's own collectives, MPI_Ibcast and the like, for large data;
//   - messages, for small data, for which a non-blocking collective costs about
//     twice its blocking form, and where each rank has entries of its own size
//     and place, which MPI's int displacements cannot express. Messages also
//     show which peer is missing, and which one sent another length, and can be
//     cancelled.
//
// Within a step, sends are started before receives: where ranks read each
// other's memory, a receive whose message has already been announced moves all
// of it before it returns, and a rank that had not announced its own message by
// then would keep its peer waiting for as long.
//
// After a deadline or an abort the call returns at once. If a request cannot be
// cancelled (see MpiLibrary), this process can no longer use MPI: no further
// groups are made, and at its exit the launcher ends the other processes.

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/mpi/mpi_batch.h"
#include "sherd/backends/mpi/mpi_library.h"
#include "sherd/backends/plugin.h"

namespace {

using sherd::internal::kAbortTag;
using sherd::internal::kMaxMpiBytes;
using sherd::internal::MpiBatch;
using sherd::internal::MpiLibrary;
using sherd::internal::MpiWait;
using sherd::plugin::Fail;
using sherd::plugin::Guard;

// Up to here, messages of our own are faster than MPI's non-blocking
// collectives.
constexpr uint64_t kSmallBroadcast = 4 << 10;
constexpr uint64_t kSmallAllGather = 16 << 10;
constexpr uint64_t kSmallAllReduce = 16 << 10;
constexpr uint64_t kSmallAllReduceOfTwo = 2 << 10;
constexpr uint64_t kSmallReduce = 4 << 10;
// In groups of up to so many ranks, if their number is a power of two, messages
// are faster for large reductions too.
constexpr int kSmallGroup = 8;

// Tags of an operation's messages, so that two ranks in different operations do
// not take each other's messages.
constexpr int kFirstOperationTag = kAbortTag + 1;

struct MpiType {
  MPI_Datatype type;
  uint64_t size;
};

MpiType TypeOf(int32_t dtype) {
  switch (dtype) {
    case SHERD_BOOL:
    case SHERD_UINT8:
      return {MPI_UINT8_T, 1};
    case SHERD_INT8:
      return {MPI_INT8_T, 1};
    case SHERD_UINT16:
      return {MPI_UINT16_T, 2};
    case SHERD_INT16:
      return {MPI_INT16_T, 2};
    case SHERD_UINT32:
      return {MPI_UINT32_T, 4};
    case SHERD_INT32:
      return {MPI_INT32_T, 4};
    case SHERD_UINT64:
      return {MPI_UINT64_T, 8};
    case SHERD_INT64:
      return {MPI_INT64_T, 8};
    case SHERD_FLOAT32:
      return {MPI_FLOAT, 4};
    case SHERD_FLOAT64:
      return {MPI_DOUBLE, 8};
    case SHERD_COMPLEX64:
      return {MPI_C_FLOAT_COMPLEX, 8};
    case SHERD_COMPLEX128:
      return {MPI_C_DOUBLE_COMPLEX, 16};
    default:
      return {MPI_DATATYPE_NULL, 0};
  }
}

MPI_Op ReductionOf(int32_t dtype, int32_t reduction) {
  const bool is_bool = dtype == SHERD_BOOL;
  switch (reduction) {
    case SHERD_SUM:
      return is_bool ? MPI_BOR : MPI_SUM;
    case SHERD_PRODUCT:
      return is_bool ? MPI_BAND : MPI_PROD;
    case SHERD_MIN:
      return MPI_MIN;
    case SHERD_MAX:
      return MPI_MAX;
    case SHERD_BAND:
      return MPI_BAND;
    case SHERD_BOR:
      return MPI_BOR;
    case SHERD_BXOR:
      return MPI_BXOR;
    default:
      return MPI_OP_NULL;
  }
}

bool IsPowerOfTwo(int n) { return (n & (n - 1)) == 0; }

// Null stays null: memory of no bytes may be null.
char* At(const void* data, uint64_t offset) {
  if (data == nullptr) return nullptr;
  return const_cast<char*>(static_cast<const char*>(data)) + offset;
}

// Calls body(offset, size) for pieces of at most kMaxMpiBytes, which is a
// multiple of every element's size. Stops at the first that does not return
// SHERD_OK.
template <typename Body>
sherd_code ForEachPiece(uint64_t bytes, Body body) {
  for (uint64_t offset = 0; offset < bytes; offset += kMaxMpiBytes) {
    const sherd_code code =
        body(offset, std::min(bytes - offset, kMaxMpiBytes));
    if (code != SHERD_OK) return code;
  }
  return SHERD_OK;
}

class Communicator {
 public:
  // Starts MPI if necessary.
  static sherd_code Create(const sherd_comm_config_v0& config,
                           std::unique_ptr<Communicator>* made,
                           sherd_error_v0* error);
  explicit Communicator(const sherd_comm_config_v0& config)
      : rank_(config.rank), size_(config.size), kv_(config.kv) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  sherd_code Run(const sherd_op_v0& op, sherd_error_v0* error);
  void Abort();

 private:
  sherd_code Connect(const sherd_comm_config_v0& config, sherd_error_v0* error);
  // Distributes the tag of the creation to all, after all have arrived.
  sherd_code AgreeOnTag(const sherd_comm_config_v0& config, int* tag,
                        sherd_error_v0* error);
  sherd_code LookForNotices(sherd_error_v0* error);
  sherd_code RunCollective(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code RunMessage(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code Barrier(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code Broadcast(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code BroadcastAlongTree(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code AllGather(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code SmallAllGather(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code AllReduce(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code SmallAllReduce(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code AllReduceByHalves(const sherd_op_v0& op, uint64_t begin,
                               uint64_t end, sherd_error_v0* error);
  sherd_code Reduce(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code SmallReduce(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code ReduceScatter(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code AllToAllV(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code AllGatherV(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code Gather(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code Scatter(const sherd_op_v0& op, sherd_error_v0* error);

  // The k-th peer of this rank. Each rank begins with a different one, so that
  // not all send to the same rank at once.
  int Peer(int k) const { return (rank_ + k) % size_; }

  // Of a collective, in which an empty entry is not a message.
  void Send(const sherd_op_v0& op, const void* data, uint64_t bytes, int peer) {
    if (bytes == 0) return;
    batch_.Send(data, bytes, peer, kFirstOperationTag + op.op, collectives_);
  }
  void Receive(const sherd_op_v0& op, void* data, uint64_t bytes, int peer) {
    if (bytes == 0) return;
    batch_.Receive(data, bytes, peer, kFirstOperationTag + op.op, collectives_);
  }
  // sum[0, bytes) = reduction of itself and other[0, bytes).
  static void Add(const sherd_op_v0& op, const void* other, void* sum,
                  uint64_t bytes) {
    const MpiType type = TypeOf(op.dtype);
    MpiLibrary::Get().Call([&] {
      return MPI_Reduce_local(other, sum, static_cast<int>(bytes / type.size),
                              type.type, ReductionOf(op.dtype, op.reduction));
    });
  }
  sherd_code Await(const sherd_op_v0& op, sherd_error_v0* error) {
    return batch_.Await(WaitFor(op), error);
  }
  // The same for a step that waits for a rank which may itself be waiting for
  // the missing one.
  sherd_code AwaitStep(const sherd_op_v0& op, sherd_error_v0* error) {
    const sherd_code code = Await(op, error);
    if (code == SHERD_TIMEOUT) error->peer = -1;
    return code;
  }
  MpiWait WaitFor(const sherd_op_v0& op) const {
    return {.notices = collectives_,
            .kv = kv_,
            .aborted = aborted_,
            .deadline = op.deadline};
  }

  // The part that two halves of the ranks share, and where they split it.
  struct Step {
    uint64_t begin, middle, end;
  };

  const int rank_;
  const int size_;
  const sherd_kv_v0* const kv_;
  // Messages of SEND and RECV have a communicator of their own, with all tags.
  MPI_Comm collectives_ = MPI_COMM_NULL;
  MPI_Comm messages_ = MPI_COMM_NULL;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> failed_{false};
  std::atomic<int64_t> last_look_{0};
  // Of the current collective; SEND and RECV have their own.
  MpiBatch batch_;
  std::vector<char> scratch_;
  std::vector<Step> steps_;
};

sherd_code CheckWorld(const sherd_comm_config_v0& config,
                      sherd_error_v0* error) {
  const MpiLibrary& library = MpiLibrary::Get();
  const int own = config.world_ranks[config.rank];
  if (config.world_size == library.world_size() &&
      own == library.world_rank()) {
    return SHERD_OK;
  }
  return Fail(
      error, SHERD_INVALID_ARGUMENT, -1,
      ("rank " + std::to_string(own) + " of " +
       std::to_string(config.world_size) + " is rank " +
       std::to_string(library.world_rank()) + " of " +
       std::to_string(library.world_size()) +
       " for MPI, expected the same: take rank and size from the launcher")
          .c_str());
}

sherd_code Communicator::Create(const sherd_comm_config_v0& config,
                                std::unique_ptr<Communicator>* made,
                                sherd_error_v0* error) {
  MpiLibrary& library = MpiLibrary::Get();
  sherd_code code = library.Start(config.deadline, error);
  if (code == SHERD_OK) code = CheckWorld(config, error);
  if (code != SHERD_OK) return code;
  MpiLibrary::Scope scope(library);
  if (!scope.ok()) {
    return Fail(error, SHERD_SYSTEM, -1, "MPI is no longer usable");
  }
  *made = std::make_unique<Communicator>(config);
  code = (*made)->Connect(config, error);
  if (code != SHERD_OK) library.NoteFailure();
  return code;
}

sherd_code Communicator::AgreeOnTag(const sherd_comm_config_v0& config,
                                    int* tag, sherd_error_v0* error) {
  const sherd_kv_v0& kv = *config.kv;
  constexpr char kTagKey[] = "mpi/tag";
  char none = 0;
  if (rank_ != 0) {
    const std::string own = "mpi/" + std::to_string(rank_);
    sherd_code code = kv.set(kv.context, own.c_str(), &none, 1);
    if (code != SHERD_OK) return Fail(error, code, -1, "the store failed");
    uint64_t found = 0;
    code =
        kv.get(kv.context, kTagKey, config.deadline, tag, sizeof(*tag), &found);
    if (code != SHERD_OK) {
      return Fail(error, code, -1,
                  code == SHERD_PEER_LOST ? "a rank is lost"
                                          : "not all ranks came in time");
    }
    if (found == sizeof(*tag)) return SHERD_OK;
    return Fail(error, SHERD_INTERNAL, 0, "published a bad tag");
  }
  for (int peer = 1; peer < size_; ++peer) {
    const std::string key = "mpi/" + std::to_string(peer);
    uint64_t found = 0;
    const sherd_code code =
        kv.get(kv.context, key.c_str(), config.deadline, &none, 1, &found);
    if (code != SHERD_OK) return Fail(error, code, peer, "did not come");
  }
  // Groups that are made at the same time and share ranks need different tags.
  // They have different first ranks, or are made by one of them.
  static std::atomic<int> groups{0};
  constexpr int kAtATime = 256;
  const int64_t wanted = int64_t{config.world_ranks[0]} * kAtATime +
                         groups.fetch_add(1) % kAtATime;
  *tag = static_cast<int>(wanted % MpiLibrary::Get().max_tag());
  const sherd_code code = kv.set(kv.context, kTagKey, tag, sizeof(*tag));
  if (code != SHERD_OK) return Fail(error, code, -1, "the store failed");
  return SHERD_OK;
}

// Where MPI runs one call at a time only, two groups that share two ranks must
// not be made at the same time in different orders: the calls below wait for
// each other until the deadline.
sherd_code Communicator::Connect(const sherd_comm_config_v0& config,
                                 sherd_error_v0* error) {
  MpiLibrary& library = MpiLibrary::Get();
  int tag = 0;
  sherd_code code = AgreeOnTag(config, &tag, error);
  if (code != SHERD_OK) return code;
  // Both outlive a call that does not return.
  struct Made {
    MPI_Comm collectives = MPI_COMM_NULL;
    MPI_Comm messages = MPI_COMM_NULL;
  };
  const auto made = std::make_shared<Made>();
  const std::vector<int> ranks(config.world_ranks, config.world_ranks + size_);
  const auto make = [made, ranks, tag] {
    MPI_Group world = MPI_GROUP_NULL;
    MPI_Group group = MPI_GROUP_NULL;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    int result = MPI_Group_incl(world, static_cast<int>(ranks.size()),
                                ranks.data(), &group);
    MPI_Group_free(&world);
    if (result != MPI_SUCCESS) return result;
    result =
        MPI_Comm_create_group(MPI_COMM_WORLD, group, tag, &made->collectives);
    MPI_Group_free(&group);
    if (result != MPI_SUCCESS) return result;
    MPI_Comm_set_errhandler(made->collectives, MPI_ERRORS_RETURN);
    // Sets the same error handler.
    return MPI_Comm_dup(made->collectives, &made->messages);
  };
  code =
      library.CallWithin(config.deadline, make, "MPI_Comm_create_group", error);
  if (code != SHERD_OK) return code;
  collectives_ = made->collectives;
  messages_ = made->messages;
  return SHERD_OK;
}

sherd_code Communicator::Run(const sherd_op_v0& op, sherd_error_v0* error) {
  MpiLibrary::Scope scope(MpiLibrary::Get());
  if (!scope.ok()) {
    return Fail(error, SHERD_SYSTEM, -1,
                "MPI is no longer usable in this process");
  }
  if (aborted_.load()) return Fail(error, SHERD_ABORTED, -1, "aborted");
  sherd_code code = LookForNotices(error);
  if (code == SHERD_OK) {
    code = op.op == SHERD_SEND || op.op == SHERD_RECV
               ? RunMessage(op, error)
               : RunCollective(op, error);
  }
  if (code != SHERD_OK) {
    failed_.store(true);
    MpiLibrary::Get().NoteFailure();
  }
  return code;
}

// A rank that arrives late would receive the messages of ranks that gave up.
// Checks only once in a while, since a check costs as much as a small
// operation.
sherd_code Communicator::LookForNotices(sherd_error_v0* error) {
  constexpr int64_t kInterval = 1'000'000;
  const int64_t now = sherd::internal::MpiClock();
  if (now - last_look_.load(std::memory_order_relaxed) < kInterval) {
    return SHERD_OK;
  }
  last_look_.store(now, std::memory_order_relaxed);
  const int peer = sherd::internal::FindAbortNotice(collectives_);
  if (peer < 0) return SHERD_OK;
  return Fail(error, SHERD_PEER_LOST, peer, "aborted the group");
}

sherd_code Communicator::RunCollective(const sherd_op_v0& op,
                                       sherd_error_v0* error) {
  switch (op.op) {
    case SHERD_BARRIER:
      return Barrier(op, error);
    case SHERD_BROADCAST:
      return Broadcast(op, error);
    case SHERD_ALL_GATHER:
      return AllGather(op, error);
    case SHERD_ALL_TO_ALL_V:
      return AllToAllV(op, error);
    case SHERD_ALL_REDUCE:
      return AllReduce(op, error);
    case SHERD_REDUCE:
      return Reduce(op, error);
    case SHERD_REDUCE_SCATTER:
      return ReduceScatter(op, error);
    case SHERD_ALL_GATHER_V:
      return AllGatherV(op, error);
    case SHERD_GATHER:
      return Gather(op, error);
    case SHERD_SCATTER:
      return Scatter(op, error);
    default:
      return Fail(error, SHERD_UNSUPPORTED, -1, "unknown operation");
  }
}

sherd_code Communicator::RunMessage(const sherd_op_v0& op,
                                    sherd_error_v0* error) {
  if (op.tag > MpiLibrary::Get().max_tag()) {
    return Fail(error, SHERD_UNSUPPORTED, -1,
                ("this MPI has tags up to " +
                 std::to_string(MpiLibrary::Get().max_tag()))
                    .c_str());
  }
  static thread_local MpiBatch batch;
  const int tag = static_cast<int>(op.tag);
  if (op.op == SHERD_SEND) {
    batch.Send(op.in, op.bytes, op.root, tag, messages_);
  } else {
    batch.Receive(op.out, op.bytes, op.root, tag, messages_);
  }
  return batch.Await(WaitFor(op), error);
}

// Few ranks send to each other directly: the failed rank is then the one whose
// message is missing. Many use dissemination: in step i each rank receives from
// the rank 2^i before it.
sherd_code Communicator::Barrier(const sherd_op_v0& op, sherd_error_v0* error) {
  char sent = 0;
  if (size_ <= kSmallGroup) {
    char received[kSmallGroup];
    for (int k = 1; k < size_; ++k) Send(op, &sent, 1, Peer(k));
    for (int k = 1; k < size_; ++k) Receive(op, &received[k], 1, Peer(k));
    return Await(op, error);
  }
  for (int step = 1; step < size_; step *= 2) {
    char received;
    Send(op, &sent, 1, Peer(step));
    Receive(op, &received, 1, Peer(size_ - step));
    const sherd_code code = AwaitStep(op, error);
    if (code != SHERD_OK) return code;
  }
  return SHERD_OK;
}

sherd_code Communicator::Broadcast(const sherd_op_v0& op,
                                   sherd_error_v0* error) {
  if (op.bytes <= kSmallBroadcast || size_ == 2) {
    return BroadcastAlongTree(op, error);
  }
  return ForEachPiece(op.bytes, [&](uint64_t offset, uint64_t size) {
    batch_.Begin([&](MPI_Request* request) {
      return MPI_Ibcast(At(op.out, offset), static_cast<int>(size), MPI_BYTE,
                        op.root, collectives_, request);
    });
    return Await(op, error);
  });
}

// Binomial tree: in step i, the 2^i ranks that have the data forward it.
sherd_code Communicator::BroadcastAlongTree(const sherd_op_v0& op,
                                            sherd_error_v0* error) {
  const int position = (rank_ - op.root + size_) % size_;
  int step = 1;
  while (step <= position) step *= 2;
  if (position > 0) {
    const int parent = position - step / 2;
    Receive(op, op.out, op.bytes, (parent + op.root) % size_);
    const sherd_code code = AwaitStep(op, error);
    if (code != SHERD_OK) return code;
  }
  for (; position + step < size_; step *= 2) {
    Send(op, op.out, op.bytes, (position + step + op.root) % size_);
  }
  return AwaitStep(op, error);
}

sherd_code Communicator::AllGather(const sherd_op_v0& op,
                                   sherd_error_v0* error) {
  const bool few = size_ <= kSmallGroup;
  if (size_ > 2 && op.bytes <= kSmallAllGather &&
      (few || IsPowerOfTwo(size_))) {
    return SmallAllGather(op, error);
  }
  if (size_ > 2 && op.bytes <= kMaxMpiBytes) {
    const int count = static_cast<int>(op.bytes);
    batch_.Begin([&](MPI_Request* request) {
      return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, op.out, count,
                            MPI_BYTE, collectives_, request);
    });
    return Await(op, error);
  }
  for (int k = 1; k < size_; ++k) Send(op, op.in, op.bytes, Peer(k));
  for (int k = 1; k < size_; ++k) {
    const int from = Peer(size_ - k);
    Receive(op, At(op.out, from * op.bytes), op.bytes, from);
  }
  return Await(op, error);
}

// Nothing is written before all ranks have arrived.
sherd_code Communicator::SmallAllGather(const sherd_op_v0& op,
                                        sherd_error_v0* error) {
  scratch_.resize(std::max<size_t>(scratch_.size(), size_ * op.bytes));
  char* const blocks = scratch_.data();
  std::memcpy(blocks + rank_ * op.bytes, op.in, op.bytes);
  if (IsPowerOfTwo(size_)) {
    // Recursive doubling: partners exchange all that they have.
    for (int step = 1; step < size_; step *= 2) {
      const int peer = rank_ ^ step;
      Send(op, blocks + rank_ / step * step * op.bytes, step * op.bytes, peer);
      Receive(op, blocks + peer / step * step * op.bytes, step * op.bytes,
              peer);
      const sherd_code code = AwaitStep(op, error);
      if (code != SHERD_OK) return code;
    }
  } else {
    for (int k = 1; k < size_; ++k) Send(op, op.in, op.bytes, Peer(k));
    for (int k = 1; k < size_; ++k) {
      const int from = Peer(size_ - k);
      Receive(op, blocks + from * op.bytes, op.bytes, from);
    }
    const sherd_code code = Await(op, error);
    if (code != SHERD_OK) return code;
  }
  std::memcpy(op.out, blocks, size_ * op.bytes);
  return SHERD_OK;
}

sherd_code Communicator::AllReduce(const sherd_op_v0& op,
                                   sherd_error_v0* error) {
  if (op.bytes <= (size_ == 2 ? kSmallAllReduceOfTwo : kSmallAllReduce)) {
    return SmallAllReduce(op, error);
  }
  if (size_ <= kSmallGroup && IsPowerOfTwo(size_)) {
    // Small enough to stay in the cache between its steps.
    constexpr uint64_t kBlock = 2 << 20;
    for (uint64_t begin = 0; begin < op.bytes; begin += kBlock) {
      const uint64_t end = std::min(op.bytes, begin + kBlock);
      const sherd_code code = AllReduceByHalves(op, begin, end, error);
      if (code != SHERD_OK) return code;
    }
    return SHERD_OK;
  }
  const MpiType type = TypeOf(op.dtype);
  const MPI_Op reduction = ReductionOf(op.dtype, op.reduction);
  return ForEachPiece(op.bytes, [&](uint64_t offset, uint64_t size) {
    const void* const in = op.in == op.out ? MPI_IN_PLACE : At(op.in, offset);
    batch_.Begin([&](MPI_Request* request) {
      return MPI_Iallreduce(in, At(op.out, offset),
                            static_cast<int>(size / type.size), type.type,
                            reduction, collectives_, request);
    });
    return Await(op, error);
  });
}

// Recursive doubling. Both partners add the same two values, so that all ranks
// end with the same bits. Ranks beyond a power of two send theirs to another
// rank before, and receive the result after. Nothing is written before all
// ranks have arrived.
sherd_code Communicator::SmallAllReduce(const sherd_op_v0& op,
                                        sherd_error_v0* error) {
  scratch_.resize(std::max<size_t>(scratch_.size(), 2 * op.bytes));
  char* const sum = scratch_.data();
  char* const other = sum + op.bytes;
  int doubling = 1;
  while (2 * doubling <= size_) doubling *= 2;
  const int partner = rank_ ^ doubling;
  const bool is_extra = rank_ >= doubling;
  const bool has_extra = !is_extra && partner < size_;
  std::memcpy(sum, op.in, op.bytes);
  sherd_code code = SHERD_OK;
  if (is_extra) {
    Send(op, sum, op.bytes, partner);
    Receive(op, other, op.bytes, partner);
    code = AwaitStep(op, error);
    if (code == SHERD_OK) std::memcpy(op.out, other, op.bytes);
    return code;
  }
  if (has_extra) {
    Receive(op, other, op.bytes, partner);
    code = AwaitStep(op, error);
    if (code != SHERD_OK) return code;
    Add(op, other, sum, op.bytes);
  }
  for (int step = 1; step < doubling; step *= 2) {
    const int peer = rank_ ^ step;
    Send(op, sum, op.bytes, peer);
    Receive(op, other, op.bytes, peer);
    code = AwaitStep(op, error);
    if (code != SHERD_OK) return code;
    Add(op, other, sum, op.bytes);
  }
  if (has_extra) {
    Send(op, sum, op.bytes, partner);
    code = AwaitStep(op, error);
  }
  if (code == SHERD_OK) std::memcpy(op.out, sum, op.bytes);
  return code;
}

// Of the bytes [begin, end). Recursive halving: partners split what they share,
// each adds up its half; then the same steps backwards, to hand out the sums.
// R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
// Communication Operations in MPICH", 2005.
sherd_code Communicator::AllReduceByHalves(const sherd_op_v0& op,
                                           uint64_t begin, uint64_t end,
                                           sherd_error_v0* error) {
  const MpiType type = TypeOf(op.dtype);
  scratch_.resize(std::max<size_t>(scratch_.size(), (end - begin) / 2 + 16));
  // Address of the values: the first step adds this rank's to those that
  // arrive, which saves a copy.
  const void* values = op.in;
  steps_.clear();
  for (int step = size_ / 2; step > 0; step /= 2) {
    const int peer = rank_ ^ step;
    const uint64_t middle = begin + (end - begin) / type.size / 2 * type.size;
    steps_.push_back({begin, middle, end});
    const bool first = (rank_ & step) == 0;
    Send(op, At(values, first ? middle : begin),
         first ? end - middle : middle - begin, peer);
    (first ? end : begin) = middle;
    char* const sum = At(op.out, begin);
    const bool stay = values == op.out;
    Receive(op, stay ? scratch_.data() : sum, end - begin, peer);
    const sherd_code code = AwaitStep(op, error);
    if (code != SHERD_OK) return code;
    Add(op, stay ? scratch_.data() : At(values, begin), sum, end - begin);
    values = op.out;
  }
  for (int step = 1; step < size_; step *= 2) {
    const int peer = rank_ ^ step;
    const Step whole = steps_.back();
    steps_.pop_back();
    const bool first = (rank_ & step) == 0;
    Send(op, At(op.out, begin), end - begin, peer);
    Receive(op, At(op.out, first ? whole.middle : whole.begin),
            first ? whole.end - whole.middle : whole.middle - whole.begin,
            peer);
    const sherd_code code = AwaitStep(op, error);
    if (code != SHERD_OK) return code;
    begin = whole.begin;
    end = whole.end;
  }
  return SHERD_OK;
}

sherd_code Communicator::Reduce(const sherd_op_v0& op, sherd_error_v0* error) {
  const MpiType type = TypeOf(op.dtype);
  const MPI_Op reduction = ReductionOf(op.dtype, op.reduction);
  const bool is_root = rank_ == op.root;
  if (op.bytes <= kSmallReduce && size_ <= kSmallGroup) {
    return SmallReduce(op, error);
  }
  return ForEachPiece(op.bytes, [&](uint64_t offset, uint64_t size) {
    const void* const in =
        is_root && op.in == op.out ? MPI_IN_PLACE : At(op.in, offset);
    batch_.Begin([&](MPI_Request* request) {
      return MPI_Ireduce(in, is_root ? At(op.out, offset) : nullptr,
                         static_cast<int>(size / type.size), type.type,
                         reduction, op.root, collectives_, request);
    });
    return Await(op, error);
  });
}

// All ranks send to root.
sherd_code Communicator::SmallReduce(const sherd_op_v0& op,
                                     sherd_error_v0* error) {
  if (rank_ != op.root) {
    Send(op, op.in, op.bytes, op.root);
    return Await(op, error);
  }
  scratch_.resize(std::max<size_t>(scratch_.size(), size_ * op.bytes));
  for (int k = 1; k < size_; ++k) {
    Receive(op, scratch_.data() + k * op.bytes, op.bytes, Peer(k));
  }
  const sherd_code code = Await(op, error);
  if (code != SHERD_OK) return code;
  if (op.in != op.out) std::memcpy(op.out, op.in, op.bytes);
  for (int k = 1; k < size_; ++k) {
    Add(op, scratch_.data() + k * op.bytes, op.out, op.bytes);
  }
  return SHERD_OK;
}

// In step k each rank sends the block of the rank k behind it and adds the
// block that it receives from the rank k before it. Not
// MPI_Ireduce_scatter_block: the blocks need not be contiguous.
sherd_code Communicator::ReduceScatter(const sherd_op_v0& op,
                                       sherd_error_v0* error) {
  // Small enough to be still in the cache when it is added.
  static constexpr uint64_t kPiece = 256 << 10;
  scratch_.resize(
      std::max<size_t>(scratch_.size(), std::min(op.bytes, kPiece)));
  if (op.out != op.sends[rank_].data && op.bytes > 0) {
    std::memcpy(op.out, op.sends[rank_].data, op.bytes);
  }
  const auto piece = [](uint64_t bytes, uint64_t offset) {
    return std::min(kPiece, bytes - std::min(bytes, offset));
  };
  for (int k = 1; k < size_; ++k) {
    // Blocks of different ranks need not have one length.
    const sherd_bytes_v0& send = op.sends[Peer(k)];
    const uint64_t longer = std::max(send.size, op.bytes);
    for (uint64_t offset = 0; offset < longer; offset += kPiece) {
      const uint64_t size = piece(op.bytes, offset);
      Send(op, At(send.data, offset), piece(send.size, offset), Peer(k));
      Receive(op, scratch_.data(), size, Peer(size_ - k));
      const sherd_code code = AwaitStep(op, error);
      if (code != SHERD_OK) return code;
      if (size > 0) Add(op, scratch_.data(), At(op.out, offset), size);
    }
  }
  return SHERD_OK;
}

sherd_code Communicator::AllToAllV(const sherd_op_v0& op,
                                   sherd_error_v0* error) {
  for (int k = 1; k < size_; ++k) {
    const int to = Peer(k);
    Send(op, op.sends[to].data, op.sends[to].size, to);
  }
  for (int k = 1; k < size_; ++k) {
    const int from = Peer(size_ - k);
    Receive(op, op.recvs[from].data, op.recvs[from].size, from);
  }
  return Await(op, error);
}

sherd_code Communicator::AllGatherV(const sherd_op_v0& op,
                                    sherd_error_v0* error) {
  for (int k = 1; k < size_; ++k) Send(op, op.in, op.bytes, Peer(k));
  for (int k = 1; k < size_; ++k) {
    const int from = Peer(size_ - k);
    Receive(op, op.recvs[from].data, op.recvs[from].size, from);
  }
  return Await(op, error);
}

sherd_code Communicator::Gather(const sherd_op_v0& op, sherd_error_v0* error) {
  if (rank_ != op.root) {
    Send(op, op.in, op.bytes, op.root);
  } else {
    for (int k = 1; k < size_; ++k) {
      const int from = Peer(k);
      Receive(op, op.recvs[from].data, op.recvs[from].size, from);
    }
  }
  return Await(op, error);
}

sherd_code Communicator::Scatter(const sherd_op_v0& op, sherd_error_v0* error) {
  if (rank_ != op.root) {
    Receive(op, op.out, op.bytes, op.root);
  } else {
    for (int k = 1; k < size_; ++k) {
      const int to = Peer(k);
      Send(op, op.sends[to].data, op.sends[to].size, to);
    }
  }
  return Await(op, error);
}

void Communicator::Abort() {
  MpiLibrary& library = MpiLibrary::Get();
  library.NoteFailure();
  if (aborted_.exchange(true)) return;
  MpiLibrary::Scope scope(library);
  if (!scope.ok()) return;
  for (int k = 1; k < size_; ++k) {
    library.Call([&] {
      MPI_Request request = MPI_REQUEST_NULL;
      const int result = MPI_Isend(nullptr, 0, MPI_BYTE, Peer(k), kAbortTag,
                                   collectives_, &request);
      if (result == MPI_SUCCESS) MPI_Request_free(&request);
      return result;
    });
  }
}

// MPI does not notify others that a rank has left; the store does.
// Communicators are not freed (a process can have tens of thousands):
// MPI_Comm_free is collective, and leaving is not. A message to a rank that has
// freed one would be taken for a message of the next communicator with the same
// number.
Communicator::~Communicator() {
  if (messages_ == MPI_COMM_NULL) return;  // It has never joined.
  sherd::plugin::GuardQuietly([this] {
    const char none = 0;
    kv_->set(kv_->context, sherd::internal::MpiLeftKey(rank_).c_str(), &none,
             1);
  });
}

// "Open MPI v4.1.4", without what follows.
const char* LibraryVersion() {
  static const std::string* const version = [] {
    char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = {};
    int length = 0;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = '\0';
    return new std::string(text);
  }();
  return version->c_str();
}

sherd_code Probe(sherd_error_v0* error) {
  if (MpiLibrary::HasLauncher()) return SHERD_OK;
  return Fail(error, SHERD_UNSUPPORTED, -1,
              "this process was not started by MPI's launcher and would be a "
              "world of its own: start the ranks with mpirun -n N PROGRAM, or "
              "with srun --mpi=pmix");
}

sherd_code Bootstrap(int32_t* rank, int32_t* world_size, void* blob,
                     uint64_t size, int64_t deadline, sherd_error_v0* error) {
  return Guard(error, [&]() -> sherd_code {
    MpiLibrary& library = MpiLibrary::Get();
    sherd_code code = library.Start(deadline, error);
    if (code != SHERD_OK) return code;
    *rank = library.world_rank();
    *world_size = library.world_size();
    if (blob == nullptr || size == 0) return SHERD_OK;
    MpiLibrary::Scope scope(library);
    const std::atomic<bool> never{false};
    MpiBatch batch;
    batch.Begin([&](MPI_Request* request) {
      return MPI_Ibcast(blob, static_cast<int>(size), MPI_BYTE, 0,
                        MPI_COMM_WORLD, request);
    });
    return batch.Await({.notices = MPI_COMM_NULL,
                        .kv = nullptr,
                        .aborted = never,
                        .deadline = deadline},
                       error);
  });
}

constexpr uint32_t kNumeric =
    1u << SHERD_SUM | 1u << SHERD_PRODUCT | 1u << SHERD_MIN | 1u << SHERD_MAX;
constexpr uint32_t kBitwise =
    1u << SHERD_BAND | 1u << SHERD_BOR | 1u << SHERD_BXOR;
// Of 8 and 16 bits. Open MPI's vector code sums them with saturation.
constexpr uint32_t kSmallInteger = (kNumeric | kBitwise) & ~(1u << SHERD_SUM);

constexpr sherd_plugin_v0 kPlugin = sherd::plugin::BackendTable<Communicator>(
    {.name = "mpi",
     .operations = sherd::plugin::kAllOperations,
     .flags = SHERD_NEEDS_LAUNCHER | SHERD_DIES_TOGETHER,
     .library_version = LibraryVersion,
     .probe = Probe,
     .reductions = {kNumeric | kBitwise, kSmallInteger, kSmallInteger,
                    kSmallInteger, kSmallInteger, kNumeric | kBitwise,
                    kNumeric | kBitwise, kNumeric | kBitwise,
                    kNumeric | kBitwise,
                    // MPI has no floats of 8 and 16 bits.
                    0, 0, 0, 0, kNumeric, kNumeric,
                    1u << SHERD_SUM | 1u << SHERD_PRODUCT,
                    1u << SHERD_SUM | 1u << SHERD_PRODUCT},
     .bootstrap = Bootstrap});

}  // namespace

SHERD_BACKEND_PLUGIN(kPlugin)
