#include "sherd/core/comm/collective/emulation.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;

constexpr uint64_t kOnlyMessages =
    uint64_t{1} << static_cast<int>(CollectiveOp::kAllToAllV);

// The backend local, which hides what it can do but for `native`.
class PoorBackend final : public Backend {
 public:
  PoorBackend(std::string name, NativeOperations native)
      : real_(**BackendRegistry::Global().Find("local")), info_(real_.info()) {
    info_.name = std::move(name);
    info_.native = native;
  }
  const BackendInfo& info() const override { return info_; }
  absl::Status Probe() const override { return real_.Probe(); }
  absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(
      const CommunicatorOptions& options) const override {
    return real_.CreateCommunicator(options);
  }

 private:
  const Backend& real_;
  BackendInfo info_;
};

void Register(std::string name, NativeOperations native) {
  ASSERT_THAT(BackendRegistry::Global().Register(
                  std::make_unique<PoorBackend>(std::move(name), native)),
              IsOk());
}

template <typename T>
ConstBytes Raw(const std::vector<T>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()),
          values.size() * sizeof(T)};
}

template <typename T>
MutableBytes Raw(std::vector<T>& values) {
  return {reinterpret_cast<std::byte*>(values.data()),
          values.size() * sizeof(T)};
}

// Element i of rank r; sums of all ranks stay exact in every type below.
int64_t Value(int rank, size_t i) {
  return static_cast<int64_t>((i * 7 + rank * 13) % 31);
}

template <typename T>
std::vector<T> Values(int rank, size_t count) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(Value(rank, i));
  return values;
}

template <typename T>
std::vector<T> Sums(int size, size_t count) {
  std::vector<T> sums(count);
  for (int r = 0; r < size; ++r) {
    for (size_t i = 0; i < count; ++i) sums[i] += static_cast<T>(Value(r, i));
  }
  return sums;
}

class EmulationTest : public ::testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() {
    Register("poor", {.operations = kOnlyMessages});
    NativeOperations sums = {.operations = kOnlyMessages |
                                           uint64_t{1} << static_cast<int>(
                                               CollectiveOp::kAllReduce)};
    sums.reductions.fill(1u << static_cast<int>(ReduceOp::kSum));
    Register("sums", sums);
  }

  static void Run(const std::string& backend, int size,
                  absl::FunctionRef<void(ProcessGroup&)> body) {
    RunLocalRanks(size, body, {.backend = backend});
  }
};

TEST_P(EmulationTest, ReportsThePathOfAnOperation) {
  Run("poor", GetParam(), [](ProcessGroup& group) {
    EXPECT_EQ(group.PathOf(CollectiveOp::kAllToAllV), OperationPath::kNative);
    EXPECT_EQ(group.PathOf(CollectiveOp::kAllReduce), OperationPath::kEmulated);
    EXPECT_EQ(group.PathOf(CollectiveOp::kSend), OperationPath::kUnsupported);
    EXPECT_EQ(group.PathOf(CollectiveOp::kAllReduce, DType::kFloat32,
                           ReduceOp::kBxor),
              OperationPath::kUnsupported);
    std::vector<float> message(1);
    if (group.size() > 1) {
      EXPECT_THAT(group.Send(Raw(message), (group.rank() + 1) % group.size()),
                  StatusIs(absl::StatusCode::kUnimplemented));
    }
    EXPECT_THAT(group.Barrier(), IsOk()) << "the group is still usable";
  });
}

TEST_P(EmulationTest, MovesAreRight) {
  Run("poor", GetParam(), [](ProcessGroup& group) {
    const int size = group.size();
    const int rank = group.rank();
    for (const size_t n : {1, 1000}) {
      for (int root = 0; root < size; ++root) {
        std::vector<int32_t> buffer = Values<int32_t>(rank, n);
        ASSERT_THAT(group.Broadcast(Raw(buffer), root), IsOk());
        EXPECT_EQ(buffer, Values<int32_t>(root, n));

        const std::vector<int32_t> own = Values<int32_t>(rank, n);
        std::vector<int32_t> all(rank == root ? n * size : 0);
        ASSERT_THAT(group.Gather(Raw(own), Raw(all), root), IsOk());
        std::vector<int32_t> back(n);
        ASSERT_THAT(group.Scatter(Raw(std::as_const(all)), Raw(back), root),
                    IsOk());
        EXPECT_EQ(back, own) << "scatter undoes gather";
      }
      std::vector<int32_t> all(n * size);
      ASSERT_THAT(group.AllGather(Raw(Values<int32_t>(rank, n)), Raw(all)),
                  IsOk());
      for (int r = 0; r < size; ++r) {
        EXPECT_EQ(std::vector<int32_t>(all.begin() + r * n,
                                       all.begin() + (r + 1) * n),
                  Values<int32_t>(r, n));
      }
    }
  });
}

// From one round over two to several pieces of kMaxScratch.
TEST_P(EmulationTest, ReductionsAreRightAtEverySize) {
  Run("poor", GetParam(), [](ProcessGroup& group) {
    const int size = group.size();
    for (const size_t n :
         {size_t{1}, size_t{7}, size_t{100003}, size_t{3000001}}) {
      SCOPED_TRACE(absl::StrCat(n, " elements"));
      const std::vector<float> own = Values<float>(group.rank(), n);
      const std::vector<float> sums = Sums<float>(size, n);
      std::vector<float> result(n);
      ASSERT_THAT(group.AllReduce(Raw(own), Raw(result), DType::kFloat32,
                                  ReduceOp::kSum),
                  IsOk());
      EXPECT_TRUE(result == sums);

      std::vector<float> in_place = own;
      ASSERT_THAT(
          group.AllReduce<float>(absl::MakeSpan(in_place), ReduceOp::kSum),
          IsOk());
      EXPECT_TRUE(in_place == sums);

      const int root = size - 1;
      std::vector<float> at_root(group.rank() == root ? n : 0);
      std::vector<float> kept = own;
      ASSERT_THAT(group.Reduce(Raw(std::as_const(kept)), Raw(at_root),
                               DType::kFloat32, ReduceOp::kSum, root),
                  IsOk());
      EXPECT_TRUE(kept == own) << "what is sent stays as it is";
      if (group.rank() == root) {
        EXPECT_TRUE(at_root == sums);
      }
    }
  });
}

TEST_P(EmulationTest, BlocksOfReduceScatterMayDiffer) {
  Run("poor", GetParam(), [](ProcessGroup& group) {
    const int size = group.size();
    // Block r has 5 elements for rank 0, none for rank 1, over a piece for the
    // last.
    std::vector<size_t> lengths(size, 5);
    if (size > 1) lengths[1] = 0;
    lengths[size - 1] = 2500001;
    const size_t total =
        std::accumulate(lengths.begin(), lengths.end(), size_t{0});
    const std::vector<float> own = Values<float>(group.rank(), total);
    const std::vector<float> sums = Sums<float>(size, total);
    std::vector<ConstBytes> sends;
    size_t offset = 0;
    size_t own_offset = 0;
    for (int r = 0; r < size; ++r) {
      if (r == group.rank()) own_offset = offset;
      sends.push_back(Raw(own).subspan(4 * offset, 4 * lengths[r]));
      offset += lengths[r];
    }
    std::vector<float> result(lengths[group.rank()]);
    ASSERT_THAT(group.ReduceScatterV(sends, Raw(result), DType::kFloat32,
                                     ReduceOp::kSum),
                IsOk());
    EXPECT_TRUE(
        std::equal(result.begin(), result.end(), sums.begin() + own_offset));
  });
}

TEST_P(EmulationTest, AnAverageMayBeANativeSum) {
  Run("sums", GetParam(), [](ProcessGroup& group) {
    EXPECT_EQ(group.PathOf(CollectiveOp::kAllReduce), OperationPath::kNative);
    EXPECT_EQ(
        group.PathOf(CollectiveOp::kAllReduce, DType::kFloat64, ReduceOp::kAvg),
        OperationPath::kEmulated);
    for (const DType dtype : {DType::kFloat64, DType::kInt64}) {
      const std::vector<int64_t> ints = Values<int64_t>(group.rank(), 33);
      const std::vector<double> floats = Values<double>(group.rank(), 33);
      std::vector<int64_t> int_result(33);
      std::vector<double> float_result(33);
      const bool is_float = dtype == DType::kFloat64;
      ASSERT_THAT(
          group.AllReduce(is_float ? Raw(floats) : Raw(ints),
                          is_float ? Raw(float_result) : Raw(int_result), dtype,
                          ReduceOp::kAvg),
          IsOk());
      for (size_t i = 0; i < 33; ++i) {
        if (is_float) {
          EXPECT_EQ(float_result[i],
                    Sums<double>(group.size(), 33)[i] / group.size());
        } else {
          EXPECT_EQ(int_result[i],
                    Sums<int64_t>(group.size(), 33)[i] / group.size());
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, EmulationTest, ::testing::Values(1, 2, 3, 5),
                         [](const auto& info) {
                           return absl::StrCat(info.param, "ranks");
                         });

}  // namespace
}  // namespace sherd::internal
