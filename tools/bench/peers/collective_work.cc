#include "sherd/tools/bench/peers/collective_work.h"

#include <any>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/logging.h"

namespace sherd {
namespace {

// Element i of rank r; sums of some ranks are exact.
float Value(int64_t rank, int64_t i) {
  return static_cast<float>((i * 7 + rank * 131) % 1021);
}

// Buffers are used as floats where they hold whole ones, and the few bytes of
// smaller ones take what fits.
void FillFloats(int rank, std::byte* to, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += sizeof(float)) {
    const float value = Value(rank, at / static_cast<int64_t>(sizeof(float)));
    std::memcpy(to + at, &value, std::min<int64_t>(sizeof(float), bytes - at));
  }
}

struct Buffers {
  std::shared_ptr<Storage> send;
  std::shared_ptr<Storage> recv;
};

// Compares `bytes` at `found` with those of rank `from` at `offset`.
bool Holds(int from, int64_t offset, const std::byte* found, int64_t bytes) {
  constexpr int64_t kFloat = sizeof(float);
  for (int64_t at = 0; at < bytes;) {
    const int64_t place = offset + at;
    const float value = Value(from, place / kFloat);
    const int64_t within = place % kFloat;
    const int64_t length = std::min(kFloat - within, bytes - at);
    if (std::memcmp(reinterpret_cast<const std::byte*>(&value) + within,
                    found + at, length) != 0) {
      return false;
    }
    at += length;
  }
  return true;
}

bool HoldsSums(int world, const std::byte* found, int64_t bytes) {
  for (int64_t at = 0; at + static_cast<int64_t>(sizeof(float)) <= bytes;
       at += sizeof(float)) {
    float sum = 0;
    for (int r = 0; r < world; ++r) {
      sum += Value(r, at / static_cast<int64_t>(sizeof(float)));
    }
    float value;
    std::memcpy(&value, found + at, sizeof(value));
    if (value != sum) return false;
  }
  return true;
}

}  // namespace

int64_t CollectiveShape::send_bytes() const {
  switch (kind) {
    case BenchCollective::kBarrier:
    case BenchCollective::kBroadcast:
      return 0;
    case BenchCollective::kAllReduce:
      return bytes;
    case BenchCollective::kAllGather:
    case BenchCollective::kAllToAll:
      return bytes / world;
  }
  return 0;
}

int64_t CollectiveShape::recv_bytes() const {
  switch (kind) {
    case BenchCollective::kBarrier:
      return 0;
    case BenchCollective::kBroadcast:
    case BenchCollective::kAllReduce:
    case BenchCollective::kAllGather:
      return bytes;
    case BenchCollective::kAllToAll:
      return bytes / world;
  }
  return 0;
}

absl::Status CollectiveShape::Check() const {
  if (kind == BenchCollective::kBarrier) {
    if (bytes == 8) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "a barrier has no size: measured where 8 bytes are asked for");
  }
  int64_t unit = sizeof(float);
  if (kind == BenchCollective::kAllGather) unit = world;
  if (kind == BenchCollective::kAllToAll) unit = int64_t{world} * world;
  if (bytes > 0 && bytes % unit == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(bytes, " bytes do not divide into units of ", unit));
}

CollectiveWork::CollectiveWork(RankContext& context,
                               const CollectiveShape& shape)
    : shape_(shape), rank_(context.rank()) {
  if (!context.common().has_value()) {
    const auto allocate = [](int64_t bytes) {
      auto storage = Storage::Allocate(bytes);
      SHERD_CHECK(storage.ok()) << storage.status().ToString();
      return *std::move(storage);
    };
    context.common() =
        Buffers{allocate(shape.send_bytes()), allocate(shape.recv_bytes())};
  }
  const auto& buffers = std::any_cast<const Buffers&>(context.common());
  send_ = static_cast<std::byte*>(buffers.send->data());
  recv_ = static_cast<std::byte*>(buffers.recv->data());
  FillSend();
}

CollectiveWork::CollectiveWork(RankContext& context,
                               const CollectiveShape& shape, std::byte* send,
                               std::byte* recv)
    : shape_(shape), rank_(context.rank()), send_(send), recv_(recv) {
  FillSend();
}

void CollectiveWork::FillSend() {
  FillFloats(rank_, send_, shape_.send_bytes());
}

absl::Span<std::byte> CollectiveWork::send() const {
  return {send_, static_cast<size_t>(shape_.send_bytes())};
}

absl::Span<std::byte> CollectiveWork::recv() const {
  return {recv_, static_cast<size_t>(shape_.recv_bytes())};
}

absl::Status CollectiveWork::Prepare() {
  if (shape_.kind == BenchCollective::kBroadcast && rank_ == 0) {
    FillFloats(0, recv_, shape_.bytes);
  } else if (!recv().empty()) {
    std::memset(recv_, 0xa5, recv().size());
  }
  return absl::OkStatus();
}

absl::Status CollectiveWork::Check() {
  bool right = true;
  const int64_t block = shape_.send_bytes();
  switch (shape_.kind) {
    case BenchCollective::kBarrier:
      break;
    case BenchCollective::kBroadcast:
      right = Holds(0, 0, recv_, shape_.bytes);
      break;
    case BenchCollective::kAllReduce:
      right = HoldsSums(shape_.world, recv_, shape_.bytes);
      break;
    case BenchCollective::kAllGather:
      for (int r = 0; r < shape_.world; ++r) {
        right = right && Holds(r, 0, recv_ + r * block, block);
      }
      break;
    case BenchCollective::kAllToAll: {
      const int64_t piece = block / shape_.world;
      for (int r = 0; r < shape_.world; ++r) {
        right = right && Holds(r, rank_ * piece, recv_ + r * piece, piece);
      }
      break;
    }
  }
  if (right) return absl::OkStatus();
  return absl::DataLossError("the result is wrong");
}

}  // namespace sherd
