#ifndef SHERD_CORE_TENSOR_DEVICE_H_
#define SHERD_CORE_TENSOR_DEVICE_H_

#include <compare>
#include <cstdint>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/cxx_standard.h"

namespace sherd {

enum class DeviceType : int32_t {
  // Of a Device that was made from malformed text.
  kInvalid = -1,
  kCpu = 0,
  kCuda = 1,
  // Shape and dtype without data.
  kMeta = 2,
};

// "cpu", "cuda", "meta", "invalid".
absl::string_view Name(DeviceType type);

// The device that holds a tensor's data.
//
// Value. Text converts to a Device: "cuda:0". Malformed text makes an invalid
// device; functions that take devices check status() and return its error.
// Parse returns the error at once.
struct Device {
  DeviceType type = DeviceType::kCpu;
  // Number among the devices of that type; -1 if not given ("cuda" means the
  // current one).
  int index = -1;

  // The CPU.
  constexpr Device() = default;
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr Device(DeviceType of_type, int number = -1)
      : type(of_type), index(number) {}
  // Implicit, as for Placement.
  template <typename Text, typename = std::enable_if_t<std::is_convertible_v<
                               const Text&, absl::string_view>>>
  Device(const Text& text)  // NOLINT(google-explicit-constructor)
      : Device(FromText(text)) {}

  // Reads "cpu", "cuda", "cuda:0", "meta", …: a type, optionally ":" and a
  // decimal index without sign or leading zeros. Case matters.
  //   kFailedPrecondition  "Invalid device string: '…'" if the text does not
  //                        have this form; "Expected one of cpu, cuda, meta
  //                        device type at start of device string: …" if it
  //                        does but the type is unknown.
  static absl::StatusOr<Device> Parse(absl::string_view text);

  // OK, or the error of Parse for the text that this was made from.
  absl::Status status() const;

  // The text that Parse reads, or the malformed text.
  std::string ToString() const;

  bool is_cpu() const { return type == DeviceType::kCpu; }
  bool is_cuda() const { return type == DeviceType::kCuda; }
  bool is_meta() const { return type == DeviceType::kMeta; }

  friend bool operator==(const Device&, const Device&) = default;
  // For ordered containers.
  friend auto operator<=>(const Device&, const Device&) = default;

  template <typename H>
  friend H AbslHashValue(H state, const Device& device) {
    return H::combine(std::move(state), device.type, device.index);
  }

 private:
  static Device FromText(absl::string_view text);
};

// Whether both are the same device, as far as indices are given.
bool SameDevice(const Device& a, const Device& b);

std::ostream& operator<<(std::ostream& out, const Device& device);

// A queue of work on a device. A value type; its creator destroys it.
struct DeviceStream {
  // With an index.
  Device device;
  // The vendor's (cudaStream_t); null is the default stream of the device.
  void* handle = nullptr;

  friend bool operator==(const DeviceStream&, const DeviceStream&) = default;
};

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_DEVICE_H_
