#ifndef SHERD_TESTING_EMULATED_GPU_MEMORY_ADDRESS_SPACE_H_
#define SHERD_TESTING_EMULATED_GPU_MEMORY_ADDRESS_SPACE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace sherd::testing {

// The addresses of pretended devices, and the bytes behind them.
//
// Layout. Window d of `kWindowBytes` holds the memory of device d, the last one
// what was imported from other processes. Nobody can touch those addresses:
// the bytes are seen kWindowBytes * windows further on, in the host view. Each
// window of a device is a file in memory, of which only touched pages exist;
// other processes open it through /proc.
//
// Threads. The mapping is made once; Import, Close and the tickets are locked
// by the caller.
class AddressSpace {
 public:
  static constexpr uint64_t kWindowBytes = uint64_t{8} << 30;
  static constexpr uint64_t kPageBytes = 4096;
  // At the start of each file: what other processes may open.
  static constexpr uint64_t kTicketBytes = 1 << 20;

  // Names a range of a file of this process. Plain bytes, as a CUipcMemHandle.
  struct Handle {
    std::array<uint64_t, 8> words = {};
  };

  // Aborts the process if the addresses cannot be had.
  explicit AddressSpace(int devices);

  uint64_t WindowOf(int device) const {
    return base_ + static_cast<uint64_t>(device) * kWindowBytes;
  }
  uint64_t ImportWindow() const { return WindowOf(devices_); }

  bool Contains(uint64_t address) const {
    return base_ <= address && address - base_ < view_distance_;
  }
  // Where the bytes at an address of a device can be touched.
  void* View(uint64_t address) const {
    return reinterpret_cast<void*>(address + view_distance_);
  }

  // Gives pages back; they read as zeros then.
  void Discard(int device, uint64_t address, uint64_t bytes) const;

  // Lets other processes open [address, address + bytes), until Withdraw with
  // the ticket; both are multiples of a page. Nothing if there is no ticket
  // left.
  std::optional<uint32_t> Offer(int device, uint64_t address, uint64_t bytes,
                                Handle* handle);
  void Withdraw(int device, uint32_t ticket);

  // Maps what another process offers at `address` of the import window.
  // Returns the device there, or -1 if nothing can be opened with the handle,
  // which may be anything.
  int Import(const Handle& handle, uint64_t address) const;
  // Of a valid handle; 0 if it is none.
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
