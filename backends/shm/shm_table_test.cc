// The plugin by its C table, with ranks as threads: what ProcessGroup would
// catch before it gets there, and timing that needs both ends in one place.

#include <dirent.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/plugin.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/testing/kits/rank_threads.h"

namespace sherd {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int64_t kMillisecond = 1'000'000;

int64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void ReduceOnHost(int32_t dtype, int32_t reduction, void* out,
                  const void* const* ins, int32_t num_ins, uint64_t count,
                  int32_t divisor) {
  Reduce(static_cast<ReduceOp>(reduction), static_cast<DType>(dtype), out,
         absl::Span<const void* const>(ins, num_ins), count, divisor);
}

const sherd_host_v0 kHost = {.struct_size = sizeof(sherd_host_v0),
                             .major = SHERD_ABI_MAJOR,
                             .minor = SHERD_ABI_MINOR,
                             .log = [](int32_t, const char*) {},
                             .now = Now,
                             .reduce = ReduceOnHost};

const sherd_plugin_v0& Plugin() {
  static const sherd_plugin_v0* const plugin =
      internal::StaticPlugin<sherd_plugin_v0>::Head()->entry(&kHost);
  return *plugin;
}

// A store for one group. `corrupt`, if set, changes what a rank reads.
class Kv {
 public:
  using Corrupt =
      std::function<void(int rank, const std::string& key, std::string& value)>;

  explicit Kv(Corrupt corrupt = nullptr) : corrupt_(std::move(corrupt)) {}

  struct View {
    Kv* kv;
    int rank;
  };

  static sherd_code Set(void* context, const char* key, const void* value,
                        uint64_t size) {
    Kv& kv = *static_cast<View*>(context)->kv;
    std::lock_guard<std::mutex> lock(kv.mutex_);
    kv.entries_[key] = std::string(static_cast<const char*>(value), size);
    kv.changed_.notify_all();
    return SHERD_OK;
  }

  static sherd_code Get(void* context, const char* key, int64_t deadline,
                        void* value, uint64_t capacity, uint64_t* size) {
    const View& view = *static_cast<View*>(context);
    Kv& kv = *view.kv;
    std::unique_lock<std::mutex> lock(kv.mutex_);
    const std::chrono::steady_clock::time_point until{
        std::chrono::nanoseconds(deadline)};
    if (!kv.changed_.wait_until(lock, until,
                                [&] { return kv.entries_.count(key) != 0; })) {
      return SHERD_TIMEOUT;
    }
    std::string found = kv.entries_[key];
    if (kv.corrupt_ != nullptr) kv.corrupt_(view.rank, key, found);
    *size = found.size();
    std::memcpy(value, found.data(), std::min<uint64_t>(capacity, *size));
    return SHERD_OK;
  }

 private:
  const Corrupt corrupt_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> entries_;
};

// One rank's communicator.
class Rank {
 public:
  Rank(Kv& kv, int rank, int size) : rank_(rank), size_(size) {
    view_ = {&kv, rank};
    table_ = {.struct_size = sizeof(table_),
              .context = &view_,
              .set = Kv::Set,
              .get = Kv::Get,
              .add = nullptr,
              .remove = nullptr};
    ranks_.resize(size);
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }
  ~Rank() { Leave(); }

  sherd_code Join(int one_host = 1, int64_t patience = 20000 * kMillisecond) {
    const sherd_comm_config_v0 config = {.struct_size = sizeof(config),
                                         .rank = rank_,
                                         .size = size_,
                                         .group = "test",
                                         .kv = &table_,
                                         .deadline = Now() + patience,
                                         .world_ranks = ranks_.data(),
                                         .world_size = size_,
                                         .one_host = one_host,
                                         .address = "127.0.0.1"};
    error_ = NoError();
    return Plugin().create(&config, &comm_, &error_);
  }
  void Leave() {
    if (comm_ != nullptr) Plugin().destroy(comm_);
    comm_ = nullptr;
  }

  // Safe from several threads, each with its own `error`.
  sherd_code Post(sherd_op_v0 op, sherd_error_v0& error) {
    op.struct_size = sizeof(op);
    if (op.deadline == 0) op.deadline = Now() + 20000 * kMillisecond;
    sherd_request_v0 request;
    error = NoError();
    return Plugin().post(comm_, &op, &request, &error);
  }
  sherd_code Post(const sherd_op_v0& op) { return Post(op, error_); }

  void Abort() { Plugin().abort(comm_); }

  int rank() const { return rank_; }
  int size() const { return size_; }
  int peer() const { return error_.peer; }
  std::string text() const { return error_.text; }

 private:
  static sherd_error_v0 NoError() {
    sherd_error_v0 error = {};
    error.struct_size = sizeof(error);
    error.peer = -1;
    return error;
  }

  const int rank_;
  const int size_;
  Kv::View view_;
  sherd_kv_v0 table_;
  std::vector<int32_t> ranks_;
  sherd_comm_v0* comm_ = nullptr;
  sherd_error_v0 error_ = NoError();
};

// Runs `body` once per rank of a new group, each on a thread.
void RunRanks(int size, const std::function<void(Rank&)>& body) {
  Kv kv;
  testing::RunRankThreads(size, [&](int r) {
    Rank rank(kv, r, size);
    ASSERT_EQ(rank.Join(), SHERD_OK) << rank.text();
    body(rank);
  });
}

using Data = std::vector<unsigned char>;

// Differs per rank, purpose and place.
Data Pattern(int rank, uint64_t salt, size_t bytes) {
  Data data(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<unsigned char>(i * 7 + i / 251 + rank * 131 +
                                         salt * 17 + 1);
  }
  return data;
}

std::vector<sherd_bytes_v0> Entries(std::vector<Data>& data) {
  std::vector<sherd_bytes_v0> entries;
  for (Data& d : data) entries.push_back({d.data(), d.size()});
  return entries;
}

// The lengths that ranks send each other in v operations; some are 0.
size_t LengthFor(int from, int to, size_t scale) {
  return (from + 2 * to) % 4 == 0 ? 0 : scale * (1 + (from * 5 + to * 3) % 7);
}

class ShmCollectivesTest : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

// Around the sizes at which data changes its path: the line of the call, one
// box, two, many.
constexpr size_t kSizes[] = {1,     7,      96,     97,     4099,
                             65537, 524288, 524289, 1400001};

TEST_P(ShmCollectivesTest, BroadcastsFromEveryRoot) {
  RunRanks(size(), [&](Rank& rank) {
    for (size_t bytes : kSizes) {
      // Large data need not go through all of them.
      for (int root = bytes > 100000 ? size() - 1 : 0; root < size(); ++root) {
        Data data = Pattern(rank.rank(), root, bytes);
        ASSERT_EQ(rank.Post({.op = SHERD_BROADCAST,
                             .root = root,
                             .out = data.data(),
                             .bytes = bytes}),
                  SHERD_OK)
            << rank.text();
        ASSERT_EQ(data, Pattern(root, root, bytes)) << bytes;
      }
    }
  });
}

TEST_P(ShmCollectivesTest, GathersOnAllInPlaceAndNot) {
  RunRanks(size(), [&](Rank& rank) {
    for (size_t bytes : kSizes) {
      Data expected;
      for (int r = 0; r < size(); ++r) {
        const Data part = Pattern(r, bytes, bytes);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      const Data own = Pattern(rank.rank(), bytes, bytes);
      for (bool in_place : {false, true}) {
        Data all(bytes * size());
        unsigned char* const block = all.data() + rank.rank() * bytes;
        std::copy(own.begin(), own.end(), block);
        ASSERT_EQ(rank.Post({.op = SHERD_ALL_GATHER,
                             .in = in_place ? block : own.data(),
                             .out = all.data(),
                             .bytes = bytes}),
                  SHERD_OK)
            << rank.text();
        ASSERT_EQ(all, expected) << bytes;
      }
    }
  });
}

TEST_P(ShmCollectivesTest, ExchangesEntriesOfAnyLength) {
  RunRanks(size(), [&](Rank& rank) {
    for (size_t scale : {1, 5, 1000, 100000, 300001}) {
      std::vector<Data> out, in, expected;
      for (int r = 0; r < size(); ++r) {
        out.push_back(
            Pattern(rank.rank(), r, LengthFor(rank.rank(), r, scale)));
        expected.push_back(
            Pattern(r, rank.rank(), LengthFor(r, rank.rank(), scale)));
        in.emplace_back(expected.back().size());
      }
      in[rank.rank()] = expected[rank.rank()];
      const auto sends = Entries(out), recvs = Entries(in);
      ASSERT_EQ(rank.Post({.op = SHERD_ALL_TO_ALL_V,
                           .sends = sends.data(),
                           .recvs = recvs.data()}),
                SHERD_OK)
          << rank.text();
      ASSERT_EQ(in, expected) << scale;
    }
  });
}

TEST_P(ShmCollectivesTest, EmptyEntriesAloneAreValid) {
  RunRanks(size(), [&](Rank& rank) {
    const std::vector<sherd_bytes_v0> none(size());
    for (int32_t op : {SHERD_ALL_TO_ALL_V, SHERD_ALL_GATHER_V, SHERD_GATHER,
                       SHERD_SCATTER, SHERD_REDUCE_SCATTER}) {
      const bool root = rank.rank() == 1;
      ASSERT_EQ(
          rank.Post(
              {.op = op,
               .root = 1,
               .flags = SHERD_OP_EVEN,
               .sends = op == SHERD_SCATTER && !root ? nullptr : none.data(),
               .recvs = op == SHERD_GATHER && !root ? nullptr : none.data()}),
          SHERD_OK)
          << op << " " << rank.text();
    }
  });
}

TEST_P(ShmCollectivesTest, GathersAndScattersEntriesOfAnyLength) {
  RunRanks(size(), [&](Rank& rank) {
    const int me = rank.rank();
    for (size_t scale : {0, 1, 5000, 200001}) {
      std::vector<Data> parts;
      for (int r = 0; r < size(); ++r) {
        parts.push_back(Pattern(r, scale, scale * (r % 3)));
      }
      // On all.
      std::vector<Data> all(size());
      for (int r = 0; r < size(); ++r) all[r].resize(parts[r].size());
      all[me] = parts[me];
      auto recvs = Entries(all);
      ASSERT_EQ(rank.Post({.op = SHERD_ALL_GATHER_V,
                           .in = parts[me].data(),
                           .bytes = parts[me].size(),
                           .recvs = recvs.data()}),
                SHERD_OK)
          << rank.text();
      ASSERT_EQ(all, parts);
      for (int root = 0; root < size(); ++root) {
        for (int r = 0; r < size(); ++r) all[r].assign(parts[r].size(), 0);
        all[me] = parts[me];
        recvs = Entries(all);
        ASSERT_EQ(rank.Post({.op = SHERD_GATHER,
                             .root = root,
                             .in = parts[me].data(),
                             .bytes = parts[me].size(),
                             .recvs = me == root ? recvs.data() : nullptr}),
                  SHERD_OK)
            << rank.text();
        if (me == root) {
          ASSERT_EQ(all, parts);
        }
        Data mine(parts[me].size());
        if (me == root) mine = parts[me];
        ASSERT_EQ(rank.Post({.op = SHERD_SCATTER,
                             .root = root,
                             .out = mine.data(),
                             .bytes = mine.size(),
                             .sends = me == root ? recvs.data() : nullptr}),
                  SHERD_OK)
            << rank.text();
        ASSERT_EQ(mine, parts[me]);
      }
    }
  });
}

struct Numbers {
  std::vector<float> values;
  explicit Numbers(int rank, size_t count, int salt = 0) : values(count) {
    for (size_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>((i * 7 + rank * 131 + salt) % 1021) / 3;
    }
  }
};

// The reduction of all ranks' Numbers, in the order of ranks.
std::vector<float> Reduced(int size, size_t count, int32_t reduction,
                           int salt = 0) {
  std::vector<Numbers> all;
  std::vector<const void*> ins;
  for (int r = 0; r < size; ++r) all.emplace_back(r, count, salt);
  for (const Numbers& n : all) ins.push_back(n.values.data());
  std::vector<float> out(count);
  ReduceOnHost(SHERD_FLOAT32, reduction, out.data(), ins.data(), size, count,
               size);
  return out;
}

TEST_P(ShmCollectivesTest, ReducesToTheSameBitsOnAllRanks) {
  RunRanks(size(), [&](Rank& rank) {
    for (size_t count : {1, 2, 24, 25, 1023, 4097, 131072, 300001}) {
      for (int32_t reduction : {SHERD_SUM, SHERD_AVG, SHERD_MAX}) {
        if (count > 5000 && reduction != SHERD_SUM) continue;
        const std::vector<float> expected = Reduced(size(), count, reduction);
        for (bool in_place : {false, true}) {
          Numbers in(rank.rank(), count);
          std::vector<float> out(count);
          float* const target = in_place ? in.values.data() : out.data();
          ASSERT_EQ(rank.Post({.op = SHERD_ALL_REDUCE,
                               .in = in.values.data(),
                               .out = target,
                               .bytes = count * sizeof(float),
                               .dtype = SHERD_FLOAT32,
                               .reduction = reduction}),
                    SHERD_OK)
              << rank.text();
          ASSERT_EQ(std::memcmp(target, expected.data(), count * sizeof(float)),
                    0)
              << count;
        }
      }
    }
  });
}

TEST_P(ShmCollectivesTest, ReducesToEveryRoot) {
  RunRanks(size(), [&](Rank& rank) {
    for (size_t count : {1, 1000, 150001}) {
      const std::vector<float> expected = Reduced(size(), count, SHERD_SUM);
      for (int root = 0; root < size(); ++root) {
        const Numbers in(rank.rank(), count);
        std::vector<float> out(count);
        ASSERT_EQ(rank.Post({.op = SHERD_REDUCE,
                             .root = root,
                             .in = in.values.data(),
                             .out = rank.rank() == root ? out.data() : nullptr,
                             .bytes = count * sizeof(float),
                             .dtype = SHERD_FLOAT32,
                             .reduction = SHERD_SUM}),
                  SHERD_OK)
            << rank.text();
        ASSERT_EQ(in.values, Numbers(rank.rank(), count).values);
        if (rank.rank() == root) {
          ASSERT_EQ(out, expected);
        }
      }
    }
  });
}

TEST_P(ShmCollectivesTest, ReducesAndScattersBlocksOfAnyLength) {
  RunRanks(size(), [&](Rank& rank) {
    const int me = rank.rank();
    for (size_t scale : {1, 3000, 150001}) {
      std::vector<Numbers> blocks;
      for (int r = 0; r < size(); ++r) {
        blocks.emplace_back(me, r == 1 ? 0 : scale * (1 + r % 3), r);
      }
      std::vector<sherd_bytes_v0> sends;
      for (Numbers& b : blocks) {
        sends.push_back({b.values.data(), b.values.size() * sizeof(float)});
      }
      const size_t count = blocks[me].values.size();
      // In place.
      ASSERT_EQ(rank.Post({.op = SHERD_REDUCE_SCATTER,
                           .out = sends[me].data,
                           .bytes = sends[me].size,
                           .sends = sends.data(),
                           .dtype = SHERD_FLOAT32,
                           .reduction = SHERD_SUM}),
                SHERD_OK)
          << rank.text();
      ASSERT_EQ(blocks[me].values, Reduced(size(), count, SHERD_SUM, me));
    }
  });
}

// A random sequence of operations, the same on all ranks, without anything
// between them: what one leaves behind must not disturb the next.
TEST_P(ShmCollectivesTest, OperationsFollowEachOtherInAnyOrder) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  RunRanks(size(), [&](Rank& rank) {
    std::mt19937 random(seed);
    for (int i = 0; i < 200; ++i) {
      const int root = static_cast<int>(random() % size());
      const size_t count = 1 + random() % (1u << (random() % 19));
      switch (random() % 5) {
        case 0: {
          Data data = Pattern(rank.rank(), i, count);
          ASSERT_EQ(rank.Post({.op = SHERD_BROADCAST,
                               .root = root,
                               .out = data.data(),
                               .bytes = count}),
                    SHERD_OK);
          ASSERT_EQ(data, Pattern(root, i, count)) << i;
          break;
        }
        case 1: {
          std::vector<Data> out, in, expected;
          for (int r = 0; r < size(); ++r) {
            out.push_back(Pattern(rank.rank(), r + i, count));
            expected.push_back(Pattern(r, rank.rank() + i, count));
            in.emplace_back(count);
          }
          in[rank.rank()] = expected[rank.rank()];
          const auto sends = Entries(out), recvs = Entries(in);
          ASSERT_EQ(rank.Post({.op = SHERD_ALL_TO_ALL_V,
                               .flags = SHERD_OP_EVEN,
                               .sends = sends.data(),
                               .recvs = recvs.data()}),
                    SHERD_OK);
          ASSERT_EQ(in, expected) << i;
          break;
        }
        case 2: {
          Numbers in(rank.rank(), count, i);
          ASSERT_EQ(rank.Post({.op = SHERD_ALL_REDUCE,
                               .in = in.values.data(),
                               .out = in.values.data(),
                               .bytes = count * sizeof(float),
                               .dtype = SHERD_FLOAT32,
                               .reduction = SHERD_SUM}),
                    SHERD_OK);
          ASSERT_EQ(in.values, Reduced(size(), count, SHERD_SUM, i)) << i;
          break;
        }
        case 3: {
          Data all(count * size());
          const Data own = Pattern(rank.rank(), i, count);
          std::copy(own.begin(), own.end(), all.begin() + rank.rank() * count);
          ASSERT_EQ(rank.Post({.op = SHERD_ALL_GATHER,
                               .in = own.data(),
                               .out = all.data(),
                               .bytes = count}),
                    SHERD_OK);
          for (int r = 0; r < size(); ++r) {
            const Data part = Pattern(r, i, count);
            ASSERT_TRUE(
                std::equal(part.begin(), part.end(), all.begin() + r * count))
                << i;
          }
          break;
        }
        default:
          ASSERT_EQ(rank.Post({.op = SHERD_BARRIER}), SHERD_OK);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, ShmCollectivesTest,
                         ::testing::Values(2, 3, 4, 5, 8));

TEST(ShmReductionsTest, AllReductionsOfTheTableEqualThoseOfTheHost) {
  constexpr int kSize = 3;
  constexpr size_t kCount = 37;
  RunRanks(kSize, [&](Rank& rank) {
    for (int dtype = 0; dtype < SHERD_NUM_DTYPES; ++dtype) {
      const size_t bytes = kCount * SizeOf(static_cast<DType>(dtype));
      for (int reduction = 0; reduction < SHERD_NUM_REDUCTIONS; ++reduction) {
        const bool has = (Plugin().reductions[dtype] >> reduction & 1) != 0;
        ASSERT_EQ(has, CheckReduction(static_cast<ReduceOp>(reduction),
                                      static_cast<DType>(dtype))
                           .ok());
        if (!has) continue;
        std::vector<Data> inputs;
        std::vector<const void*> ins;
        for (int r = 0; r < kSize; ++r) {
          inputs.push_back(Pattern(r, dtype + reduction, bytes));
          if (dtype == SHERD_BOOL) {
            for (unsigned char& b : inputs.back()) b &= 1;
          }
        }
        for (const Data& input : inputs) ins.push_back(input.data());
        Data expected(bytes), out(bytes);
        ReduceOnHost(dtype, reduction, expected.data(), ins.data(), kSize,
                     kCount, kSize);
        ASSERT_EQ(rank.Post({.op = SHERD_ALL_REDUCE,
                             .in = inputs[rank.rank()].data(),
                             .out = out.data(),
                             .bytes = bytes,
                             .dtype = dtype,
                             .reduction = reduction}),
                  SHERD_OK);
        ASSERT_EQ(out, expected) << dtype << " " << reduction;
      }
    }
  });
}

struct Contradiction {
  const char* name;
  sherd_op_v0 usual;
  sherd_op_v0 other;  // of the failed_rank
  const char* text;   // of the others' error
};

class ShmContradictionTest : public ::testing::TestWithParam<Contradiction> {};

TEST_P(ShmContradictionTest, IsFoundByAllAndNothingIsWritten) {
  constexpr int kFailedRank = 2;
  RunRanks(4, [&](Rank& rank) {
    sherd_op_v0 op =
        rank.rank() == kFailedRank ? GetParam().other : GetParam().usual;
    const Data before = Pattern(rank.rank(), 1, 1024);
    Data in = before, out = before;
    op.in = in.data();
    op.out = out.data();
    ASSERT_EQ(rank.Post(op), SHERD_INVALID_ARGUMENT) << rank.text();
    EXPECT_EQ(rank.peer(), kFailedRank);
    EXPECT_THAT(rank.text(), HasSubstr(GetParam().text));
    EXPECT_EQ(out, before);
    // No rank left before the others looked.
    EXPECT_NE(rank.Post({.op = SHERD_BARRIER}), SHERD_OK);
  });
}

constexpr sherd_op_v0 kReduceOp = {.op = SHERD_ALL_REDUCE,
                                   .bytes = 256,
                                   .dtype = SHERD_FLOAT32,
                                   .reduction = SHERD_SUM};

sherd_op_v0 With(sherd_op_v0 op, int32_t sherd_op_v0::*field, int32_t value) {
  op.*field = value;
  return op;
}

sherd_op_v0 WithBytes(sherd_op_v0 op, uint64_t bytes) {
  op.bytes = bytes;
  return op;
}

// An operation that only moves elements of this type.
sherd_op_v0 Typed(sherd_op_v0 op, int32_t dtype) {
  op.flags |= SHERD_OP_TYPED;
  op.dtype = dtype;
  return op;
}

constexpr sherd_op_v0 kBroadcastOp = {
    .op = SHERD_BROADCAST, .root = 1, .bytes = 64};

INSTANTIATE_TEST_SUITE_P(
    All, ShmContradictionTest,
    ::testing::Values(
        Contradiction{"Operation", kReduceOp, {.op = SHERD_BARRIER}, "barrier"},
        Contradiction{"Size", kReduceOp, WithBytes(kReduceOp, 128),
                      "rank 2 called all_reduce (float32, sum, 128 bytes); "
                      "ranks 0, 1, 3 called all_reduce (float32, sum, 256 "
                      "bytes)"},
        Contradiction{"NoBytes", kReduceOp, WithBytes(kReduceOp, 0),
                      "all_reduce (float32, sum, 0 bytes)"},
        Contradiction{
            "SomeBytes", WithBytes(kReduceOp, 0), kReduceOp,
            "ranks 0, 1, 3 called all_reduce (float32, sum, 0 bytes)"},
        Contradiction{"TypeOfWhatIsMoved", Typed(kBroadcastOp, SHERD_FLOAT32),
                      Typed(kBroadcastOp, SHERD_INT32),
                      "rank 2 called broadcast (root 1, int32, 64 bytes); "
                      "ranks 0, 1, 3 called broadcast (root 1, float32, 64 "
                      "bytes)"},
        Contradiction{"Dtype", kReduceOp,
                      With(kReduceOp, &sherd_op_v0::dtype, SHERD_INT32),
                      "int32"},
        Contradiction{"Reduction", kReduceOp,
                      With(kReduceOp, &sherd_op_v0::reduction, SHERD_MAX),
                      "max"},
        Contradiction{"Root",
                      kBroadcastOp,
                      {.op = SHERD_BROADCAST, .root = 3, .bytes = 64},
                      "root 3"}),
    [](const auto& info) { return info.param.name; });

TEST(ShmContradictionTest, OfAPairOfLengthsNamesThePair) {
  RunRanks(4, [&](Rank& rank) {
    std::vector<Data> out(4), in(4);
    for (int r = 0; r < 4; ++r) {
      out[r].assign(8, 1);
      in[r].assign(8, 2);
    }
    // Rank 1 sends less to rank 3 than that expects.
    if (rank.rank() == 1) out[3].resize(7);
    const auto sends = Entries(out), recvs = Entries(in);
    ASSERT_EQ(rank.Post({.op = SHERD_ALL_TO_ALL_V,
                         .sends = sends.data(),
                         .recvs = recvs.data()}),
              SHERD_INVALID_ARGUMENT);
    EXPECT_EQ(rank.peer(), -1);
    EXPECT_THAT(rank.text(), HasSubstr("rank 1 sends 7 bytes to rank 3 in "
                                       "all_to_all_v, which expects 8"));
    EXPECT_EQ(in, std::vector<Data>(4, Data(8, 2)));
  });
}

TEST(ShmContradictionTest, OfAListNamesTheRankThatIsAloneWithIt) {
  RunRanks(4, [&](Rank& rank) {
    const Data out(8, 1);
    std::vector<Data> in(4, Data(8, 2));
    if (rank.rank() == 3) in[1].resize(5);
    const auto recvs = Entries(in);
    ASSERT_EQ(rank.Post({.op = SHERD_ALL_GATHER_V,
                         .in = out.data(),
                         .bytes = 8,
                         .recvs = recvs.data()}),
              SHERD_INVALID_ARGUMENT);
    EXPECT_EQ(rank.peer(), 3);
    EXPECT_THAT(rank.text(),
                HasSubstr("rank 3 called all_gather_v (blocks of 8, 5, 8, 8 "
                          "bytes); ranks 0, 1, 2 called all_gather_v (blocks "
                          "of 8, 8, 8, 8 bytes)"));
  });
}

TEST(ShmContradictionTest, OfAListAndAnotherCallIsReportedAlikeByAll) {
  RunRanks(3, [&](Rank& rank) {
    const Data out(8, 1);
    std::vector<Data> in(3, Data(8, 2));
    const auto recvs = Entries(in);
    if (rank.rank() == 2) {
      ASSERT_EQ(rank.Post({.op = SHERD_BARRIER}), SHERD_INVALID_ARGUMENT);
    } else {
      ASSERT_EQ(rank.Post({.op = SHERD_ALL_GATHER_V,
                           .in = out.data(),
                           .bytes = 8,
                           .recvs = recvs.data()}),
                SHERD_INVALID_ARGUMENT);
    }
    EXPECT_EQ(rank.peer(), 2);
    EXPECT_THAT(rank.text(),
                HasSubstr("rank 2 called barrier; ranks 0, 1 called "
                          "all_gather_v (blocks of 8, 8, 8 bytes)"));
  });
}

TEST(ShmContradictionTest, WithoutAMajorityNamesNoRank) {
  RunRanks(4, [&](Rank& rank) {
    Data data(64, 1);
    sherd_op_v0 op = kBroadcastOp;
    op.root = rank.rank() / 2;
    op.out = data.data();
    ASSERT_EQ(rank.Post(op), SHERD_INVALID_ARGUMENT);
    EXPECT_EQ(rank.peer(), -1);
    EXPECT_THAT(rank.text(),
                HasSubstr("ranks 2, 3 called broadcast (root 1, 64 bytes); "
                          "ranks 0, 1 called broadcast (root 0, 64 bytes)"));
  });
}

TEST(ShmCollectivesTest, OfNoBytesAreMeetingsOfAllRanks) {
  RunRanks(3, [](Rank& rank) {
    for (const int32_t op :
         {SHERD_BROADCAST, SHERD_ALL_GATHER, SHERD_ALL_REDUCE, SHERD_REDUCE}) {
      EXPECT_EQ(rank.Post({.op = op, .dtype = SHERD_FLOAT32}), SHERD_OK) << op;
    }
    const std::vector<sherd_bytes_v0> none(3);
    EXPECT_EQ(rank.Post({.op = SHERD_REDUCE_SCATTER,
                         .sends = none.data(),
                         .dtype = SHERD_FLOAT32}),
              SHERD_OK);
    EXPECT_EQ(rank.Post({.op = SHERD_ALL_GATHER_V, .recvs = none.data()}),
              SHERD_OK);
  });
}

TEST(ShmMessagesTest, AreMatchedByTagWhateverElseIsOffered) {
  constexpr int kMessages = 8;
  RunRanks(2, [&](Rank& rank) {
    // Each in its own thread: a send may wait for its receive. Lengths from
    // inline to many times the ring.
    const auto length = [](int tag) { return size_t{1} << (3 * tag); };
    if (rank.rank() == 0) {
      std::vector<std::thread> senders;
      for (int tag = 0; tag < kMessages; ++tag) {
        senders.emplace_back([&, tag] {
          const Data data = Pattern(0, tag, length(tag));
          sherd_error_v0 error;
          EXPECT_EQ(rank.Post({.op = SHERD_SEND,
                               .root = 1,
                               .in = data.data(),
                               .bytes = data.size(),
                               .tag = tag},
                              error),
                    SHERD_OK)
              << error.text;
        });
      }
      for (int i = 0; i < 20; ++i) {
        EXPECT_EQ(rank.Post({.op = SHERD_BARRIER}), SHERD_OK);
      }
      for (std::thread& sender : senders) sender.join();
      return;
    }
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(rank.Post({.op = SHERD_BARRIER}), SHERD_OK);
    }
    for (int tag = kMessages - 1; tag >= 0; --tag) {
      Data data(length(tag));
      ASSERT_EQ(rank.Post({.op = SHERD_RECV,
                           .root = 0,
                           .out = data.data(),
                           .bytes = data.size(),
                           .tag = tag}),
                SHERD_OK)
          << rank.text();
      ASSERT_EQ(data, Pattern(0, tag, length(tag))) << tag;
    }
  });
}

TEST(ShmMessagesTest, ReceivesOfOneSourceMayWaitSideBySide) {
  constexpr int kMessages = 6;
  constexpr size_t kBytes = 700001;
  RunRanks(2, [&](Rank& rank) {
    std::vector<std::thread> threads;
    for (int tag = 0; tag < kMessages; ++tag) {
      threads.emplace_back([&, tag] {
        Data data = Pattern(0, tag, kBytes);
        if (rank.rank() == 1) data.assign(kBytes, 0);
        sherd_error_v0 error;
        EXPECT_EQ(rank.Post({.op = rank.rank() == 0 ? SHERD_SEND : SHERD_RECV,
                             .root = 1 - rank.rank(),
                             .in = data.data(),
                             .out = data.data(),
                             .bytes = kBytes,
                             .tag = tag},
                            error),
                  SHERD_OK)
            << error.text;
        EXPECT_EQ(data, Pattern(0, tag, kBytes));
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST(ShmMessagesTest, OfOneTagArriveInOrder) {
  RunRanks(2, [&](Rank& rank) {
    for (int i = 0; i < 2000; ++i) {
      const size_t bytes = 1 + (i * 37) % 300;
      Data data = Pattern(0, i, bytes);
      if (rank.rank() == 1) data.assign(bytes, 0);
      ASSERT_EQ(rank.Post({.op = rank.rank() == 0 ? SHERD_SEND : SHERD_RECV,
                           .root = 1 - rank.rank(),
                           .in = data.data(),
                           .out = data.data(),
                           .bytes = bytes,
                           .tag = 5}),
                SHERD_OK);
      ASSERT_EQ(data, Pattern(0, i, bytes)) << i;
    }
  });
}

TEST(ShmMessagesTest, OfAnotherSizeFailAtBothEnds) {
  for (size_t bytes : {8, 100000}) {
    RunRanks(2, [&](Rank& rank) {
      const size_t own = bytes + rank.rank();
      Data data(own, 3);
      ASSERT_EQ(rank.Post({.op = rank.rank() == 0 ? SHERD_SEND : SHERD_RECV,
                           .root = 1 - rank.rank(),
                           .in = data.data(),
                           .out = data.data(),
                           .bytes = own,
                           .tag = 5}),
                SHERD_INVALID_ARGUMENT);
      EXPECT_EQ(rank.peer(), 1 - rank.rank());
      EXPECT_THAT(rank.text(), HasSubstr(absl::StrCat(bytes)));
      EXPECT_THAT(rank.text(), HasSubstr(absl::StrCat(bytes + 1)));
      EXPECT_EQ(data, Data(own, 3));
    });
  }
}

TEST(ShmFailureTest, ADeadlineNamesTheRankThatDidNotCome) {
  std::atomic<int> judged{0};
  RunRanks(3, [&](Rank& rank) {
    if (rank.rank() == 2) {
      while (judged.load() < 2) std::this_thread::yield();
      return;
    }
    const int64_t deadline = Now() + 30 * kMillisecond;
    EXPECT_THAT(rank.Post({.op = SHERD_BARRIER, .deadline = deadline}),
                SHERD_TIMEOUT);
    EXPECT_EQ(rank.peer(), 2);
    ++judged;
  });
}

TEST(ShmFailureTest, ARankThatComesAfterTheOthersGaveUpFailsToo) {
  std::atomic<int> judged{0};
  RunRanks(3, [&](Rank& rank) {
    if (rank.rank() == 1) {
      while (judged.load() < 2) std::this_thread::yield();
      EXPECT_NE(rank.Post({.op = SHERD_BARRIER}), SHERD_OK);
      return;
    }
    EXPECT_EQ(
        rank.Post({.op = SHERD_BARRIER, .deadline = Now() + 10 * kMillisecond}),
        SHERD_TIMEOUT);
    ++judged;
    while (judged.load() < 2) std::this_thread::yield();
  });
}

TEST(ShmFailureTest, ADeadlineOfAMessageIsKept) {
  std::atomic<int> judged{0};
  RunRanks(2, [&](Rank& rank) {
    if (rank.rank() == 1) {
      while (judged.load() == 0) std::this_thread::yield();
      return;
    }
    for (int32_t op : {SHERD_SEND, SHERD_RECV}) {
      Data data(100000);
      const int64_t deadline = Now() + 30 * kMillisecond;
      const sherd_code code = rank.Post({.op = op,
                                         .root = 1,
                                         .in = data.data(),
                                         .out = data.data(),
                                         .bytes = data.size(),
                                         .deadline = deadline});
      EXPECT_EQ(code, op == SHERD_SEND ? SHERD_TIMEOUT : SHERD_ABORTED);
      if (op == SHERD_SEND) {
        EXPECT_GE(Now(), deadline);
        EXPECT_EQ(rank.peer(), 1);
      }
    }
    ++judged;
  });
}

TEST(ShmFailureTest, AbortEndsAWaitHereAndThere) {
  RunRanks(3, [&](Rank& rank) {
    ASSERT_EQ(rank.Post({.op = SHERD_BARRIER}), SHERD_OK);
    if (rank.rank() != 0) {
      EXPECT_EQ(rank.Post({.op = SHERD_BARRIER, .deadline = SHERD_NO_DEADLINE}),
                SHERD_PEER_LOST);
      EXPECT_EQ(rank.peer(), 0);
      EXPECT_THAT(rank.text(), HasSubstr("aborted"));
      return;
    }
    // No rank sends, so only the abort can end it.
    std::thread aborter([&] { rank.Abort(); });
    Data data(10);
    EXPECT_EQ(rank.Post({.op = SHERD_RECV,
                         .root = 1,
                         .out = data.data(),
                         .bytes = data.size(),
                         .deadline = SHERD_NO_DEADLINE}),
              SHERD_ABORTED);
    aborter.join();
    rank.Abort();
    EXPECT_EQ(rank.Post({.op = SHERD_BARRIER}), SHERD_ABORTED);
  });
}

TEST(ShmFailureTest, ARankThatLeavesIsNamedByThoseThatNeedIt) {
  RunRanks(3, [&](Rank& rank) {
    ASSERT_EQ(rank.Post({.op = SHERD_BARRIER}), SHERD_OK);
    if (rank.rank() == 1) return rank.Leave();
    EXPECT_EQ(rank.Post({.op = SHERD_BARRIER, .deadline = SHERD_NO_DEADLINE}),
              SHERD_PEER_LOST);
    EXPECT_EQ(rank.peer(), 1);
    EXPECT_THAT(rank.text(), AnyOf(HasSubstr("left the group"),
                                   HasSubstr("was lost, as rank")));
  });
}

TEST(ShmFailureTest, LeavingAfterAnOperationDisturbsNoRankInIt) {
  for (int i = 0; i < 100; ++i) {
    RunRanks(3, [&](Rank& rank) {
      Data data(1000);
      EXPECT_EQ(rank.Post({.op = SHERD_BROADCAST,
                           .root = i % 3,
                           .out = data.data(),
                           .bytes = data.size()}),
                SHERD_OK)
          << rank.text();
    });
  }
}

TEST(ShmGroupTest, RanksOnSeveralHostsAreRefused) {
  Kv kv;
  Rank rank(kv, 0, 2);
  EXPECT_EQ(rank.Join(/*one_host=*/0), SHERD_UNSUPPORTED);
  EXPECT_THAT(rank.text(), HasSubstr("host"));
}

TEST(ShmGroupTest, IsRefusedToAllIfOneRankCannotOpenTheMemory) {
  // Rank 2 receives the id of a process that does not exist.
  Kv kv([](int rank, const std::string& key, std::string& value) {
    if (rank == 2 && absl::StrContains(key, "segment")) {
      std::fill(value.begin() + 8, value.begin() + 16, 0);
    }
  });
  testing::RunRankThreads(4, [&](int r) {
    Rank rank(kv, r, 4);
    EXPECT_EQ(rank.Join(), SHERD_PEER_LOST);
    EXPECT_EQ(rank.peer(), r == 2 ? 0 : 2);
    EXPECT_THAT(rank.text(), HasSubstr("cannot open the shared memory"));
  });
}

int OpenDescriptors() {
  DIR* const directory = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

TEST(ShmGroupTest, ARankThatComesAfterRank0GaveUpReportsWhy) {
  Kv kv;
  Rank first(kv, 0, 3);
  ASSERT_EQ(first.Join(/*one_host=*/1, /*patience=*/kMillisecond),
            SHERD_TIMEOUT);
  EXPECT_EQ(first.peer(), 1);
  Rank late(kv, 2, 3);
  EXPECT_EQ(late.Join(), SHERD_TIMEOUT);
  EXPECT_EQ(late.peer(), 1);
  EXPECT_EQ(late.text(), first.text());
}

int SharedMappings() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  int count = 0;
  while (std::getline(maps, line))
    count += absl::StrContains(line, "sherd_shm");
  return count;
}

TEST(ShmGroupTest, HundredsOfGroupsLeakNothing) {
  const auto live = [] {
    RunRanks(4, [](Rank& rank) {
      EXPECT_EQ(rank.Post({.op = SHERD_BARRIER}), SHERD_OK);
    });
  };
  live();
  const int descriptors = OpenDescriptors();
  for (int i = 0; i < 200; ++i) live();
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_EQ(SharedMappings(), 0);
}

}  // namespace
}  // namespace sherd
