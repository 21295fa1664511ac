#include "sherd/core/tensor/device.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/printable_text.h"

namespace sherd {
namespace {

constexpr DeviceType kTypes[] = {DeviceType::kCpu, DeviceType::kCuda,
                                 DeviceType::kMeta};

absl::Status Malformed(absl::string_view text) {
  return absl::FailedPreconditionError(
      absl::StrCat("Invalid device string: '", PrintableLine(text),
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

// The malformed texts that devices were made from, by number: a Device is as
// small as two numbers.
class MalformedTexts {
 public:
  static MalformedTexts& Global() {
    static MalformedTexts& texts = *new MalformedTexts();
    return texts;
  }

  int NumberOf(absl::string_view text) {
    text = text.substr(0, kLongest);
    absl::MutexLock lock(&mutex_);
    const auto found = std::find(texts_.begin(), texts_.end(), text);
    const auto number = static_cast<int>(found - texts_.begin());
    // Those beyond have no text of their own.
    if (found == texts_.end() && texts_.size() < kMost) {
      texts_.emplace_back(text);
    }
    return number;
  }

  std::string TextOf(int number) {
    absl::MutexLock lock(&mutex_);
    const auto i = static_cast<size_t>(number);
    return i < texts_.size() ? texts_[i] : "invalid";
  }

 private:
  static constexpr size_t kMost = 100;
  static constexpr size_t kLongest = 200;

  absl::Mutex mutex_;
  std::vector<std::string> texts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::string_view Name(DeviceType type) {
  switch (type) {
    case DeviceType::kCpu:
      return "cpu";
    case DeviceType::kCuda:
      return "cuda";
    case DeviceType::kMeta:
      return "meta";
    case DeviceType::kInvalid:
      break;
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

Device Device::FromText(absl::string_view text) {
  const absl::StatusOr<Device> device = Parse(text);
  if (device.ok()) return *device;
  return {DeviceType::kInvalid, MalformedTexts::Global().NumberOf(text)};
}

absl::Status Device::status() const {
  if (type != DeviceType::kInvalid) return absl::OkStatus();
  return Parse(ToString()).status();
}

std::string Device::ToString() const {
  if (type == DeviceType::kInvalid) {
    return MalformedTexts::Global().TextOf(index);
  }
  if (index < 0) return std::string(Name(type));
  return absl::StrCat(Name(type), ":", index);
}

bool SameDevice(const Device& a, const Device& b) {
  return a.type == b.type && (a.index == b.index || a.index < 0 || b.index < 0);
}

std::ostream& operator<<(std::ostream& out, const Device& device) {
  return out << device.ToString();
}

}  // namespace sherd
