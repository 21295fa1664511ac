#ifndef SHERD_TESTING_EMULATED_GPU_MEMORY_ADDRESS_SPACE_H_
#define SHERD_TESTING_EMULATED_GPU_MEMORY_ADDRESS_SPACE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace sherd::testing {

// The addresses of emulated devices, and the bytes behind them.
//
// Layout. Window d of `kWindowBytes` is the memory of device d, the last one is
// the memory imported from other processes. These addresses are not accessible:
// the host view of the bytes is kWindowBytes * windows further on. Each window
// of a device is a file in memory, of which only touched pages exist; other
// processes open it through /proc.
//
// Threads. The mapping is created once; the caller locks Import, Close and the
// tickets.
class AddressSpace {
 public:
  static constexpr uint64_t kWindowBytes = uint64_t{8} << 30;
  static constexpr uint64_t kPageBytes = 4096;
  // The beginning of each file is the part that other processes may open.
  static constexpr uint64_t kTicketBytes = 1 << 20;

  // Identifies a range of a file of this process. Plain bytes, as a
  // CUipcMemHandle.
  struct Handle {
    std::array<uint64_t, 8> words = {};
  };

  // Aborts the process if the addresses are not available.
  explicit AddressSpace(int devices);

  uint64_t WindowOf(int device) const {
    return base_ + static_cast<uint64_t>(device) * kWindowBytes;
  }
  uint64_t ImportWindow() const { return WindowOf(devices_); }

  bool Contains(uint64_t address) const {
    return base_ <= address && address - base_ < view_distance_;
  }
  // Where the bytes at an address of a device are accessible.
  void* View(uint64_t address) const {
    return reinterpret_cast<void*>(address + view_distance_);
  }

  // Returns pages to the system; they read as zeros afterwards.
  void Discard(int device, uint64_t address, uint64_t bytes) const;

  // Lets other processes open [address, address + bytes), until Withdraw with
  // the ticket; both are multiples of a page. Returns nothing if no ticket is
  // left.
  std::optional<uint32_t> Offer(int device, uint64_t address, uint64_t bytes,
                                Handle* handle);
  void Withdraw(int device, uint32_t ticket);

  // Maps another process's memory at `address` of the import window. Returns
  // the device there, or -1 if nothing can be opened with the handle, which may
  // be invalid.
  int Import(const Handle& handle, uint64_t address) const;
  // The size behind a handle; 0 if the handle is invalid.
  static uint64_t BytesOf(const Handle& handle);
  static bool IsOfThisProcess(const Handle& handle);
  void Close(uint64_t address, uint64_t bytes) const;

 private:
  const int devices_;
  // Windows without their view.
  const uint64_t view_distance_;
  uint64_t base_ = 0;
  std::vector<int> files_;
  std::vector<uint32_t> next_ticket_;
  uint64_t nonce_ = 0;
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_MEMORY_ADDRESS_SPACE_H_
