#include "sherd/serialization/safetensors/safetensors_header.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

using Json = nlohmann::json;

constexpr char kMetadataKey[] = "__metadata__";
// Messages quote names; a hostile one does not get to fill the log.
constexpr size_t kMaxShown = 200;

struct DTypeName {
  DType dtype;
  absl::string_view name;
};

constexpr DTypeName kDTypeNames[] = {
    {kBool, "BOOL"},
    {kUInt8, "U8"},
    {kInt8, "I8"},
    {kUInt16, "U16"},
    {kInt16, "I16"},
    {kUInt32, "U32"},
    {kInt32, "I32"},
    {kUInt64, "U64"},
    {kInt64, "I64"},
    {kFloat8E4M3, "F8_E4M3"},
    {kFloat8E5M2, "F8_E5M2"},
    {kFloat16, "F16"},
    {kBFloat16, "BF16"},
    {kFloat32, "F32"},
    {kFloat64, "F64"},
    {kComplex64, "C64"},
    {kFloat8E4M3FNUZ, "F8_E4M3FNUZ"},
    {kFloat8E5M2FNUZ, "F8_E5M2FNUZ"},
    {kFloat8E8M0, "F8_E8M0"},
};

std::optional<DType> FindDType(absl::string_view name) {
  for (const DTypeName& entry : kDTypeNames) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

// A JSON string. Never throws: what is not UTF-8 is replaced.
std::string JsonString(absl::string_view text) {
  return Json(std::string(text))
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Builds a SafetensorsHeader from the events of the JSON parser, so that a key
// given twice is seen, which a tree of values would hide, and so that memory is
// bounded by what is kept.
class HeaderBuilder : public nlohmann::json_sax<Json> {
 public:
  absl::Status status() const { return status_; }
  SafetensorsHeader TakeHeader() { return std::move(header_); }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kStart:
        return Go(Place::kTop);
      case Place::kTop:
        if (key_ == kMetadataKey) return Go(Place::kMetadata);
        entry_ = SafetensorsEntry();
        entry_.name = key_;
        seen_dtype_ = seen_shape_ = seen_offsets_ = false;
        return Go(Place::kEntry);
      default:
        return Unexpected("an object");
    }
  }

  bool key(string_t& key) override {
    if (place_ == Place::kTop) {
      if (!names_.insert(key).second) return Refuse("appears twice", key);
      if (static_cast<int64_t>(key.size()) > kMaxSafetensorsNameBytes) {
        return Refuse(
            absl::StrCat("has ", key.size(), " bytes, expected at most ",
                         kMaxSafetensorsNameBytes),
            key);
      }
      key_ = std::move(key);
      return true;
    }
    if (place_ == Place::kMetadata) {
      if (header_.metadata.contains(key)) {
        return Refuse(absl::StrCat("has the key ", Quoted(key), " twice"),
                      kMetadataKey);
      }
      metadata_key_ = std::move(key);
      return true;
    }
    return EntryKey(key);
  }

  bool end_object() override {
    if (place_ == Place::kMetadata) return Go(Place::kTop);
    if (place_ == Place::kTop) return Go(Place::kEnd);
    if (!seen_dtype_ || !seen_shape_ || !seen_offsets_) {
      return RefuseEntry(absl::StrCat("has no \"",
                                      !seen_dtype_   ? "dtype"
                                      : !seen_shape_ ? "shape"
                                                     : "data_offsets",
                                      "\""));
    }
    header_.entries.push_back(std::move(entry_));
    return Go(Place::kTop);
  }

  bool start_array(size_t) override {
    if (place_ == Place::kEntry && member_ == Member::kShape) {
      return Go(Place::kShape);
    }
    if (place_ == Place::kEntry && member_ == Member::kOffsets) {
      offsets_.clear();
      return Go(Place::kOffsets);
    }
    return Unexpected("an array");
  }

  bool end_array() override {
    if (place_ == Place::kOffsets) {
      if (offsets_.size() != 2) {
        return RefuseEntry(
            absl::StrCat("has ", offsets_.size(), " data_offsets, expected 2"));
      }
      entry_.begin = offsets_[0];
      entry_.end = offsets_[1];
    }
    return Go(Place::kEntry);
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata.emplace(std::move(metadata_key_), std::move(value));
      return true;
    }
    if (place_ == Place::kEntry && member_ == Member::kDType) {
      const std::optional<DType> dtype = FindDType(value);
      if (!dtype.has_value()) {
        return Fail(absl::UnimplementedError(
            absl::StrCat("tensor ", Quoted(entry_.name), " has the dtype ",
                         Quoted(value), ", which Sherd does not know")));
      }
      entry_.dtype = *dtype;
      entry_.dtype_name = std::move(value);
      return true;
    }
    return Unexpected("a string");
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) {
      return Unexpected("a number");
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return RefuseEntry(
          absl::StrCat("has the number ", value, ", which is not below 2^63"));
    }
    const int64_t number = static_cast<int64_t>(value);
    if (place_ == Place::kOffsets) {
      if (offsets_.size() == 2) {
        return RefuseEntry("has more than 2 data_offsets");
      }
      offsets_.push_back(number);
      return true;
    }
    if (entry_.shape.size() == kMaxRank) {
      return Fail(absl::UnimplementedError(
          absl::StrCat("tensor ", Quoted(entry_.name), " has more than ",
                       kMaxRank, " dimensions")));
    }
    entry_.shape.push_back(number);
    return true;
  }

  bool number_integer(number_integer_t value) override {
    return Unexpected(absl::StrCat("the number ", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(absl::StrCat("the number ", text.substr(0, 40)));
  }
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool parse_error(size_t position, const std::string&,
                   const Json::exception& error) override {
    return Fail(absl::DataLossError(absl::StrCat(
        "not valid JSON at byte ", position, " of the header: ",
        PrintableLine(absl::string_view(error.what()).substr(0, kMaxShown)))));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kEntry, kShape, kOffsets, kEnd };
  enum class Member { kDType, kShape, kOffsets };

  bool Go(Place place) {
    place_ = place;
    return true;
  }

  bool Fail(absl::Status status) {
    status_ = std::move(status);
    return false;
  }
  bool Refuse(absl::string_view problem, absl::string_view name) {
    return Fail(absl::DataLossError(
        absl::StrCat("the key ", Quoted(name), " ", problem)));
  }
  bool RefuseEntry(absl::string_view problem) {
    return Fail(absl::DataLossError(
        absl::StrCat("tensor ", Quoted(entry_.name), " ", problem)));
  }
  bool Unexpected(absl::string_view what) {
    switch (place_) {
      case Place::kStart:
      case Place::kEnd:
        return Fail(absl::DataLossError(
            absl::StrCat("the header is ", what, ", expected an object")));
      case Place::kTop:
        return Refuse(absl::StrCat("is ", what, ", expected an object"), key_);
      case Place::kMetadata:
        return Refuse(
            absl::StrCat("has ", what, " under ", Quoted(metadata_key_),
                         ", expected a string"),
            kMetadataKey);
      case Place::kEntry:
        return RefuseEntry(absl::StrCat(
            "has ", what, " as ", Quoted(MemberName()), ", expected ",
            member_ == Member::kDType ? "a string" : "an array"));
      case Place::kShape:
      case Place::kOffsets:
        return RefuseEntry(absl::StrCat("has ", what, " in ",
                                        Quoted(MemberName()),
                                        ", expected a non-negative integer"));
    }
    return false;
  }

  absl::string_view MemberName() const {
    switch (member_) {
      case Member::kDType:
        return "dtype";
      case Member::kShape:
        return "shape";
      case Member::kOffsets:
        return "data_offsets";
    }
    return "";
  }

  bool EntryKey(absl::string_view key) {
    bool* seen = nullptr;
    if (key == "dtype") {
      member_ = Member::kDType;
      seen = &seen_dtype_;
    } else if (key == "shape") {
      member_ = Member::kShape;
      seen = &seen_shape_;
    } else if (key == "data_offsets") {
      member_ = Member::kOffsets;
      seen = &seen_offsets_;
    } else {
      return RefuseEntry(absl::StrCat("has the unknown key ", Quoted(key)));
    }
    if (*seen) return RefuseEntry(absl::StrCat("has ", Quoted(key), " twice"));
    *seen = true;
    return true;
  }

  SafetensorsHeader header_;
  absl::Status status_;
  Place place_ = Place::kStart;
  absl::flat_hash_set<std::string> names_;
  std::string key_;
  std::string metadata_key_;
  SafetensorsEntry entry_;
  Member member_ = Member::kDType;
  bool seen_dtype_ = false;
  bool seen_shape_ = false;
  bool seen_offsets_ = false;
  std::vector<int64_t> offsets_;
};

// Whether the ranges fill [0, data_bytes) without gap or overlap. Sorts.
absl::Status CheckRanges(std::vector<SafetensorsEntry>& entries,
                         int64_t data_bytes) {
  std::sort(entries.begin(), entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.begin, a.end, a.name) <
                     std::tie(b.begin, b.end, b.name);
            });
  int64_t position = 0;
  const SafetensorsEntry* previous = nullptr;
  for (const SafetensorsEntry& entry : entries) {
    const std::string where = absl::StrCat("tensor ", Quoted(entry.name),
                                           " at data offset ", entry.begin);
    if (entry.end > data_bytes) {
      return absl::DataLossError(absl::StrCat(where, " ends at ", entry.end,
                                              ", but the file has only ",
                                              data_bytes, " data bytes"));
    }
    if (entry.begin < position) {
      return absl::DataLossError(absl::StrCat(where, " overlaps tensor ",
                                              Quoted(previous->name),
                                              ", which ends at ", position));
    }
    if (entry.begin > position) {
      return absl::DataLossError(
          absl::StrCat(where, " leaves a hole of ", entry.begin - position,
                       " bytes before it, at data offset ", position));
    }
    position = entry.end;
    previous = &entry;
  }
  if (position != data_bytes) {
    return absl::DataLossError(absl::StrCat(
        data_bytes - position, " bytes follow the last tensor, at data offset ",
        position));
  }
  return absl::OkStatus();
}

absl::Status CheckLength(const SafetensorsEntry& entry) {
  const std::string where = absl::StrCat("tensor ", Quoted(entry.name),
                                         " at data offset ", entry.begin);
  const absl::StatusOr<int64_t> bytes = NumBytes(entry.shape, entry.dtype);
  if (!bytes.ok()) {
    return absl::DataLossError(
        absl::StrCat(where, ": ", bytes.status().message()));
  }
  if (entry.end < entry.begin) {
    return absl::DataLossError(
        absl::StrCat(where, " ends before that, at ", entry.end));
  }
  if (entry.end - entry.begin != *bytes) {
    return absl::DataLossError(absl::StrCat(
        where, " has ", entry.end - entry.begin, " bytes, but ",
        entry.dtype_name, " ", FormatDims(entry.shape), " needs ", *bytes));
  }
  return absl::OkStatus();
}

absl::Status CheckInfo(const SafetensorsTensorInfo& info) {
  const std::string where = absl::StrCat("tensor ", Quoted(info.name));
  if (info.name.empty() || info.name == kMetadataKey) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": not a name that a tensor can have"));
  }
  if (static_cast<int64_t>(info.name.size()) > kMaxSafetensorsNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": the name has ", info.name.size(),
                     " bytes, expected at most ", kMaxSafetensorsNameBytes));
  }
  if (!IsValidUtf8(info.name)) {
    return absl::InvalidArgumentError("a tensor name is not valid UTF-8");
  }
  if (IsStoredAsParts(info.dtype) && info.shape.size() == kMaxRank) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": ", Name(info.dtype),
        " takes a dimension more in the file, and has ", kMaxRank, " already"));
  }
  return Annotate(NumBytes(info.shape, info.dtype).status(), where);
}

void AppendEntry(const SafetensorsEntry& entry, std::string& text) {
  absl::StrAppend(&text, JsonString(entry.name), ":{\"dtype\":\"",
                  entry.dtype_name, "\",\"shape\":[");
  for (size_t d = 0; d < entry.shape.size(); ++d) {
    absl::StrAppend(&text, d == 0 ? "" : ",", entry.shape[d]);
  }
  absl::StrAppend(&text, "],\"data_offsets\":[", entry.begin, ",", entry.end,
                  "]}");
}

}  // namespace

bool IsValidUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t k) {
      return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u;
    };
    const auto tail = [&](size_t k, unsigned low = 0x80, unsigned high = 0xbf) {
      return byte(k) >= low && byte(k) <= high;
    };
    // The table of well-formed sequences of the Unicode standard (3-7).
    const unsigned first = byte(0);
    if (first < 0x80) {
      i += 1;
    } else if (first >= 0xc2 && first <= 0xdf && tail(1)) {
      i += 2;
    } else if (first >= 0xe0 && first <= 0xef &&
               tail(1, first == 0xe0 ? 0xa0 : 0x80,
                    first == 0xed ? 0x9f : 0xbf) &&
               tail(2)) {
      i += 3;
    } else if (first >= 0xf0 && first <= 0xf4 &&
               tail(1, first == 0xf0 ? 0x90 : 0x80,
                    first == 0xf4 ? 0x8f : 0xbf) &&
               tail(2) && tail(3)) {
      i += 4;
    } else {
      return false;
    }
  }
  return true;
}

DType SafetensorsDType(DType dtype) {
  switch (dtype) {
    case kComplex128:
      return kFloat64;
    case kComplex32:
      return kFloat16;
    default:
      return dtype;
  }
}

bool IsStoredAsParts(DType dtype) { return SafetensorsDType(dtype) != dtype; }

Dims SafetensorsShape(absl::Span<const int64_t> sizes, DType dtype) {
  Dims shape(sizes.begin(), sizes.end());
  if (IsStoredAsParts(dtype)) shape.push_back(2);
  return shape;
}

absl::string_view SafetensorsDTypeName(DType dtype) {
  const DType stored = SafetensorsDType(dtype);
  for (const DTypeName& entry : kDTypeNames) {
    if (entry.dtype == stored) return entry.name;
  }
  SHERD_CHECK(false) << "safetensors has no " << Name(stored);
  __builtin_unreachable();
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    absl::string_view json, int64_t data_bytes, absl::string_view what) {
  const auto refuse = [&](const absl::Status& status) {
    return Annotate(status, what);
  };
  // The format asks for this; it keeps other formats from hiding in a header.
  if (json.empty() || json.front() != '{') {
    return refuse(absl::DataLossError(
        "the header does not begin with \"{\", expected a JSON object"));
  }
  // The parser takes a zero byte for the end of its input.
  if (const size_t zero = json.find('\0'); zero != json.npos) {
    return refuse(absl::DataLossError(
        absl::StrCat("not valid JSON at byte ", zero, " of the header")));
  }
  HeaderBuilder builder;
  const bool parsed = Json::sax_parse(json.begin(), json.end(), &builder);
  if (!parsed) return refuse(builder.status());
  SafetensorsHeader header = builder.TakeHeader();
  for (const SafetensorsEntry& entry : header.entries) {
    if (absl::Status status = CheckLength(entry); !status.ok()) {
      return refuse(status);
    }
  }
  if (absl::Status status = CheckRanges(header.entries, data_bytes);
      !status.ok()) {
    return refuse(status);
  }
  return header;
}

absl::StatusOr<std::string> EncodeSafetensorsHeader(
    const SafetensorsHeader& header) {
  std::string text(8, '\0');
  text += '{';
  if (!header.metadata.empty()) {
    absl::StrAppend(&text, "\"", kMetadataKey, "\":{");
    const char* separator = "";
    for (const auto& [key, value] : header.metadata) {
      absl::StrAppend(&text, separator, JsonString(key), ":",
                      JsonString(value));
      separator = ",";
    }
    text += '}';
  }
  for (const SafetensorsEntry& entry : header.entries) {
    if (text.size() > 9) text += ',';
    AppendEntry(entry, text);
  }
  text += '}';
  text.resize(RoundUp<size_t>(text.size(), kSafetensorsAlignment), ' ');
  const uint64_t length = text.size() - 8;
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the safetensors header would have ", length,
                     " bytes, expected at most ", kMaxSafetensorsHeaderBytes,
                     "; spread the tensors over more files"));
  }
  for (int i = 0; i < 8; ++i) text[i] = static_cast<char>(length >> (8 * i));
  return text;
}

int64_t AlignmentClass(int64_t bytes) {
  // The lowest bit that is set in either.
  const int64_t bits = bytes | kSafetensorsAlignment;
  return bits & -bits;
}

absl::StatusOr<SafetensorsHeader> PlanSafetensors(
    std::vector<SafetensorsTensorInfo> tensors,
    std::map<std::string, std::string> metadata) {
  SafetensorsHeader header;
  for (const auto& [key, value] : metadata) {
    if (!IsValidUtf8(key) || !IsValidUtf8(value)) {
      return absl::InvalidArgumentError("the metadata is not valid UTF-8");
    }
  }
  header.metadata = std::move(metadata);
  header.entries.reserve(tensors.size());
  for (SafetensorsTensorInfo& info : tensors) {
    SHERD_RETURN_IF_ERROR(CheckInfo(info));
    SafetensorsEntry entry;
    entry.name = std::move(info.name);
    entry.dtype_name = std::string(SafetensorsDTypeName(info.dtype));
    // For now the length; the places follow from the order.
    entry.end = *NumBytes(info.shape, info.dtype);
    entry.shape = SafetensorsShape(info.shape, info.dtype);
    entry.dtype = SafetensorsDType(info.dtype);
    header.entries.push_back(std::move(entry));
  }
  const auto rank = [](const SafetensorsEntry& entry) {
    return std::make_tuple(-AlignmentClass(entry.end), -entry.end,
                           absl::string_view(entry.name));
  };
  std::sort(header.entries.begin(), header.entries.end(),
            [&](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return rank(a) < rank(b);
            });
  absl::flat_hash_set<absl::string_view> names;
  int64_t position = 0;
  for (SafetensorsEntry& entry : header.entries) {
    if (!names.insert(entry.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the tensor name ", Quoted(entry.name), " is given twice"));
    }
    const std::optional<int64_t> end = CheckedAdd(position, entry.end);
    if (!end.has_value()) {
      return absl::InvalidArgumentError(
          "the tensors together have 2^63 bytes or more");
    }
    entry.begin = position;
    entry.end = position = *end;
  }
  return header;
}

}  // namespace sherd
