#include "sherd/tools/examples/quickstart/model_comparison.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/safetensors.h"

namespace sherd {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;

class Side {
 public:
  static absl::StatusOr<Side> Open(FileSystem& files, const std::string& path) {
    SHERD_ASSIGN_OR_RETURN(SafetensorsFile header,
                           SafetensorsFile::Open(files, path));
    SHERD_ASSIGN_OR_RETURN(std::unique_ptr<File> data, files.OpenForRead(path));
    return Side(std::move(header), std::move(data));
  }

  const SafetensorsFile& header() const { return header_; }

  // The bytes of `entry` from `offset` on, as many as a piece or the tensor
  // has; valid until the next call.
  absl::StatusOr<absl::Span<const std::byte>> Read(
      const SafetensorsEntry& entry, int64_t offset) {
    const size_t length = std::min(kPieceBytes, entry.nbytes() - offset);
    SHERD_RETURN_IF_ERROR(
        data_->ReadAt(header_.data_begin() + entry.begin + offset,
                      absl::MakeSpan(buffer_).first(length)));
    return absl::MakeConstSpan(buffer_).first(length);
  }

 private:
  Side(SafetensorsFile header, std::unique_ptr<File> data)
      : header_(std::move(header)),
        data_(std::move(data)),
        buffer_(kPieceBytes) {}

  SafetensorsFile header_;
  std::unique_ptr<File> data_;
  std::vector<std::byte> buffer_;
};

std::string Hex(absl::Span<const std::byte> bytes) {
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

std::string TypeOf(const SafetensorsEntry& entry) {
  return absl::StrCat(entry.dtype_name, " ", FormatDims(entry.shape));
}

absl::Status CompareNames(const SafetensorsFile& expected,
                          const SafetensorsFile& actual) {
  for (const SafetensorsEntry& entry : expected.entries()) {
    if (actual.Find(entry.name).ok()) continue;
    return absl::DataLossError(
        absl::StrCat(actual.path(), ": tensor ", entry.name, " is missing"));
  }
  for (const SafetensorsEntry& entry : actual.entries()) {
    if (expected.Find(entry.name).ok()) continue;
    return absl::DataLossError(absl::StrCat(actual.path(), ": tensor ",
                                            entry.name, " is not in ",
                                            expected.path()));
  }
  return absl::OkStatus();
}

absl::Status CompareData(Side& expected, const SafetensorsEntry& entry,
                         Side& actual, const SafetensorsEntry& other) {
  const auto size = static_cast<int64_t>(SizeOf(entry.dtype));
  for (int64_t offset = 0; offset < entry.nbytes(); offset += kPieceBytes) {
    SHERD_ASSIGN_OR_RETURN(const absl::Span<const std::byte> a,
                           expected.Read(entry, offset));
    SHERD_ASSIGN_OR_RETURN(const absl::Span<const std::byte> b,
                           actual.Read(other, offset));
    if (std::memcmp(a.data(), b.data(), a.size()) == 0) continue;
    const auto at = std::mismatch(a.begin(), a.end(), b.begin()).first;
    const int64_t first = (at - a.begin()) / size * size;
    return absl::DataLossError(absl::StrCat(
        actual.header().path(), ": tensor ", entry.name, ": element ",
        (offset + first) / size, " differs from ", expected.header().path(),
        ": expected bytes ", Hex(a.subspan(first, size)), ", got ",
        Hex(b.subspan(first, size))));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelComparison> CompareModels(
    FileSystem& files, const std::string& expected_path,
    const std::string& actual_path,
    const std::function<void(int64_t bytes, absl::string_view tensor)>&
        on_progress) {
  SHERD_ASSIGN_OR_RETURN(Side expected, Side::Open(files, expected_path));
  SHERD_ASSIGN_OR_RETURN(Side actual, Side::Open(files, actual_path));
  SHERD_RETURN_IF_ERROR(CompareNames(expected.header(), actual.header()));
  ModelComparison comparison;
  for (const SafetensorsEntry& entry : expected.header().entries()) {
    SHERD_ASSIGN_OR_RETURN(const SafetensorsEntry* other,
                           actual.header().Find(entry.name));
    if (TypeOf(entry) != TypeOf(*other)) {
      return absl::DataLossError(
          absl::StrCat(actual_path, ": tensor ", entry.name, ": expected ",
                       TypeOf(entry), ", got ", TypeOf(*other)));
    }
    SHERD_RETURN_IF_ERROR(CompareData(expected, entry, actual, *other));
    ++comparison.tensors;
    comparison.bytes += entry.nbytes();
    if (on_progress) on_progress(entry.nbytes(), entry.name);
  }
  return comparison;
}

}  // namespace sherd
