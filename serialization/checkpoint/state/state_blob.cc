#include "sherd/serialization/checkpoint/state/state_blob.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/state/state_name.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/archive/state_codec.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace {

// Before the message.
using RowLength = uint64_t;
constexpr int64_t kLengthBytes = sizeof(RowLength);

// The tensor of that name, a row of bytes for each tree; null if there is none.
absl::StatusOr<std::shared_ptr<const ManifestTensor>> FindRows(
    const CheckpointReader& reader, absl::string_view name) {
  auto tensor = reader.manifest().Find(name);
  if (absl::IsInvalidArgument(tensor.status())) return nullptr;
  SHERD_RETURN_IF_ERROR(tensor.status());
  const Dims& sizes = (*tensor)->sizes();
  const int ranks = reader.manifest().summary().world_size;
  if ((*tensor)->dtype == kUInt8 && sizes.size() == 2 && sizes[0] <= ranks &&
      sizes[1] >= kLengthBytes &&
      sizes[1] <= StateRowBytes(internal::kMaxStateBytes)) {
    return *std::move(tensor);
  }
  return absl::DataLossError(
      absl::StrCat(reader.path(), ": tensor ", Quoted(name), " is ",
                   Name((*tensor)->dtype), " ", FormatDims(sizes),
                   ", expected rows of bytes, at most one for each of the ",
                   ranks, " ranks that saved: the values of a state"));
}

absl::StatusOr<StateDict> ReadRow(const CheckpointReader& reader,
                                  const ManifestTensor& rows, int64_t row,
                                  int64_t& memory) {
  SHERD_ASSIGN_OR_RETURN(
      const Tensor bytes,
      reader.ReadSlice(rows.name, {row, 0}, {1, rows.sizes()[1]}));
  absl::StatusOr<StateDict> state = ReadStateRow(
      absl::MakeConstSpan(static_cast<const std::byte*>(bytes.data()),
                          static_cast<size_t>(bytes.nbytes())),
      memory);
  if (state.ok()) return state;
  return Annotate(state.status(),
                  absl::StrCat(reader.path(), ": tensor ", Quoted(rows.name),
                               ", row ", row));
}

bool IsTensor(const StateValue& value) {
  return value.kind() == StateKind::kTensor ||
         value.kind() == StateKind::kShardedTensor;
}

// Of values that are no maps and lists, or empty ones.
bool IsSame(const StateValue& a, const StateValue& b) {
  if (IsTensor(a) || IsTensor(b)) return IsTensor(a) && IsTensor(b);
  StateDict x, y;
  SHERD_CHECK(x.Set("value", a).ok() && y.Set("value", b).ok());
  return x.BitwiseEqual(y);
}

// As MergeState, of one value.
std::optional<StateConflict> MergeValue(const std::string& name,
                                        const StateValue& from,
                                        StateDict& into) {
  const absl::StatusOr<const StateValue*> found = into.Find(name);
  if (!found.ok()) {
    // Its map is there, or the name would not have come so far.
    SHERD_CHECK(into.Set(name, from).ok());
    return std::nullopt;
  }
  const StateValue& there = **found;
  const auto* list = from.get_if<StateList>();
  const auto* map = from.get_if<StateDict>();
  const auto* list_there = there.get_if<StateList>();
  if (map != nullptr && there.kind() == StateKind::kMap) {
    for (const StateEntry& entry : *map) {
      std::string below = name;
      internal::AppendKey(entry.name, below);
      if (auto conflict = MergeValue(below, entry.value, into)) return conflict;
    }
    return std::nullopt;
  }
  if (list != nullptr && list_there != nullptr &&
      list->size() == list_there->size()) {
    for (size_t i = 0; i < list->size(); ++i) {
      std::string below = name;
      internal::AppendPosition(static_cast<int64_t>(i), below);
      if (auto conflict = MergeValue(below, (*list)[i], into)) return conflict;
    }
    return std::nullopt;
  }
  const bool is_leaf = list == nullptr && map == nullptr;
  if (is_leaf && IsSame(there, from)) return std::nullopt;
  return StateConflict{name, there, from};
}

}  // namespace

bool IsStateBlob(absl::string_view name) {
  return name == kSharedStateName || name == kRankStateName;
}

std::string RankTensorName(int rank, absl::string_view name) {
  return absl::StrCat(kRankTensorPrefix, rank, ".", name);
}

absl::StatusOr<std::vector<internal::SavedValue>> StateTreeOf(
    const StateDict& state) {
  return internal::FlattenState(
      state, [](const StateValue&) -> absl::StatusOr<internal::SavedContents> {
        return internal::StoredTensor();
      });
}

absl::StatusOr<StateDict> DecodeStateTree(absl::string_view message,
                                          int64_t& memory) {
  SHERD_ASSIGN_OR_RETURN(const internal::SavedState saved,
                         internal::DecodeTree(message, memory));
  SHERD_ASSIGN_OR_RETURN(
      StateValue value,
      internal::BuildValue(saved, 0, [](size_t) { return Tensor(); }));
  return std::move(*value.get_if<StateDict>());
}

int64_t StateRowBytes(int64_t message_bytes) {
  constexpr uint64_t kLeastStep = 512;
  const auto bytes = static_cast<uint64_t>(kLengthBytes + message_bytes);
  const uint64_t step = std::max(kLeastStep, absl::bit_floor(bytes) / 8);
  return static_cast<int64_t>((bytes + step - 1) / step * step);
}

void WriteStateRow(absl::string_view message, absl::Span<std::byte> row) {
  std::string length;
  AppendLittleEndian(static_cast<RowLength>(message.size()), length);
  std::memcpy(row.data(), length.data(), length.size());
  if (!message.empty()) {
    std::memcpy(&row[length.size()], message.data(), message.size());
  }
  std::fill(row.begin() + length.size() + message.size(), row.end(),
            std::byte{0});
}

absl::StatusOr<StateDict> ReadStateRow(absl::Span<const std::byte> row,
                                       int64_t& memory) {
  const absl::string_view text(reinterpret_cast<const char*>(row.data()),
                               row.size());
  if (text.size() < kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat("a row of ", text.size(), " bytes has no length"));
  }
  const auto length = ReadLittleEndian<RowLength>(text);
  if (length > text.size() - kLengthBytes) {
    return absl::DataLossError(absl::StrCat("the message has ", length,
                                            " bytes, expected at most ",
                                            text.size() - kLengthBytes));
  }
  // A rank that had nothing of its own.
  if (length == 0) return StateDict();
  return DecodeStateTree(text.substr(kLengthBytes, length), memory);
}

std::string StateConflict::Describe(const StateValue& value) {
  const bool is_scalar =
      value.kind() >= StateKind::kBool && value.kind() <= StateKind::kString;
  return is_scalar ? absl::StrCat(Name(value.kind()), " ", value.ToString())
                   : value.ToString();
}

std::optional<StateConflict> MergeState(const StateDict& from,
                                        StateDict& into) {
  for (const StateEntry& entry : from) {
    auto conflict =
        MergeValue(StateDict::EscapeKey(entry.name), entry.value, into);
    if (conflict) return conflict;
  }
  return std::nullopt;
}

absl::StatusOr<std::optional<StateDict>> ReadSharedTree(
    const CheckpointReader& reader, absl::FunctionRef<absl::Status()> progress,
    int64_t& memory) {
  SHERD_ASSIGN_OR_RETURN(const auto rows, FindRows(reader, kSharedStateName));
  if (rows == nullptr) return std::nullopt;
  StateDict shared;
  for (int64_t row = 0; row < rows->sizes()[0]; ++row) {
    SHERD_ASSIGN_OR_RETURN(const StateDict state,
                           ReadRow(reader, *rows, row, memory));
    SHERD_RETURN_IF_ERROR(progress());
    if (const auto conflict = MergeState(state, shared)) {
      return absl::DataLossError(absl::StrCat(
          reader.path(), ": tensor ", Quoted(kSharedStateName), ": ",
          Quoted(conflict->name), " is ",
          StateConflict::Describe(conflict->there), ", but in row ", row, " ",
          StateConflict::Describe(conflict->added)));
    }
  }
  return shared;
}

absl::StatusOr<StateDict> ReadRankTree(const CheckpointReader& reader, int rank,
                                       int64_t& memory) {
  SHERD_ASSIGN_OR_RETURN(const auto rows, FindRows(reader, kRankStateName));
  if (rows == nullptr || rank >= rows->sizes()[0]) return StateDict();
  return ReadRow(reader, *rows, rank, memory);
}

}  // namespace sherd
