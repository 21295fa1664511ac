// The communicator's calls of NCCL, and its reaction to the results: NCCL is
// the emulated one, with a plan.

#include "sherd/backends/nccl/nccl_communicator.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/backends/nccl/memory_kv.h"
#include "sherd/backends/nccl/nccl_api.h"
#include "sherd/backends/nccl/nccl_library.h"
#include "sherd/backends/nccl/planned_nccl.h"
#include "sherd/backends/nccl/run_with_deadline.h"
#include "sherd/testing/kits/rank_threads.h"

namespace sherd::internal {
namespace {

using sherd::testing::AddressText;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kSecond = 1'000'000'000;

std::atomic<int> warnings{0};

const sherd_host_v0 kHost = {.struct_size = sizeof(sherd_host_v0),
                             .major = SHERD_ABI_MAJOR,
                             .minor = SHERD_ABI_MINOR,
                             .log = [](int32_t, const char*) { ++warnings; },
                             .now = NcclClock};

class Error : public sherd_error_v0 {
 public:
  Error() : sherd_error_v0{.struct_size = sizeof(sherd_error_v0), .peer = -1} {}
};

// A place where threads wait for a test.
class Gate {
 public:
  void Open() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void Await() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

sherd_comm_config_v0 ConfigOf(const MemoryKv& kv, int rank, int size,
                              const char* device_id = nullptr) {
  return {.struct_size = sizeof(sherd_comm_config_v0),
          .rank = rank,
          .size = size,
          .group = "test",
          .kv = kv.table(),
          .deadline = NcclClock() + 60 * kSecond,
          .device_id = device_id};
}

// One rank's part of a creation.
struct Created {
  std::shared_ptr<NcclCommunicator> comm;
  sherd_code code = SHERD_INTERNAL;
  Error error;
};

class NcclCommunicatorTest : public ::testing::Test {
 protected:
  NcclCommunicatorTest() : library_(nccl_.Library()) { warnings = 0; }

  // All ranks at once; `change` may alter what a rank brings.
  struct Rank {
    NcclLibrary library;
    sherd_comm_config_v0 config;
  };
  std::vector<Created> CreateAll(
      int size, std::function<void(int, Rank&)> change = nullptr) {
    std::vector<Created> created(size);
    ranks_.resize(size);
    for (int r = 0; r < size; ++r) {
      ranks_[r] = {library_, ConfigOf(kv_, r, size)};
      if (change != nullptr) change(r, ranks_[r]);
    }
    testing::RunRankThreads(size, [&](int r) {
      created[r].code =
          NcclCommunicator::Create(ranks_[r].library, kHost, ranks_[r].config,
                                   &created[r].comm, &created[r].error);
    });
    return created;
  }

  // Rank 1 of 3 alone, as if the others were there.
  std::shared_ptr<NcclCommunicator> CreateOne() {
    std::vector<Created> created = CreateAll(3);
    for (const Created& rank : created) EXPECT_EQ(rank.code, SHERD_OK);
    nccl_.ForgetCalls();
    return created[1].comm;
  }

  PlannedNccl nccl_;
  NcclLibrary library_;
  MemoryKv kv_;
  std::vector<Rank> ranks_;
};

std::string TextOf(const sherd_error_v0& error) { return error.text; }

// Of device 0, whose context is current then.
void* DeviceMemory(size_t bytes) {
  const CudaFunctions& cuda = sherd::testing::LinkedCuda();
  CUcontext context = nullptr;
  CUdeviceptr data = 0;
  EXPECT_EQ(cuda.Init(0), kCudaSuccess);
  EXPECT_EQ(cuda.DevicePrimaryCtxRetain(&context, 0), kCudaSuccess);
  EXPECT_EQ(cuda.CtxSetCurrent(context), kCudaSuccess);
  EXPECT_EQ(cuda.MemAlloc(&data, bytes), kCudaSuccess);
  return reinterpret_cast<void*>(data);
}

TEST_F(NcclCommunicatorTest, ManagesOneThatPollsAndOperatesOnOneThatBlocks) {
  std::vector<Created> created = CreateAll(3);
  for (int r = 0; r < 3; ++r) {
    ASSERT_EQ(created[r].code, SHERD_OK) << created[r].error.text;
    EXPECT_EQ(nccl_.Count(absl::StrCat("ncclCommInitRankConfig(rank ", r,
                                       " of 3, 1 ids, non-blocking:")),
              1);
    EXPECT_EQ(nccl_.Count(absl::StrCat("ncclCommSplit(base ", r,
                                       ", color 0, key ", r, ", blocking)")),
              1);
  }
  EXPECT_EQ(nccl_.Count("ncclGetUniqueId"), 1);
  EXPECT_EQ(nccl_.num_ids(), 1);
}

TEST_F(NcclCommunicatorTest, NeedsNoPeerForAGroupOfOne) {
  std::vector<Created> created =
      CreateAll(1, [](int, Rank& rank) { rank.config.kv = nullptr; });
  EXPECT_EQ(created[0].code, SHERD_OK) << created[0].error.text;
}

TEST_F(NcclCommunicatorTest, GivesManyRanksSeveralIds) {
  std::vector<Created> created = CreateAll(130);
  for (const Created& rank : created) ASSERT_EQ(rank.code, SHERD_OK);
  EXPECT_EQ(nccl_.Count("ncclGetUniqueId"), 2);
  EXPECT_EQ(nccl_.Count("ncclCommInitRankScalable(rank 129 of 130, 2 ids"), 1);
  EXPECT_EQ(nccl_.num_ids(), 2);
}

TEST_F(NcclCommunicatorTest, GivesThemOneWhereNcclKnowsNoMore) {
  library_.api.comm_init_rank_scalable = nullptr;
  std::vector<Created> created = CreateAll(130);
  for (const Created& rank : created) ASSERT_EQ(rank.code, SHERD_OK);
  EXPECT_EQ(nccl_.num_ids(), 1);
}

TEST_F(NcclCommunicatorTest, NotifiesAllRanksOfAnotherVersion) {
  std::vector<Created> created = CreateAll(3, [](int r, Rank& rank) {
    if (r == 2) rank.library.version = NcclVersion(2, 30, 7);
  });
  for (const Created& rank : created) {
    EXPECT_EQ(rank.code, SHERD_INVALID_ARGUMENT);
    EXPECT_EQ(rank.error.peer, 2);
    EXPECT_EQ(TextOf(rank.error),
              "has NCCL 2.30.7, rank 0 has NCCL 2.28.9: all ranks need the "
              "same one");
  }
  EXPECT_EQ(nccl_.Count("nccl"), 0);
}

TEST_F(NcclCommunicatorTest, NotifiesAllRanksThatOneHasNoNccl) {
  for (int missing : {0, 1}) {
    MemoryKv kv;
    std::vector<Created> created = CreateAll(2, [&](int r, Rank& rank) {
      rank.config.kv = kv.table();
      if (r == missing) rank.library = {.nccl_problem = "no NCCL: tried all"};
    });
    for (const Created& rank : created) {
      EXPECT_EQ(rank.code, SHERD_UNSUPPORTED);
      EXPECT_EQ(rank.error.peer, missing);
      EXPECT_EQ(TextOf(rank.error), "no NCCL: tried all");
    }
  }
}

TEST_F(NcclCommunicatorTest, NamesTheRankThatDoesNotCome) {
  Error error;
  std::shared_ptr<NcclCommunicator> comm;
  sherd_comm_config_v0 config = ConfigOf(kv_, 0, 3);
  config.deadline = NcclClock() + kSecond / 100;
  EXPECT_EQ(NcclCommunicator::Create(library_, kHost, config, &comm, &error),
            SHERD_TIMEOUT);
  EXPECT_EQ(error.peer, 1);
  EXPECT_EQ(TextOf(error), "did not come");

  // A rank that arrives later receives the error.
  config = ConfigOf(kv_, 2, 3);
  EXPECT_EQ(NcclCommunicator::Create(library_, kHost, config, &comm, &error),
            SHERD_TIMEOUT);
  EXPECT_EQ(error.peer, 1);
  EXPECT_EQ(nccl_.Count("nccl"), 0);
}

TEST_F(NcclCommunicatorTest, DoesNotTrustTheContentsOfTheStore) {
  for (const std::string& junk :
       {std::string(), std::string("x"), std::string(4096, '\xff')}) {
    MemoryKv kv;
    kv.Put("nccl/1", junk);
    Error error;
    std::shared_ptr<NcclCommunicator> comm;
    EXPECT_EQ(NcclCommunicator::Create(library_, kHost, ConfigOf(kv, 0, 2),
                                       &comm, &error),
              SHERD_INTERNAL);
    EXPECT_EQ(error.peer, 1);
    EXPECT_THAT(error.text, HasSubstr("expected a record of"));
  }
  CreateAll(2);
  MemoryKv kv;
  kv.Put("nccl/outcome", std::string(kv_.Find("nccl/outcome").size(), '\x7f'));
  Error error;
  std::shared_ptr<NcclCommunicator> comm;
  EXPECT_EQ(NcclCommunicator::Create(library_, kHost, ConfigOf(kv, 1, 2), &comm,
                                     &error),
            SHERD_INTERNAL);
}

TEST_F(NcclCommunicatorTest, LetsNcclJudgeASharedDeviceAndExplainsItsError) {
  const auto share = [](int r, Rank& rank) {
    rank.config.device_id = r == 1 ? "0000:42:00.0" : "0000:41:00.0";
  };
  std::vector<Created> created = CreateAll(3, share);
  for (const Created& rank : created) EXPECT_EQ(rank.code, SHERD_OK);

  // The first rank to ask is refused; the others would wait for it.
  nccl_.NeverReady();
  nccl_.Return("ncclCommInitRankConfig", kNcclInvalidUsage);
  nccl_.SetLastError("Duplicate GPU detected\n");
  MemoryKv kv;
  created = CreateAll(3, [&](int r, Rank& rank) {
    share(r, rank);
    rank.config.kv = kv.table();
  });
  int refused = 0;
  for (const Created& rank : created) {
    EXPECT_EQ(rank.code, SHERD_INTERNAL);
    refused += rank.error.peer < 0 ? 1 : 0;
    EXPECT_THAT(
        rank.error.text,
        AllOf(HasSubstr("ranks 0 and 2 use one GPU, 0000:41:00.0: give each "
                        "rank its own; "),
              HasSubstr("invalid usage: Duplicate GPU detected")));
  }
  EXPECT_EQ(refused, 1);
}

TEST_F(NcclCommunicatorTest, CutsWordsThatAreTooLong) {
  const std::string device(300, 'd');
  const std::string problem(300, 'p');
  std::vector<Created> created = CreateAll(
      2, [&](int, Rank& rank) { rank.config.device_id = device.c_str(); });
  for (const Created& rank : created) {
    EXPECT_EQ(rank.code, SHERD_OK) << rank.error.text;
  }
  MemoryKv kv;
  created = CreateAll(2, [&](int r, Rank& rank) {
    rank.config.kv = kv.table();
    if (r == 1) rank.library.nccl_problem = problem;
  });
  for (const Created& rank : created) {
    EXPECT_EQ(TextOf(rank.error), std::string(191, 'p'));
  }
}

TEST_F(NcclCommunicatorTest, AbortsItsCommunicatorWhenAnotherRankFails) {
  nccl_.NeverReady();
  nccl_.Return("ncclCommInitRankConfig", kNcclUnhandledCudaError, 1);
  nccl_.SetLastError("Failed to CUDA calloc: out of memory");
  std::vector<Created> created = CreateAll(3);
  for (const Created& rank : created) {
    EXPECT_EQ(rank.code, SHERD_RESOURCE);
    EXPECT_THAT(rank.error.text,
                HasSubstr("unhandled cuda error: Failed to CUDA calloc"));
    EXPECT_EQ(rank.comm, nullptr);
  }
  EXPECT_EQ(nccl_.Count("ncclCommAbort(base"), 2);
}

TEST_F(NcclCommunicatorTest, NotifiesAllRanksThatThereIsNoId) {
  nccl_.Return("ncclGetUniqueId", kNcclSystemError);
  std::vector<Created> created = CreateAll(2);
  for (const Created& rank : created) {
    EXPECT_EQ(rank.code, SHERD_SYSTEM);
    EXPECT_EQ(rank.error.peer, 0);
    EXPECT_THAT(rank.error.text, HasSubstr("ncclGetUniqueId"));
  }
}

TEST_F(NcclCommunicatorTest, GivesUpAtTheDeadline) {
  nccl_.NeverReady();
  std::vector<Created> created = CreateAll(2, [](int, Rank& rank) {
    rank.config.deadline = NcclClock() + kSecond / 20;
  });
  for (const Created& rank : created) {
    EXPECT_EQ(rank.code, SHERD_TIMEOUT);
    EXPECT_EQ(TextOf(rank.error), "ncclCommInitRankConfig did not end in time");
  }
  EXPECT_EQ(nccl_.Count("ncclCommAbort(base"), 2);
}

// Blocks of memory at made-up addresses.
sherd_bytes_v0 Bytes(uintptr_t address, uint64_t size) {
  return {reinterpret_cast<void*>(address), size};
}

struct OperationCase {
  const char* name;
  sherd_op_v0 op;
  std::vector<std::string> calls;
};

void* At(uintptr_t address) { return reinterpret_cast<void*>(address); }

const sherd_bytes_v0 kUneven[] = {Bytes(16, 5), Bytes(32, 6), Bytes(48, 0)};
const sherd_bytes_v0 kUnevenOut[] = {Bytes(116, 7), Bytes(132, 6),
                                     Bytes(148, 9)};
const sherd_bytes_v0 kEven[] = {Bytes(16, 8), Bytes(24, 8), Bytes(32, 8)};
const sherd_bytes_v0 kFloats[] = {Bytes(16, 8), Bytes(32, 0), Bytes(48, 12)};
const sherd_bytes_v0 kNothing[] = {Bytes(16, 0), Bytes(16, 0), Bytes(16, 0)};

// As rank 1 of 3.
// NOLINTNEXTLINE(readability-function-size): a table.
std::vector<OperationCase> OperationCases() {
  const auto reduction = [](int32_t op, int32_t dtype, int32_t how) {
    return sherd_op_v0{.struct_size = sizeof(sherd_op_v0),
                       .op = op,
                       .root = 2,
                       .in = At(8),
                       .out = At(64),
                       .bytes = 48,
                       .dtype = dtype,
                       .reduction = how};
  };
  const auto with_blocks = [](sherd_op_v0 op, const sherd_bytes_v0* sends,
                              const sherd_bytes_v0* recvs, uint32_t flags = 0) {
    op.sends = sends;
    op.recvs = recvs;
    op.flags = flags;
    op.stream = At(9);
    return op;
  };
  const sherd_op_v0 all_to_all = {.op = SHERD_ALL_TO_ALL_V};
  const sherd_op_v0 reduce_scatter =
      reduction(SHERD_REDUCE_SCATTER, SHERD_FLOAT32, SHERD_SUM);
  return {
      {"Barrier",
       {.op = SHERD_BARRIER, .out = At(4), .bytes = 16},
       {"ncclAllReduce(work 1, @4 to @4, 1 of type 2, op 2)"}},
      {"Broadcast",
       {.op = SHERD_BROADCAST, .root = 2, .out = At(4), .bytes = 7},
       {"ncclBroadcast(work 1, @4 to @4, 7 of type 1, root 2)"}},
      {"AllGatherInPlace",
       {.op = SHERD_ALL_GATHER, .in = At(8), .out = At(100), .bytes = 10},
       {"ncclAllGather(work 1, @110 to @100, 10 of type 1)"}},
      {"AllToAllWithoutEmptyAndOwn",
       with_blocks(all_to_all, kUneven, kUnevenOut),
       {"ncclGroupStart()",
        "ncclRecv(work 1, @148, 9 of type 1, from 2, stream @9)",
        "ncclSend(work 1, @16, 5 of type 1, to 0, stream @9)",
        "ncclRecv(work 1, @116, 7 of type 1, from 0, stream @9)",
        "ncclGroupEnd()"}},
      {"AllReduce",
       reduction(SHERD_ALL_REDUCE, SHERD_FLOAT32, SHERD_SUM),
       {"ncclAllReduce(work 1, @8 to @64, 12 of type 7, op 0)"}},
      {"AllReduceAverageOfBfloat16",
       reduction(SHERD_ALL_REDUCE, SHERD_BFLOAT16, SHERD_AVG),
       {"ncclAllReduce(work 1, @8 to @64, 24 of type 9, op 4)"}},
      {"AllReduceOfBoolIsTheGreatest",
       reduction(SHERD_ALL_REDUCE, SHERD_BOOL, SHERD_SUM),
       {"ncclAllReduce(work 1, @8 to @64, 48 of type 1, op 2)"}},
      {"AllReduceOfComplexAsFloats",
       reduction(SHERD_ALL_REDUCE, SHERD_COMPLEX128, SHERD_SUM),
       {"ncclAllReduce(work 1, @8 to @64, 6 of type 8, op 0)"}},
      {"Reduce",
       reduction(SHERD_REDUCE, SHERD_INT64, SHERD_MIN),
       {"ncclReduce(work 1, @8 to @64, 6 of type 4, op 3, root 2)"}},
      {"ReduceScatterOfEqualBlocks",
       with_blocks(reduce_scatter, kEven, nullptr, SHERD_OP_EVEN),
       {"ncclReduceScatter(work 1, @16 to @64, 2 of type 7, op 0)"}},
      {"ReduceScatterOfUnequalBlocks",
       with_blocks(reduce_scatter, kFloats, nullptr),
       {"ncclGroupStart()",
        "ncclReduce(work 1, @16 to @0, 2 of type 7, op 0, root 0)",
        "ncclReduce(work 1, @48 to @0, 3 of type 7, op 0, root 2)",
        "ncclGroupEnd()"}},
      {"ReduceScatterOfNothing",
       with_blocks(reduce_scatter, kNothing, nullptr, SHERD_OP_EVEN),
       {}},
      {"AllGatherVOfEqualBlocks",
       with_blocks({.op = SHERD_ALL_GATHER_V}, nullptr, kEven, SHERD_OP_EVEN),
       {"ncclAllGather(work 1, @24 to @16, 8 of type 1)"}},
      {"AllGatherVOfUnequalBlocks",
       with_blocks({.op = SHERD_ALL_GATHER_V}, nullptr, kUneven),
       {"ncclGroupStart()",
        "ncclBroadcast(work 1, @16 to @16, 5 of type 1, root 0)",
        "ncclBroadcast(work 1, @32 to @32, 6 of type 1, root 1)",
        "ncclGroupEnd()"}},
      {"AllGatherVOfNothing",
       with_blocks({.op = SHERD_ALL_GATHER_V}, nullptr, kNothing,
                   SHERD_OP_EVEN),
       {}},
      {"GatherToAnother",
       {.op = SHERD_GATHER, .root = 0, .in = At(8), .bytes = 5},
       {"ncclSend(work 1, @8, 5 of type 1, to 0, stream @0)"}},
      {"GatherNothingToAnother", {.op = SHERD_GATHER, .root = 0}, {}},
      {"GatherHere",
       with_blocks({.op = SHERD_GATHER, .root = 1}, nullptr, kUnevenOut),
       {"ncclGroupStart()",
        "ncclRecv(work 1, @148, 9 of type 1, from 2, stream @9)",
        "ncclRecv(work 1, @116, 7 of type 1, from 0, stream @9)",
        "ncclGroupEnd()"}},
      {"ScatterFromAnother",
       {.op = SHERD_SCATTER, .root = 0, .out = At(8), .bytes = 5},
       {"ncclRecv(work 1, @8, 5 of type 1, from 0, stream @0)"}},
      {"ScatterFromHere",
       with_blocks({.op = SHERD_SCATTER, .root = 1}, kUneven, nullptr),
       {"ncclGroupStart()",
        "ncclSend(work 1, @16, 5 of type 1, to 0, stream @9)",
        "ncclGroupEnd()"}},
      {"Send",
       {.op = SHERD_SEND, .root = 2, .in = At(8), .bytes = 3, .stream = At(7)},
       {"ncclSend(work 1, @8, 3 of type 1, to 2, stream @7)"}},
      {"SendNothing",
       {.op = SHERD_SEND, .root = 2},
       {"ncclSend(work 1, @0, 0 of type 1, to 2, stream @0)"}},
      {"Receive",
       {.op = SHERD_RECV, .root = 2, .out = At(8), .bytes = 3},
       {"ncclRecv(work 1, @8, 3 of type 1, from 2, stream @0)"}},
  };
}

TEST_F(NcclCommunicatorTest, PassesEachOperationToNccl) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  for (const OperationCase& test : OperationCases()) {
    SCOPED_TRACE(test.name);
    nccl_.ForgetCalls();
    Error error;
    EXPECT_EQ(comm->Post(test.op, &error), SHERD_OK) << error.text;
    EXPECT_EQ(nccl_.calls(), test.calls);
  }
}

TEST_F(NcclCommunicatorTest, RefusesOperationsThatNcclLacks) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  for (const sherd_op_v0& op :
       {sherd_op_v0{.op = SHERD_NUM_OPERATIONS}, sherd_op_v0{.op = -1},
        sherd_op_v0{.op = SHERD_ALL_REDUCE,
        .dtype = SHERD_INT16,
        .reduction = SHERD_SUM},
        sherd_op_v0{.op = SHERD_REDUCE,
        .dtype = SHERD_INT32,
        .reduction = SHERD_BXOR}}) {
    Error error;
    EXPECT_EQ(comm->Post(op, &error), SHERD_UNSUPPORTED);
  }
  EXPECT_THAT(nccl_.calls(), IsEmpty());
}

constexpr sherd_op_v0 kBroadcast = {
    .struct_size = sizeof(sherd_op_v0), .op = SHERD_BROADCAST, .bytes = 4};

TEST_F(NcclCommunicatorTest, ContinuesAfterAnInvalidArgument) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  nccl_.Return("ncclBroadcast", kNcclInvalidArgument);
  nccl_.SetLastError("buffer is not on device 0");
  Error error;
  EXPECT_EQ(comm->Post(kBroadcast, &error), SHERD_INVALID_ARGUMENT);
  EXPECT_EQ(TextOf(error),
            "ncclBroadcast: invalid argument: buffer is not on device 0");
  EXPECT_EQ(error.native_code, 4);
  EXPECT_EQ(comm->Poll(&error), SHERD_OK);
  EXPECT_EQ(comm->Post(kBroadcast, &error), SHERD_OK);
}

TEST_F(NcclCommunicatorTest, IsOverAfterAnyOtherErrorKnownOrNot) {
  struct Case {
    int result;
    sherd_code code;
  };
  for (const Case& test :
       {Case{1, SHERD_SYSTEM}, Case{2, SHERD_SYSTEM}, Case{3, SHERD_INTERNAL},
        Case{5, SHERD_INTERNAL}, Case{6, SHERD_PEER_LOST},
        Case{8, SHERD_TIMEOUT}, Case{42, SHERD_INTERNAL},
        Case{-1, SHERD_INTERNAL}}) {
    SCOPED_TRACE(test.result);
    const std::shared_ptr<NcclCommunicator> comm = CreateOne();
    nccl_.Return("ncclBroadcast", static_cast<NcclResult>(test.result));
    Error first;
    EXPECT_EQ(comm->Post(kBroadcast, &first), test.code);
    EXPECT_EQ(first.native_code, test.result);
    nccl_.ForgetCalls();
    Error second;
    EXPECT_EQ(comm->Post(kBroadcast, &second), test.code);
    EXPECT_EQ(TextOf(second), TextOf(first));
    EXPECT_EQ(second.native_code, test.result);
    EXPECT_EQ(comm->Poll(&second), test.code);
    EXPECT_THAT(nccl_.calls(), IsEmpty());
  }
}

TEST_F(NcclCommunicatorTest, LeavesAGroupInWhichACallFailed) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  nccl_.Return("ncclSend", kNcclInternalError);
  sherd_op_v0 op = {.op = SHERD_ALL_TO_ALL_V};
  op.sends = kUneven;
  op.recvs = kUnevenOut;
  Error error;
  EXPECT_EQ(comm->Post(op, &error), SHERD_INTERNAL);
  EXPECT_THAT(error.text, HasSubstr("a group of ncclSend and ncclRecv"));
  EXPECT_EQ(nccl_.calls().back(), "ncclGroupEnd()");
}

TEST_F(NcclCommunicatorTest, MakesOneGroupOfABatch) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  Error error;
  EXPECT_EQ(comm->BeginBatch(&error), SHERD_OK);
  EXPECT_EQ(comm->Post(kBroadcast, &error), SHERD_OK);
  EXPECT_EQ(comm->Post({.op = SHERD_SEND, .root = 2, .bytes = 3}, &error),
            SHERD_OK);
  EXPECT_EQ(comm->EndBatch(&error), SHERD_OK);
  EXPECT_THAT(nccl_.calls(),
              ElementsAre("ncclGroupStart()", HasSubstr("ncclBroadcast"),
                          HasSubstr("ncclSend"), "ncclGroupEnd()"));
}

TEST_F(NcclCommunicatorTest, EndsABatchInWhichSomethingFailed) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  nccl_.Return("ncclBroadcast", kNcclInternalError);
  Error error;
  EXPECT_EQ(comm->BeginBatch(&error), SHERD_OK);
  EXPECT_EQ(comm->Post(kBroadcast, &error), SHERD_INTERNAL);
  EXPECT_EQ(comm->EndBatch(&error), SHERD_INTERNAL);
  EXPECT_THAT(error.text, HasSubstr("ncclBroadcast"));
  EXPECT_EQ(nccl_.calls().back(), "ncclGroupEnd()");
  EXPECT_EQ(comm->EndBatch(&error), SHERD_INTERNAL);
  EXPECT_EQ(nccl_.Count("ncclGroupEnd"), 1);
}

// As with NCCL_COMM_BLOCKING=0.
TEST_F(NcclCommunicatorTest, PollsAnOperationThatIsStillBeingQueued) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  nccl_.Return("ncclBroadcast", kNcclInProgress);
  const int polls = nccl_.polls();
  Error error;
  EXPECT_EQ(comm->Post(kBroadcast, &error), SHERD_OK);
  EXPECT_GT(nccl_.polls(), polls);

  nccl_.Return("ncclBroadcast", kNcclInProgress);
  nccl_.SetState("work 1", kNcclRemoteError);
  EXPECT_EQ(comm->Post(kBroadcast, &error), SHERD_PEER_LOST);
}

TEST_F(NcclCommunicatorTest, StopsPollingWhenItIsAborted) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  Gate revoked;
  nccl_.Return("ncclBroadcast", kNcclInProgress);
  nccl_.SetState("work 1", kNcclInProgress);
  nccl_.OnCall([&](const std::string& call) {
    if (absl::StartsWith(call, "ncclBroadcast")) comm->Abort();
    if (absl::StartsWith(call, "ncclCommRevoke")) revoked.Open();
  });
  Error error;
  EXPECT_EQ(comm->Post(kBroadcast, &error), SHERD_ABORTED);
  revoked.Await();
  comm->Destroy();
}

TEST_F(NcclCommunicatorTest, PollReportsLaterErrors) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  Error error;
  EXPECT_EQ(comm->Poll(&error), SHERD_OK);
  nccl_.SetState("work 1", kNcclInProgress);
  EXPECT_EQ(comm->Poll(&error), SHERD_OK);
  nccl_.SetState("work 1", kNcclRemoteError);
  nccl_.SetLastError("socket closed by rank 2");
  EXPECT_EQ(comm->Poll(&error), SHERD_PEER_LOST);
  EXPECT_THAT(error.text, HasSubstr("socket closed by rank 2"));
  EXPECT_EQ(error.native_code, 6);
  nccl_.SetState("work 1", kNcclSuccess);
  EXPECT_EQ(comm->Poll(&error), SHERD_PEER_LOST);
  EXPECT_EQ(comm->Post(kBroadcast, &error), SHERD_PEER_LOST);
}

TEST_F(NcclCommunicatorTest, PollReportsFailuresWhileAThreadIsInNccl) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  Gate entered;
  Gate leave;
  nccl_.OnCall([&](const std::string& call) {
    if (!absl::StartsWith(call, "ncclBroadcast")) return;
    entered.Open();
    leave.Await();
  });
  std::thread poster([&] {
    Error error;
    EXPECT_EQ(comm->Post(kBroadcast, &error), SHERD_ABORTED);
  });
  entered.Await();
  Error error;
  EXPECT_EQ(comm->Poll(&error), SHERD_OK);
  nccl_.SetState("work 1", kNcclRemoteError);
  EXPECT_EQ(comm->Poll(&error), SHERD_PEER_LOST);
  EXPECT_EQ(error.native_code, 6);
  comm->Abort();
  EXPECT_EQ(comm->Poll(&error), SHERD_ABORTED);
  leave.Open();
  poster.join();
  // The abort's thread needs the plan, which ends with the test.
  comm->Destroy();
}

TEST_F(NcclCommunicatorTest, AbortsOnceAndIsDestroyedAfterwards) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  comm->Abort();
  comm->Abort();
  Error error;
  EXPECT_EQ(comm->Poll(&error), SHERD_ABORTED);
  EXPECT_EQ(comm->Post(kBroadcast, &error), SHERD_ABORTED);
  EXPECT_EQ(comm->BeginBatch(&error), SHERD_ABORTED);
  EXPECT_EQ(comm->Finalize(NcclClock() + kSecond, &error), SHERD_ABORTED);
  comm->Abort();
  comm->Destroy();
  EXPECT_LE(nccl_.Count("ncclCommRevoke(work 1, 0)"), 1);
  EXPECT_EQ(nccl_.Count("ncclCommAbort(work 1)"), 1);
  EXPECT_EQ(nccl_.Count("ncclCommAbort(base 1)"), 1);
}

TEST_F(NcclCommunicatorTest, AbortsTheCommunicatorWhereItCannotBeRevoked) {
  library_.api.comm_revoke = nullptr;
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  Gate aborted;
  nccl_.OnCall([&](const std::string& call) {
    if (absl::StartsWith(call, "ncclCommAbort(work")) aborted.Open();
  });
  comm->Abort();
  aborted.Await();
  comm->Destroy();
  // A second use of a communicator would be a finding, which ends the test.
  EXPECT_THAT(nccl_.calls(),
              ElementsAre("ncclCommAbort(work 1)", "ncclCommAbort(base 1)"));
}

TEST_F(NcclCommunicatorTest, AbortReleasesAThreadInNccl) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  Gate entered;
  Gate revoked;
  nccl_.OnCall([&](const std::string& call) {
    if (absl::StartsWith(call, "ncclCommRevoke")) revoked.Open();
    if (!absl::StartsWith(call, "ncclBroadcast")) return;
    entered.Open();
    revoked.Await();
  });
  nccl_.Return("ncclBroadcast", kNcclInternalError);
  std::thread poster([&] {
    Error error;
    EXPECT_EQ(comm->Post(kBroadcast, &error), SHERD_ABORTED);
  });
  entered.Await();
  comm->Abort();
  poster.join();
  comm->Destroy();
}

TEST_F(NcclCommunicatorTest, AHardAbortWaitsForTheEndOfABatch) {
  library_.api.comm_revoke = nullptr;
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  Error error;
  ASSERT_EQ(comm->BeginBatch(&error), SHERD_OK);
  comm->Abort();
  // Time for an event that must not occur.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(comm->Post(kBroadcast, &error), SHERD_ABORTED);
  EXPECT_EQ(comm->EndBatch(&error), SHERD_ABORTED);
  comm->Destroy();
  EXPECT_EQ(nccl_.calls()[2], "ncclGroupEnd()");
}

// NCCL would launch what was called before it was revoked.
TEST_F(NcclCommunicatorTest, LaunchesNothingOfABatchThatWasAborted) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  Error error;
  ASSERT_EQ(comm->BeginBatch(&error), SHERD_OK);
  EXPECT_EQ(comm->Post(kBroadcast, &error), SHERD_OK);
  Gate revoked;
  nccl_.OnCall([&](const std::string& call) {
    if (absl::StartsWith(call, "ncclCommRevoke")) revoked.Open();
  });
  comm->Abort();
  revoked.Await();
  nccl_.ForgetCalls();
  EXPECT_EQ(comm->EndBatch(&error), SHERD_ABORTED);
  EXPECT_THAT(nccl_.calls(),
              ElementsAre(AllOf(HasSubstr("ncclBroadcast(work 1"),
                                HasSubstr("root -1")),
                          "ncclGroupEnd()"));
  comm->Destroy();
}

TEST_F(NcclCommunicatorTest, MakesNoOtherWithinABatch) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  Error error;
  ASSERT_EQ(comm->BeginBatch(&error), SHERD_OK);
  nccl_.ForgetCalls();
  MemoryKv kv;
  const int32_t excluded[] = {0};
  std::shared_ptr<NcclCommunicator> made;
  EXPECT_EQ(NcclCommunicator::Create(library_, kHost, ConfigOf(kv, 0, 1), &made,
                                     &error),
            SHERD_INTERNAL);
  EXPECT_THAT(error.text, HasSubstr("within a batch"));
  EXPECT_EQ(comm->Split(ConfigOf(kv, 0, 2), 0, 0, &made, &error),
            SHERD_INTERNAL);
  EXPECT_EQ(comm->Shrink(ConfigOf(kv, 0, 2), excluded, 1, &made, &error),
            SHERD_INTERNAL);
  EXPECT_THAT(nccl_.calls(), IsEmpty());
  EXPECT_EQ(comm->EndBatch(&error), SHERD_OK);
  EXPECT_EQ(comm->Split(ConfigOf(kv, 0, 2), 0, 0, &made, &error), SHERD_OK);
  made->Destroy();
  comm->Destroy();
}

TEST_F(NcclCommunicatorTest, ReportsThatNcclCouldNotBeRevoked) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  nccl_.Return("ncclCommRevoke", kNcclInternalError);
  Gate revoked;
  nccl_.OnCall([&](const std::string& call) {
    if (absl::StartsWith(call, "ncclCommRevoke")) revoked.Open();
  });
  comm->Abort();
  revoked.Await();
  comm->Destroy();
  EXPECT_EQ(warnings.load(), 1);
}

TEST_F(NcclCommunicatorTest, IsFinalizedBeforeItIsDestroyed) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  Error error;
  EXPECT_EQ(comm->Finalize(NcclClock() + 60 * kSecond, &error), SHERD_OK)
      << error.text;
  EXPECT_EQ(comm->Poll(&error), SHERD_OK);
  EXPECT_EQ(comm->Post(kBroadcast, &error), SHERD_INTERNAL);
  comm->Destroy();
  EXPECT_THAT(
      nccl_.calls(),
      ElementsAre("ncclCommFinalize(work 1)", "ncclCommFinalize(base 1)",
                  "ncclCommDestroy(base 1)", "ncclCommDestroy(work 1)"));
}

TEST_F(NcclCommunicatorTest, FinalizeEndsAtItsDeadline) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  Gate revoked;
  nccl_.OnCall([&](const std::string& call) {
    if (absl::StartsWith(call, "ncclCommRevoke")) revoked.Open();
    if (absl::StartsWith(call, "ncclCommFinalize")) revoked.Await();
  });
  Error error;
  EXPECT_EQ(comm->Finalize(NcclClock() + kSecond / 100, &error), SHERD_TIMEOUT);
  // Finds finalize still in NCCL, and frees it.
  comm->Destroy();
  EXPECT_EQ(nccl_.Count("ncclCommFinalize"), 1);
  EXPECT_EQ(nccl_.Count("ncclCommAbort"), 2);
}

TEST_F(NcclCommunicatorTest, FinalizeReportsTheErrorOfNccl) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  nccl_.Return("ncclCommFinalize", kNcclRemoteError, 1);
  Error error;
  EXPECT_EQ(comm->Finalize(NcclClock() + 60 * kSecond, &error),
            SHERD_PEER_LOST);
  EXPECT_THAT(error.text, HasSubstr("ncclCommFinalize: remote process"));
  comm->Destroy();
  EXPECT_EQ(nccl_.Count("ncclCommAbort"), 2);
}

TEST_F(NcclCommunicatorTest, EndsByAbortWithoutFinalize) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  comm->Destroy();
  EXPECT_THAT(nccl_.calls(),
              ElementsAre("ncclCommAbort(base 1)", "ncclCommAbort(work 1)"));
}

// NCCL writes to a child that it could not make when it ends the parent.
TEST_F(NcclCommunicatorTest, EndsAChildThatCouldNotBeMadeAfterItsParent) {
  nccl_.OnCall([&](const std::string& call) {
    if (absl::StartsWith(call, "ncclCommSplit")) {
      nccl_.SetState("base 0", kNcclSystemError);
    }
  });
  const std::vector<Created> created = CreateAll(1);
  EXPECT_EQ(created[0].code, SHERD_SYSTEM);
  std::vector<std::string> calls = nccl_.calls();
  ASSERT_GE(calls.size(), 2);
  calls.erase(calls.begin(), calls.end() - 2);
  EXPECT_THAT(calls,
              ElementsAre("ncclCommAbort(base 0)", "ncclCommAbort(work 0)"));
}

TEST_F(NcclCommunicatorTest, ItsDestructorMakesNoCallOfNccl) {
  std::shared_ptr<NcclCommunicator> comm = CreateOne();
  comm.reset();
  EXPECT_THAT(nccl_.calls(), IsEmpty());
}

TEST_F(NcclCommunicatorTest, SplitsTheCommunicatorThatRunsNoOperations) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  MemoryKv kv;
  std::shared_ptr<NcclCommunicator> child;
  Error error;
  ASSERT_EQ(comm->Split(ConfigOf(kv, 0, 2), 5, 7, &child, &error), SHERD_OK)
      << error.text;
  ASSERT_NE(child, nullptr);
  EXPECT_THAT(nccl_.calls(),
              ElementsAre("ncclCommSplit(base 1, color 5, key 7, non-blocking)",
                          "ncclCommSplit(split 1, color 0, key 0, blocking)"));
  EXPECT_EQ(child->Post(kBroadcast, &error), SHERD_OK);
  child->Destroy();
  EXPECT_EQ(comm->Post(kBroadcast, &error), SHERD_OK);
}

TEST_F(NcclCommunicatorTest, MakesNothingForARankWithoutColor) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  MemoryKv kv;
  std::shared_ptr<NcclCommunicator> child;
  Error error;
  EXPECT_EQ(comm->Split(ConfigOf(kv, 0, 2), -3, 0, &child, &error), SHERD_OK);
  EXPECT_EQ(child, nullptr);
  EXPECT_EQ(nccl_.Count("ncclCommSplit(base 1, color -1, "), 1);
}

TEST_F(NcclCommunicatorTest, NotifiesTheOthersOfASplitThatFailed) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  MemoryKv kv;
  nccl_.Return("ncclCommSplit", kNcclSystemError);
  std::shared_ptr<NcclCommunicator> child;
  Error error;
  EXPECT_EQ(comm->Split(ConfigOf(kv, 0, 2), 0, 0, &child, &error),
            SHERD_SYSTEM);
  EXPECT_FALSE(kv.Find("nccl/failure").empty());
  // The same as rank 1 of the new group would see it.
  nccl_.NeverReady();
  EXPECT_EQ(comm->Split(ConfigOf(kv, 1, 2), 0, 0, &child, &error),
            SHERD_SYSTEM);
  EXPECT_EQ(error.peer, 0);
  comm->Destroy();
}

// NCCL may still write to where the child was wanted.
TEST_F(NcclCommunicatorTest, KeepsTheMemoryOfAChildThatNcclIsStillCreating) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  MemoryKv kv;
  nccl_.NeverReady();
  sherd_comm_config_v0 config = ConfigOf(kv, 0, 2);
  config.deadline = NcclClock() + kSecond / 50;
  std::shared_ptr<NcclCommunicator> child;
  Error error;
  EXPECT_EQ(comm->Split(config, 0, 0, &child, &error), SHERD_TIMEOUT);
  EXPECT_EQ(child, nullptr);
  EXPECT_EQ(comm.use_count(), 1);
  comm->Destroy();
  EXPECT_THAT(nccl_.calls(),
              ElementsAre(HasSubstr("ncclCommSplit"), "ncclCommAbort(base 1)",
                          "ncclCommAbort(work 1)", "ncclCommAbort(split 1)"));
}

TEST_F(NcclCommunicatorTest, ShrinksAfterAnAbort) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  comm->Abort();
  MemoryKv kv;
  const int32_t excluded[] = {0, 2};
  std::shared_ptr<NcclCommunicator> child;
  Error error;
  ASSERT_EQ(comm->Shrink(ConfigOf(kv, 0, 1), excluded, 2, &child, &error),
            SHERD_OK)
      << error.text;
  EXPECT_EQ(nccl_.Count("ncclCommShrink(base 1, without 0 2, flags 0)"), 1);
  EXPECT_EQ(child->Post(kBroadcast, &error), SHERD_OK);
  child->Destroy();
  comm->Destroy();
}

TEST_F(NcclCommunicatorTest, ReportsWhichNcclCanShrink) {
  library_.api.comm_shrink = nullptr;
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  MemoryKv kv;
  const int32_t excluded[] = {0};
  std::shared_ptr<NcclCommunicator> child;
  Error error;
  EXPECT_EQ(comm->Shrink(ConfigOf(kv, 0, 2), excluded, 1, &child, &error),
            SHERD_UNSUPPORTED);
  EXPECT_THAT(error.text, HasSubstr("2.27 or newer"));
}

TEST_F(NcclCommunicatorTest, RegistersMemory) {
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  void* const memory = DeviceMemory(512);
  void* registration = nullptr;
  Error error;
  ASSERT_EQ(comm->Register(memory, 512, &registration, &error), SHERD_OK)
      << error.text;
  comm->Deregister(registration);
  EXPECT_THAT(nccl_.calls(),
              ElementsAre(absl::StrCat("ncclCommRegister(work 1, ",
                                       AddressText(memory), ", 512)"),
                          absl::StrCat("ncclCommDeregister(work 1, ",
                                       AddressText(registration), ")")));
  nccl_.Return("ncclCommRegister", kNcclInvalidArgument);
  EXPECT_EQ(comm->Register(memory, 512, &registration, &error),
            SHERD_INVALID_ARGUMENT);
  EXPECT_EQ(comm->Post(kBroadcast, &error), SHERD_OK);
}

TEST_F(NcclCommunicatorTest, WithoutRegistrationInNcclItIsUnsupported) {
  library_.api.comm_register = nullptr;
  const std::shared_ptr<NcclCommunicator> comm = CreateOne();
  void* registration = nullptr;
  Error error;
  EXPECT_EQ(comm->Register(At(4096), 512, &registration, &error),
            SHERD_UNSUPPORTED);
}

}  // namespace
}  // namespace sherd::internal
