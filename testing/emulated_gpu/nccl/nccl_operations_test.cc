#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/testing/emulated_gpu/control.h"
#include "sherd/testing/emulated_gpu/nccl/nccl_ranks.h"
#include "sherd/testing/emulated_gpu/nccl/nccl_words.h"

namespace sherd::testing {
namespace {

using internal::kNcclInvalidUsage;
using internal::kNcclSuccess;
using internal::NcclApi;
using internal::NcclComm;

class NcclOperations : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Sizes, NcclOperations, ::testing::Values(1, 2, 4));

// Element i of rank r.
int32_t Value(int r, size_t i) {
  return static_cast<int32_t>(1000 * r + 7 * i + 1);
}

std::vector<int32_t> Values(int r, size_t count) {
  std::vector<int32_t> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(r, i);
  return values;
}

// Blocks of `count` of ranks 0 to size - 1.
std::vector<int32_t> AllValues(int size, size_t count) {
  std::vector<int32_t> all;
  for (int r = 0; r < size; ++r) {
    const std::vector<int32_t> values = Values(r, count);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

constexpr auto kInt32 = internal::kNcclInt32;

TEST_P(NcclOperations, PutEveryElementInItsPlace) {
  ExpectNcclRanks(GetParam(), [](NcclRank& self) {
    const NcclApi& nccl = self.nccl();
    const NcclComm comm = self.Connect();
    void* const stream = self.NewStream();
    const int size = self.size(), own = self.rank(), root = size - 1;
    // Sizes that fill channels several times, and do not divide evenly.
    for (const size_t count : {size_t{1}, size_t{5}, size_t{70'001}}) {
      const size_t all = count * size;
      int32_t* const in = self.Upload(Values(own, all));
      int32_t* const out = self.Upload(std::vector<int32_t>(all, -1));
      const auto expect = [&](const char* what, size_t n,
                              const std::function<int32_t(size_t)>& value) {
        ASSERT_EQ(self.Synchronize(stream), 0);
        const std::vector<int32_t> found = self.Download(out, n);
        for (size_t i = 0; i < n; ++i) {
          ASSERT_EQ(found[i], value(i))
              << what << " of " << count << ", element " << i;
        }
        const std::vector<int32_t> blank(all, -1);
        self.Upload(out, blank.data(), all * sizeof(int32_t));
      };
      const auto sum = [&](size_t i) {
        int32_t result = 0;
        for (int r = 0; r < size; ++r) result += Value(r, i);
        return result;
      };
      const auto untouched = [](size_t) { return -1; };

      EXPECT_EQ(nccl.all_reduce(in, out, count, kInt32, internal::kNcclSum,
                                comm, stream),
                kNcclSuccess);
      expect("AllReduce", count, sum);
      EXPECT_EQ(nccl.reduce(in, own == root ? out : nullptr, count, kInt32,
                            internal::kNcclSum, root, comm, stream),
                kNcclSuccess);
      if (own == root) {
        expect("Reduce", count, sum);
      } else {
        expect("Reduce", count, untouched);
      }
      EXPECT_EQ(nccl.broadcast(own == root ? in : nullptr, out, count, kInt32,
                               root, comm, stream),
                kNcclSuccess);
      expect("Broadcast", count, [&](size_t i) { return Value(root, i); });
      EXPECT_EQ(nccl.all_gather(in, out, count, kInt32, comm, stream),
                kNcclSuccess);
      expect("AllGather", all, [&](size_t i) {
        return Value(static_cast<int>(i / count), i % count);
      });
      EXPECT_EQ(nccl.reduce_scatter(in, out, count, kInt32, internal::kNcclSum,
                                    comm, stream),
                kNcclSuccess);
      expect("ReduceScatter", count,
             [&](size_t i) { return sum(own * count + i); });
      EXPECT_EQ(ncclAlltoAll(in, out, count, kInt32, comm, stream),
                kNcclSuccess);
      expect("AlltoAll", all, [&](size_t i) {
        return Value(static_cast<int>(i / count), own * count + i % count);
      });
      EXPECT_EQ(ncclGather(in, out, count, kInt32, root, comm, stream),
                kNcclSuccess);
      if (own == root) {
        expect("Gather", all, [&](size_t i) {
          return Value(static_cast<int>(i / count), i % count);
        });
      } else {
        expect("Gather", all, untouched);
      }
      EXPECT_EQ(ncclScatter(in, out, count, kInt32, root, comm, stream),
                kNcclSuccess);
      expect("Scatter", count,
             [&](size_t i) { return Value(root, own * count + i); });
    }
    EXPECT_EQ(nccl.comm_destroy(comm), kNcclSuccess);
  });
}

TEST_P(NcclOperations, WorkInPlace) {
  ExpectNcclRanks(GetParam(), [](NcclRank& self) {
    constexpr size_t kCount = 1003;
    const NcclApi& nccl = self.nccl();
    const NcclComm comm = self.Connect();
    void* const stream = self.NewStream();
    const int size = self.size(), own = self.rank();
    const std::vector<int32_t> all = AllValues(size, kCount);
    const size_t bytes = all.size() * sizeof(int32_t);
    int32_t* const data = self.Upload(all);
    int32_t* const block = data + own * kCount;

    // All ranks pass an array of this length; other ranks' blocks are zero.
    EXPECT_EQ(nccl.all_reduce(data, data, all.size(), kInt32,
                              internal::kNcclMax, comm, stream),
              kNcclSuccess);
    ASSERT_EQ(self.Synchronize(stream), 0);
    EXPECT_EQ(self.Download(data, all.size()), all);

    std::vector<int32_t> own_only(all.size(), 0);
    std::memcpy(&own_only[own * kCount], &all[own * kCount],
                kCount * sizeof(int32_t));
    self.Upload(data, own_only.data(), bytes);
    EXPECT_EQ(nccl.all_gather(block, data, kCount, kInt32, comm, stream),
              kNcclSuccess);
    ASSERT_EQ(self.Synchronize(stream), 0);
    EXPECT_EQ(self.Download(data, all.size()), all);

    EXPECT_EQ(nccl.reduce_scatter(data, block, kCount, kInt32,
                                  internal::kNcclSum, comm, stream),
              kNcclSuccess);
    ASSERT_EQ(self.Synchronize(stream), 0);
    const std::vector<int32_t> reduced = self.Download(data, all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      const bool is_own = i / kCount == static_cast<size_t>(own);
      ASSERT_EQ(reduced[i], is_own ? size * all[i] : all[i]) << i;
    }
  });
}

TEST(NcclReductions, AreThoseOfTheHostBitByBit) {
  ExpectNcclRanks(4, [](NcclRank& self) {
    constexpr size_t kCount = 257;
    constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct,
                                 ReduceOp::kMax, ReduceOp::kMin,
                                 ReduceOp::kAvg};
    const NcclApi& nccl = self.nccl();
    const NcclComm comm = self.Connect();
    void* const stream = self.NewStream();
    for (int type = 0; type < kNcclNumTypes; ++type) {
      const DType dtype = *DTypeOfNccl(type);
      const size_t bytes = kCount * SizeOf(dtype);
      // Any bits, but no NaNs, whose payload is unspecified.
      std::vector<std::vector<char>> inputs(self.size());
      uint32_t bits = 12345 + type;
      for (std::vector<char>& input : inputs) {
        for (size_t i = 0; i < bytes; ++i) {
          bits = bits * 1664525 + 1013904223;
          input.push_back(static_cast<char>(bits >> 24 & 0x3f));
        }
      }
      char* const in = self.Upload(inputs[self.rank()]);
      char* const out = self.Upload(std::vector<char>(bytes));
      for (int op = 0; op < kNcclNumOps; ++op) {
        // Of floats each rank's share is rounded.
        if (op == internal::kNcclAvg && !IsInteger(dtype)) continue;
        EXPECT_EQ(
            nccl.all_reduce(in, out, kCount,
                            static_cast<internal::NcclDataType>(type),
                            static_cast<internal::NcclRedOp>(op), comm, stream),
            kNcclSuccess);
        ASSERT_EQ(self.Synchronize(stream), 0);
        std::vector<char> expected(bytes);
        std::vector<const void*> parts;
        for (const auto& input : inputs) parts.push_back(input.data());
        Reduce(kOps[op], dtype, expected.data(), parts, kCount, self.size());
        EXPECT_EQ(self.Download(out, bytes), expected)
            << NcclTypeName(type) << ", operator " << op;
      }
    }
  });
}

// As in NCCL, where it is a sum of products with 1 / 3.
TEST(NcclReductions, AverageFloatsByTheirShares) {
  ExpectNcclRanks(3, [](NcclRank& self) {
    const NcclComm comm = self.Connect();
    void* const stream = self.NewStream();
    const float own = static_cast<float>(12 * self.rank() + 1);
    float* const in = self.Upload(std::vector<float>{own});
    float* const out = self.Upload(std::vector<float>(1));
    ASSERT_EQ(self.nccl().all_reduce(in, out, 1, internal::kNcclFloat32,
                                     internal::kNcclAvg, comm, stream),
              kNcclSuccess);
    ASSERT_EQ(self.Synchronize(stream), 0);
    const float third = 1.0f / 3;
    const float shares = 1 * third + 13 * third + 25 * third;
    ASSERT_NE(shares, 39 / 3);
    EXPECT_EQ(self.Download(out, 1)[0], shares);
  });
}

TEST(NcclReductions, ScaleBeforeTheySumWhereAsked) {
  ExpectNcclRanks(2, [](NcclRank& self) {
    const NcclApi& nccl = self.nccl();
    const NcclComm comm = self.Connect();
    void* const stream = self.NewStream();
    float* const in = self.Upload(std::vector<float>{1, 2, 3});
    float* const out = self.Upload(std::vector<float>(3));
    // Each rank has its own factor: 10 and 100.
    float factor = self.rank() == 0 ? 10 : 100;
    float* const on_device = self.Upload(std::vector<float>{factor});
    internal::NcclRedOp host, device;
    ASSERT_EQ(ncclRedOpCreatePreMulSum(&host, &factor, internal::kNcclFloat32,
                                       kNcclScalarHostImmediate, comm),
              kNcclSuccess);
    ASSERT_EQ(
        ncclRedOpCreatePreMulSum(&device, on_device, internal::kNcclFloat32,
                                 kNcclScalarDevice, comm),
        kNcclSuccess);
    factor = -1;  // Was read.
    for (const internal::NcclRedOp op : {host, device}) {
      ASSERT_EQ(
          nccl.all_reduce(in, out, 3, internal::kNcclFloat32, op, comm, stream),
          kNcclSuccess);
      EXPECT_EQ(ncclRedOpDestroy(op, comm), kNcclSuccess);
      ASSERT_EQ(self.Synchronize(stream), 0);
      EXPECT_EQ(self.Download(out, 3), (std::vector<float>{110, 220, 330}));
    }
    EXPECT_EQ(
        nccl.all_reduce(in, out, 3, internal::kNcclFloat32, host, comm, stream),
        internal::kNcclInvalidArgument);
    EXPECT_NE(std::string(nccl.get_last_error(nullptr))
                  .find("unknown to this communicator"),
              std::string::npos);
  });
}

TEST(NcclGroups, RunAtTheirEnd) {
  ExpectNcclRanks(2, [](NcclRank& self) {
    const NcclApi& nccl = self.nccl();
    const NcclComm comm = self.Connect();
    void* const stream = self.NewStream();
    const int peer = 1 - self.rank();
    int32_t* const in = self.Upload(Values(self.rank(), 4));
    int32_t* const out = self.Upload(std::vector<int32_t>(8, -1));
    ASSERT_EQ(nccl.group_start(), kNcclSuccess);
    // Both receive first: only the group makes that end.
    EXPECT_EQ(nccl.recv(out, 4, kInt32, peer, comm, stream), kNcclSuccess);
    EXPECT_EQ(nccl.send(in, 4, kInt32, peer, comm, stream), kNcclSuccess);
    EXPECT_EQ(nccl.all_reduce(in, out + 4, 4, kInt32, internal::kNcclSum, comm,
                              stream),
              kNcclSuccess);
    self.Barrier();
    EXPECT_EQ(self.Synchronize(stream), 0);
    EXPECT_EQ(self.Download(out, 8), std::vector<int32_t>(8, -1));
    ASSERT_EQ(nccl.group_end(), kNcclSuccess);
    EXPECT_EQ(self.Synchronize(stream), 0);
    EXPECT_EQ(self.Download(out, 4), Values(peer, 4));
    EXPECT_EQ(self.Download(out + 4, 1)[0], Value(0, 0) + Value(1, 0));
    EXPECT_EQ(nccl.group_end(), kNcclInvalidUsage);
  });
}

TEST(NcclGroups, OrderAllStreamsThatTheyUse) {
  ExpectNcclRanks(2, [](NcclRank& self) {
    const NcclApi& nccl = self.nccl();
    const NcclComm comm = self.Connect();
    void* const streams[] = {self.NewStream(), self.NewStream()};
    int32_t* const in = self.Upload(Values(self.rank(), 4));
    int32_t* const out = self.Upload(std::vector<int32_t>(8, -1));
    ASSERT_EQ(nccl.group_start(), kNcclSuccess);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(nccl.all_reduce(in, out + 4 * i, 4, kInt32, internal::kNcclSum,
                                comm, streams[i]),
                kNcclSuccess);
    }
    ASSERT_EQ(nccl.group_end(), kNcclSuccess);
    // Either stream waits for both.
    ASSERT_EQ(self.Synchronize(streams[1]), 0);
    EXPECT_EQ(self.Download(out, 1)[0], Value(0, 0) + Value(1, 0));
  });
}

TEST(NcclGroups, FailAsAWhole) {
  ExpectNcclRanks(2, [](NcclRank& self) {
    const NcclApi& nccl = self.nccl();
    const NcclComm comm = self.Connect();
    void* const stream = self.NewStream();
    int32_t* const data = self.Upload(Values(self.rank(), 4));
    ASSERT_EQ(nccl.group_start(), kNcclSuccess);
    EXPECT_EQ(nccl.all_reduce(data, data, 4, kInt32, internal::kNcclSum, comm,
                              stream),
              kNcclSuccess);
    EXPECT_EQ(nccl.broadcast(data, data, 4, kInt32, 2, comm, stream),
              internal::kNcclInvalidArgument);
    EXPECT_EQ(nccl.group_end(), internal::kNcclInvalidArgument);
    EXPECT_EQ(self.Synchronize(stream), 0);
    EXPECT_EQ(self.Download(data, 4), Values(self.rank(), 4));
    // The next group knows nothing of it.
    EXPECT_EQ(nccl.all_reduce(data, data, 4, kInt32, internal::kNcclSum, comm,
                              stream),
              kNcclSuccess);
    EXPECT_EQ(self.Synchronize(stream), 0);
  });
}

TEST(NcclPointToPoint, EndsASendWhenItWasReceived) {
  ExpectNcclRanks(2, [](NcclRank& self) {
    const NcclApi& nccl = self.nccl();
    const NcclComm comm = self.Connect();
    void* const stream = self.NewStream();
    int32_t* const data = self.Upload(Values(self.rank(), 4));
    void* const event = self.NewEvent();
    if (self.rank() == 0) {
      ASSERT_EQ(nccl.send(data, 4, kInt32, 1, comm, stream), kNcclSuccess);
      self.Record(event, stream);
      // As long as an early end would take to show.
      for (int i = 0; i < 200; ++i) {
        ASSERT_FALSE(self.HasHappened(event));
        usleep(100);
      }
      self.Barrier();
    } else {
      self.Barrier();
      ASSERT_EQ(nccl.recv(data, 4, kInt32, 0, comm, stream), kNcclSuccess);
    }
    ASSERT_EQ(self.Synchronize(stream), 0);
    EXPECT_EQ(self.Download(data, 4), Values(0, 4));
  });
}

TEST(NcclPointToPoint, KeepsTheOrderOfAPairAndReachesTheRankItself) {
  ExpectNcclRanks(2, [](NcclRank& self) {
    const NcclApi& nccl = self.nccl();
    const NcclComm comm = self.Connect();
    void* const stream = self.NewStream();
    constexpr size_t kCount = 70'000;
    int32_t* const in = self.Upload(Values(self.rank(), 3 * kCount));
    int32_t* const out = self.Upload(std::vector<int32_t>(3 * kCount, -1));
    ASSERT_EQ(nccl.group_start(), kNcclSuccess);
    for (size_t i = 0; i < 3; ++i) {
      // Twice to the other, then to itself.
      const int peer = i < 2 ? 1 - self.rank() : self.rank();
      EXPECT_EQ(nccl.send(in + i * kCount, kCount, kInt32, peer, comm, stream),
                kNcclSuccess);
      EXPECT_EQ(nccl.recv(out + i * kCount, kCount, kInt32, peer, comm, stream),
                kNcclSuccess);
    }
    ASSERT_EQ(nccl.group_end(), kNcclSuccess);
    ASSERT_EQ(self.Synchronize(stream), 0);
    const std::vector<int32_t> found = self.Download(out, 3 * kCount);
    for (size_t i = 0; i < 3 * kCount; ++i) {
      const int from = i < 2 * kCount ? 1 - self.rank() : self.rank();
      ASSERT_EQ(found[i], Value(from, i)) << i;
    }
    EXPECT_EQ(nccl.send(in, 1, kInt32, self.rank(), comm, stream),
              kNcclInvalidUsage);
  });
}

TEST(NcclOperations, OfOneCommunicatorRunInTheOrderOfTheirCalls) {
  ExpectNcclRanks(2, [](NcclRank& self) {
    // Streams are late in ways of their own on each rank.
    sherd_emulated_gpu_set_seed(17 + self.rank());
    const NcclComm comm = self.Connect();
    void* const streams[] = {self.NewStream(), self.NewStream(),
                             self.NewStream()};
    for (int round = 0; round < 10; ++round) {
      for (size_t i = 0; i < 3; ++i) {
        // Out of order, the sizes would not match.
        int32_t* const data = self.Upload(std::vector<int32_t>(i + 1));
        ASSERT_EQ(self.nccl().all_reduce(data, data, i + 1, kInt32,
                                         internal::kNcclSum, comm, streams[i]),
                  kNcclSuccess);
      }
    }
    for (void* const stream : streams) ASSERT_EQ(self.Synchronize(stream), 0);
  });
}

TEST(NcclOperations, MayRunFarAheadOfRanksThatOnlyReceive) {
  ExpectNcclRanks(2, [](NcclRank& self) {
    const NcclComm comm = self.Connect();
    void* const stream = self.NewStream();
    int32_t* const data = self.Upload(Values(self.rank(), 4));
    const auto post = [&](int count) {
      for (int i = 0; i < count; ++i) {
        ASSERT_EQ(self.nccl().broadcast(data, data, 4, kInt32, 0, comm, stream),
                  kNcclSuccess);
      }
    };
    post(1);
    if (self.rank() == 0) {
      // Not one of them needs the other rank.
      post(50);
      ASSERT_EQ(self.Synchronize(stream), 0);
      self.Barrier();
      post(150);
    } else {
      self.Barrier();
      post(200);
    }
    ASSERT_EQ(self.Synchronize(stream), 0);
    EXPECT_EQ(self.Download(data, 4), Values(0, 4));
  });
}

TEST(NcclOperations, RunAtEveryLaunchOfAGraph) {
  ExpectNcclRanks(2, [](NcclRank& self) {
    const NcclComm comm = self.Connect();
    void* const stream = self.NewStream();
    int32_t* const data = self.Upload(std::vector<int32_t>{1, 10});
    void* const graph = self.Capture(stream, [&] {
      EXPECT_EQ(self.nccl().all_reduce(data, data, 2, kInt32,
                                       internal::kNcclSum, comm, stream),
                kNcclSuccess);
    });
    ASSERT_EQ(self.Synchronize(stream), 0);
    EXPECT_EQ(self.Download(data, 2), (std::vector<int32_t>{1, 10}));
    for (int i = 0; i < 3; ++i) self.LaunchGraph(graph, stream);
    ASSERT_EQ(self.Synchronize(stream), 0);
    EXPECT_EQ(self.Download(data, 2), (std::vector<int32_t>{8, 80}));
  });
}

TEST(NcclOperations, OfTwoDevicesOfAThreadMeetInGroups) {
  ExpectNcclRanks(1, [](NcclRank& self) {
    const NcclApi& nccl = self.nccl();
    const internal::NcclUniqueId id = self.ShareId();
    NcclComm comms[2] = {};
    void* streams[2] = {};
    int32_t* data[2] = {};
    ASSERT_EQ(nccl.group_start(), kNcclSuccess);
    for (int r = 0; r < 2; ++r) {
      self.UseDevice(r);
      internal::NcclConfig config;
      EXPECT_EQ(nccl.comm_init_rank_config(&comms[r], 2, id, r, &config),
                kNcclSuccess);
    }
    ASSERT_EQ(nccl.group_end(), kNcclSuccess);
    for (int r = 0; r < 2; ++r) {
      self.UseDevice(r);
      streams[r] = self.NewStream();
      data[r] = self.Upload(Values(r, 3));
    }
    ASSERT_EQ(nccl.group_start(), kNcclSuccess);
    for (int r = 0; r < 2; ++r) {
      EXPECT_EQ(nccl.all_reduce(data[r], data[r], 3, kInt32, internal::kNcclSum,
                                comms[r], streams[r]),
                kNcclSuccess);
    }
    ASSERT_EQ(nccl.group_end(), kNcclSuccess);
    for (int r = 0; r < 2; ++r) {
      self.UseDevice(r);
      ASSERT_EQ(self.Synchronize(streams[r]), 0);
      EXPECT_EQ(self.Download(data[r], 3)[2], Value(0, 2) + Value(1, 2));
    }
    // A stream of the other device is refused.
    EXPECT_EQ(nccl.all_reduce(data[0], data[0], 3, kInt32, internal::kNcclSum,
                              comms[0], streams[1]),
              internal::kNcclUnhandledCudaError);
    // Nor do the two kinds of calls mix.
    NcclComm child = nullptr;
    ASSERT_EQ(nccl.group_start(), kNcclSuccess);
    EXPECT_EQ(nccl.comm_split(comms[0], 0, 0, &child, nullptr), kNcclSuccess);
    EXPECT_EQ(nccl.all_reduce(data[1], data[1], 3, kInt32, internal::kNcclSum,
                              comms[1], streams[1]),
              kNcclSuccess);
    EXPECT_EQ(nccl.group_end(), kNcclInvalidUsage);
  });
}

TEST(NcclOperations, OfNothingEndAtOnceWithoutPeers) {
  ExpectNcclRanks(2, [](NcclRank& self) {
    const NcclComm comm = self.Connect();
    if (self.rank() == 1) return;
    EXPECT_EQ(self.nccl().all_reduce(nullptr, nullptr, 0, kInt32,
                                     internal::kNcclSum, comm, nullptr),
              kNcclSuccess);
    EXPECT_EQ(self.Synchronize(nullptr), 0);
  });
}

TEST(NcclOperations, RejectWhatNcclRejectsInItsWords) {
  ExpectNcclRanks(1, [](NcclRank& self) {
    const NcclApi& nccl = self.nccl();
    const NcclComm comm = self.Connect();
    void* const stream = self.NewStream();
    char* const data = self.Upload(std::vector<char>(64));
    const auto type = [](int number) {
      return static_cast<internal::NcclDataType>(number);
    };
    const auto op = [](int number) {
      return static_cast<internal::NcclRedOp>(number);
    };
    const auto expect = [&](internal::NcclResult result,
                            const std::string& text) {
      EXPECT_EQ(result, internal::kNcclInvalidArgument);
      EXPECT_EQ(nccl.get_last_error(nullptr), text);
    };
    expect(nccl.all_reduce(data, data, 4, kInt32, op(0), nullptr, stream),
           "AllReduce : comm argument is NULL");
    expect(nccl.reduce(data, data, 4, kInt32, op(0), 1, comm, stream),
           "Reduce : invalid root 1 (root should be in the 0..1 range)");
    expect(nccl.send(data, 4, kInt32, -1, comm, stream),
           "Send : invalid root -1 (root should be in the 0..1 range)");
    expect(nccl.all_gather(data, data, 4, type(12), comm, stream),
           "AllGather : invalid type 12");
    expect(nccl.all_reduce(data, data, 4, kInt32, op(-1), comm, stream),
           "AllReduce : invalid reduction operation -1");
    expect(nccl.all_reduce(data, data, 4, kInt32, op(5), comm, stream),
           "AllReduce : reduction operation 5 unknown to this communicator");
    EXPECT_STREQ(nccl.get_error_string(internal::kNcclInProgress),
                 "NCCL operation in progress");
  });
}

}  // namespace
}  // namespace sherd::testing
