#ifndef SHERD_SERIALIZATION_KITS_SAMPLE_ARCHIVE_H_
#define SHERD_SERIALIZATION_KITS_SAMPLE_ARCHIVE_H_

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {

// For tests: 0, 1, 2, … as any dtype, byte by byte.
inline absl::StatusOr<Tensor> CountingTensor(absl::Span<const int64_t> sizes,
                                             DType dtype = kFloat32) {
  SHERD_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Empty(sizes, {.dtype = dtype}));
  auto* const bytes = static_cast<uint8_t*>(tensor.data());
  for (int64_t i = 0; i < tensor.nbytes(); ++i) {
    bytes[i] = static_cast<uint8_t>(dtype == kBool ? i % 2 : i % 251);
  }
  return tensor;
}

// All shards of a tensor of three rows, two of them here.
inline absl::StatusOr<ShardedTensor> SampleShards() {
  SHERD_ASSIGN_OR_RETURN(
      const ShardingSpecPtr spec,
      ChunkShardingSpec::Create(0, {"rank:0", "rank:1", "rank:2"}));
  SHERD_ASSIGN_OR_RETURN(
      const ShardedTensorMetadata metadata,
      spec->BuildMetadata({3, 2}, {.dtype = kInt16, .requires_grad = true}));
  SHERD_ASSIGN_OR_RETURN(const Tensor first, CountingTensor({1, 2}, kInt16));
  SHERD_ASSIGN_OR_RETURN(const Tensor last, first.Clone());
  return ShardedTensor::WithoutGroup(
      {{last, metadata.shards[2]}, {first, metadata.shards[0]}}, metadata,
      spec);
}

// Every kind of value, and tensors that share elements. What version 1 wrote of
// it is under testdata/v1, so it never changes.
inline absl::StatusOr<StateDict> SampleState() {
  StateDict state;
  SHERD_ASSIGN_OR_RETURN(const Tensor weight, CountingTensor({4, 6}));
  SHERD_ASSIGN_OR_RETURN(const Tensor rows, weight.Narrow(0, 1, 2));
  SHERD_ASSIGN_OR_RETURN(const Tensor large, CountingTensor({5000}, kUInt8));
  SHERD_ASSIGN_OR_RETURN(const Tensor image, CountingTensor({2, 4, 5, 3}));
  SHERD_ASSIGN_OR_RETURN(const Tensor channels_last,
                         image.Permute({0, 3, 1, 2}));
  SHERD_ASSIGN_OR_RETURN(const Tensor empty, Tensor::Empty({0, 3}));
  SHERD_ASSIGN_OR_RETURN(
      const Tensor meta,
      Tensor::Empty({7}, {.dtype = kBFloat16, .device = DeviceType::kMeta}));
  SHERD_ASSIGN_OR_RETURN(const ShardedTensor sharded, SampleShards());
  const auto set = [&](absl::string_view name, StateValue value) {
    return state.Set(name, std::move(value));
  };
  SHERD_RETURN_IF_ERROR(set("model.weight", weight));
  SHERD_RETURN_IF_ERROR(set("model.rows", rows));
  SHERD_RETURN_IF_ERROR(set("model.tied", weight));
  SHERD_RETURN_IF_ERROR(set("model.large", large));
  SHERD_RETURN_IF_ERROR(set("model.image", channels_last));
  SHERD_RETURN_IF_ERROR(set("model.empty", empty));
  SHERD_RETURN_IF_ERROR(set("model.meta", meta));
  SHERD_RETURN_IF_ERROR(set("model.sharded", sharded));
  SHERD_RETURN_IF_ERROR(set("groups[0].lr", 0.125));
  SHERD_RETURN_IF_ERROR(set("groups[0].\\[odd\\.key]", -1));
  SHERD_RETURN_IF_ERROR(set("groups[1]", StateDict()));
  SHERD_RETURN_IF_ERROR(set("groups[2]", StateList()));
  SHERD_RETURN_IF_ERROR(set("groups[3][0]", true));
  SHERD_RETURN_IF_ERROR(set("step", std::numeric_limits<int64_t>::min()));
  SHERD_RETURN_IF_ERROR(set("none", StateValue()));
  SHERD_RETURN_IF_ERROR(set("name", std::string("\xff\0adam", 6)));
  SHERD_RETURN_IF_ERROR(set("random", StateBytes{std::string("\0\1\xfe", 3)}));
  return state;
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_SAMPLE_ARCHIVE_H_
