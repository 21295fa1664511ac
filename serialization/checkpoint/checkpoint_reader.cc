#include "sherd/serialization/checkpoint_reader.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/extent_reader.h"
#include "sherd/serialization/checkpoint/shard_box_reader.h"
#include "sherd/serialization/manifest/manifest_reader.h"
#include "sherd/serialization/safetensors/box_pieces.h"

namespace sherd {
namespace {

absl::Status CheckDestination(const ManifestTensor& saved,
                              const Tensor& destination) {
  const std::string label =
      absl::StrCat("the destination of tensor ", Quoted(saved.name));
  if (destination.dtype() != saved.dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat(label, " has ", Name(destination.dtype()),
                     " elements, expected ", Name(saved.dtype)));
  }
  if (destination.numel() == 0) return absl::OkStatus();
  if (destination.data() == nullptr || !destination.writable()) {
    return absl::FailedPreconditionError(absl::StrCat(
        label, destination.data() == nullptr ? " has no data" : " is read-only",
        ", expected memory to write to"));
  }
  if (!IsNonOverlapping(destination.sizes(), destination.strides())) {
    return absl::InvalidArgumentError(
        absl::StrCat("elements of ", label, " coincide: sizes ",
                     FormatDims(destination.sizes()), ", strides ",
                     FormatDims(destination.strides())));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CheckpointReader> CheckpointReader::Open(const std::string& path,
                                                        FileSystem& files) {
  SHERD_ASSIGN_OR_RETURN(ManifestReader manifest,
                         ManifestReader::Open(files, path));
  return CheckpointReader(path, files, std::move(manifest));
}

absl::StatusOr<Tensor> CheckpointReader::ReadTensor(
    absl::string_view name) const {
  SHERD_ASSIGN_OR_RETURN(const auto tensor, manifest_.Find(name));
  return ReadBox(*tensor, WholeBox(tensor->sizes()));
}

absl::StatusOr<Tensor> CheckpointReader::ReadSlice(
    absl::string_view name, absl::Span<const int64_t> offsets,
    absl::Span<const int64_t> sizes) const {
  SHERD_ASSIGN_OR_RETURN(const auto tensor, manifest_.Find(name));
  const BoxView slice(offsets, sizes);
  if (absl::Status status = CheckSlice(tensor->name, tensor->sizes(), slice);
      !status.ok()) {
    return Annotate(std::move(status), path_);
  }
  return ReadBox(*tensor, slice);
}

absl::Status CheckpointReader::ReadInto(absl::string_view name,
                                        absl::Span<const int64_t> offsets,
                                        Tensor destination) const {
  SHERD_ASSIGN_OR_RETURN(const auto tensor, manifest_.Find(name));
  const BoxView slice(offsets, destination.sizes());
  absl::Status status = CheckSlice(tensor->name, tensor->sizes(), slice);
  if (status.ok()) status = CheckDestination(*tensor, destination);
  if (!status.ok()) return Annotate(std::move(status), path_);
  return ReadBoxInto(*tensor, slice, [&] { return destination; });
}

absl::StatusOr<Tensor> CheckpointReader::ReadBox(const ManifestTensor& tensor,
                                                 const BoxView& slice) const {
  absl::StatusOr<Tensor> result;
  SHERD_RETURN_IF_ERROR(ReadBoxInto(tensor, slice, [&] {
    return result = Tensor::Empty(slice.sizes, {.dtype = tensor.dtype});
  }));
  return result;
}

absl::Status CheckpointReader::ReadBoxInto(
    const ManifestTensor& tensor, const BoxView& slice,
    absl::FunctionRef<absl::StatusOr<Tensor>()> make) const {
  // First check that the files have the sizes in the manifest, and the shards
  // are inside them: only then is the manifest trusted about the memory that
  // the slice needs.
  ExtentReader files(manifest_, *files_);
  absl::Status status;
  std::vector<int64_t> shards;
  tensor.layout.ForEachIn(slice, [&](int64_t shard) {
    const SavedShardPlace place =
        tensor.PlaceOf(shard, manifest_.summary().chunk_bytes);
    for (const SavedExtent& extent : place.extents) {
      status.Update(files.Open(extent));
    }
    shards.push_back(shard);
    return status.ok();
  });
  SHERD_RETURN_IF_ERROR(status);
  SHERD_ASSIGN_OR_RETURN(Tensor result, make());
  ShardBoxReader reader(files);
  Box saved;
  for (const int64_t shard : shards) {
    tensor.layout.BoxAt(shard, saved);
    const std::optional<Box> common = Intersect(saved, slice);
    SHERD_ASSIGN_OR_RETURN(
        Tensor part,
        result.Narrow(OffsetsFrom(slice.offsets, *common), common->sizes));
    SHERD_RETURN_IF_ERROR(reader.ReadBox(
        tensor, shard, OffsetsFrom(saved.offsets, *common), part));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> CheckpointExists(const std::string& path,
                                      FileSystem& files) {
  return ManifestExists(files, path);
}

}  // namespace sherd
