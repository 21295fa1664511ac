#include "sherd/core/tensor/device.h"

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sherd {
namespace {

constexpr DeviceType kTypes[] = {DeviceType::kCpu, DeviceType::kCuda,
                                 DeviceType::kMeta};

absl::Status Malformed(absl::string_view text) {
  return absl::FailedPreconditionError(
      absl::StrCat("Invalid device string: '", text,
                   "'; expected a type such as cpu or cuda, optionally with "
                   "':' and an index"));
}

// Decimal digits without leading zeros that fit in an int.
std::optional<int> ParseIndex(absl::string_view digits) {
  if (digits.empty() || (digits.size() > 1 && digits[0] == '0')) {
    return std::nullopt;
  }
  for (char c : digits) {
    if (!absl::ascii_isdigit(c)) return std::nullopt;
  }
  int index;
  if (!absl::SimpleAtoi(digits, &index)) return std::nullopt;
  return index;
}

}  // namespace

absl::string_view Name(DeviceType type) {
  switch (type) {
    case DeviceType::kCpu:
      return "cpu";
    case DeviceType::kCuda:
      return "cuda";
    case DeviceType::kMeta:
      return "meta";
  }
  return "invalid";
}

absl::StatusOr<Device> Device::Parse(absl::string_view text) {
  const size_t colon = text.find(':');
  const absl::string_view type = text.substr(0, colon);
  if (type.empty()) return Malformed(text);
  for (char c : type) {
    if (!absl::ascii_isalpha(c) && c != '_') return Malformed(text);
  }
  Device device;
  if (colon != absl::string_view::npos) {
    const std::optional<int> index = ParseIndex(text.substr(colon + 1));
    if (!index.has_value()) return Malformed(text);
    device.index = *index;
  }
  for (DeviceType known : kTypes) {
    if (type == Name(known)) {
      device.type = known;
      return device;
    }
  }
  return absl::FailedPreconditionError(
      absl::StrCat("Expected one of cpu, cuda, meta device type at start of "
                   "device string: ",
                   text));
}

std::string Device::ToString() const {
  if (index < 0) return std::string(Name(type));
  return absl::StrCat(Name(type), ":", index);
}

std::ostream& operator<<(std::ostream& out, const Device& device) {
  return out << device.ToString();
}

}  // namespace sherd
