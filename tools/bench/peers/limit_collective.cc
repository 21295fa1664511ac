#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "sherd/core/base/checked_math.h"
#include "sherd/tools/bench/peers/collective_work.h"

namespace sherd {
namespace {

constexpr int64_t kPage = 4096;
// Blocks of floats that are summed while they are in the first cache.
constexpr int64_t kBlock = 8192;

// Ranks that outnumber the processors yield at once.
struct YieldingBarrier {
  alignas(64) std::atomic<uint32_t> arrived;
  alignas(64) std::atomic<uint32_t> round;

  void Meet(uint32_t world) {
    const uint32_t current = round.load(std::memory_order_acquire);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == world) {
      arrived.store(0, std::memory_order_relaxed);
      round.store(current + 1, std::memory_order_release);
      return;
    }
    while (round.load(std::memory_order_acquire) == current) sched_yield();
  }
};

int64_t SendArea(const CollectiveShape& shape) {
  return RoundUp(std::max<int64_t>(shape.send_bytes(), 1), kPage);
}

int64_t RecvArea(const CollectiveShape& shape) {
  return RoundUp(std::max<int64_t>(shape.recv_bytes(), 1), kPage);
}

std::byte* SendOf(RankContext& context, const CollectiveShape& shape,
                  int rank) {
  return context.shared().data() + kPage +
         rank * (SendArea(shape) + RecvArea(shape));
}

std::byte* RecvOf(RankContext& context, const CollectiveShape& shape,
                  int rank) {
  return SendOf(context, shape, rank) + SendArea(shape);
}

class LimitCollective final : public CollectiveWork {
 public:
  LimitCollective(RankContext& context, const CollectiveShape& shape)
      : CollectiveWork(context, shape, SendOf(context, shape, context.rank()),
                       RecvOf(context, shape, context.rank())),
        barrier_(*reinterpret_cast<YieldingBarrier*>(context.shared().data())) {
    for (int r = 0; r < shape.world; ++r) {
      sends_.push_back(SendOf(context, shape, r));
      recvs_.push_back(RecvOf(context, shape, r));
    }
  }

  absl::Status Run() override {
    const int64_t block = shape().send_bytes();
    switch (shape().kind) {
      case BenchCollective::kBarrier:
        barrier_.Meet(world());
        break;
      case BenchCollective::kBroadcast:
        if (rank() != 0) std::memcpy(recvs_[rank()], recvs_[0], shape().bytes);
        break;
      case BenchCollective::kAllReduce:
        AllReduce();
        break;
      case BenchCollective::kAllGather:
        for (int k = 0; k < world(); ++k) {
          const int from = (rank() + k) % world();
          std::memcpy(recvs_[rank()] + from * block, sends_[from], block);
        }
        break;
      case BenchCollective::kAllToAll:
        for (int k = 0; k < world(); ++k) {
          const int from = (rank() + k) % world();
          const int64_t piece = block / world();
          std::memcpy(recvs_[rank()] + from * piece,
                      sends_[from] + rank() * piece, piece);
        }
        break;
    }
    return absl::OkStatus();
  }

 private:
  int world() const { return shape().world; }

  // Slice r of all ranks is summed by rank r, then read by all.
  void AllReduce() {
    const int64_t count = shape().bytes / static_cast<int64_t>(sizeof(float));
    const auto begin = [&](int r) { return count * r / world(); };
    const auto floats = [](std::byte* at) {
      return reinterpret_cast<float*>(at);
    };
    float* const own = floats(recvs_[rank()]);
    for (int64_t i = begin(rank()); i < begin(rank() + 1); i += kBlock) {
      const int64_t n = std::min(kBlock, begin(rank() + 1) - i);
      std::memcpy(own + i, floats(sends_[rank()]) + i, n * sizeof(float));
      for (int k = 1; k < world(); ++k) {
        const float* const other = floats(sends_[(rank() + k) % world()]) + i;
        for (int64_t j = 0; j < n; ++j) own[i + j] += other[j];
      }
    }
    barrier_.Meet(world());
    for (int k = 1; k < world(); ++k) {
      const int from = (rank() + k) % world();
      std::memcpy(own + begin(from), floats(recvs_[from]) + begin(from),
                  (begin(from + 1) - begin(from)) * sizeof(float));
    }
  }

  YieldingBarrier& barrier_;
  std::vector<std::byte*> sends_;
  std::vector<std::byte*> recvs_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankWork>> MakeLimitCollective(
    RankContext& context, const CollectiveShape& shape) {
  return std::make_unique<LimitCollective>(context, shape);
}

int64_t LimitCollectiveBytes(const CollectiveShape& shape) {
  return kPage + shape.world * (SendArea(shape) + RecvArea(shape));
}

}  // namespace sherd
