#include "sherd/testing/emulated_gpu/memory/address_space.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sherd/core/base/unique_fd.h"
#include "sherd/core/process/shared_segment.h"

namespace sherd::testing {
namespace {

constexpr uint64_t kMagic = 0x5ead'6b05'1a7e'd001;
constexpr uint32_t kTickets = AddressSpace::kTicketBytes / sizeof(uint64_t) - 1;

enum Word {
  kMagicWord,
  kProcessWord,  // Number of the process, and of the file in it.
  kNonceWord,
  kOffsetWord,
  kBytesWord,
  kTicketWord,
  kDeviceWord,
  kSumWord,
};

uint64_t Sum(const AddressSpace::Handle& handle) {
  uint64_t sum = 0xcbf29ce484222325;
  for (int i = 0; i < kSumWord; ++i) {
    sum = (sum ^ handle.words[i]) * 0x100000001b3;
    sum ^= sum >> 29;
  }
  return sum;
}

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s: %s\n", what, std::strerror(errno));
  std::abort();
}

// The start of a file: a nonce, then whether each ticket is good.
std::atomic<uint64_t>* Header(void* start) {
  static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));
  return static_cast<std::atomic<uint64_t>*>(start);
}

// Whether the file is one of ours that holds the ticket.
bool IsGood(int file, const AddressSpace::Handle& handle) {
  struct stat info;
  if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) return false;
  const auto size = static_cast<uint64_t>(info.st_size);
  const uint64_t offset = handle.words[kOffsetWord];
  const uint64_t bytes = handle.words[kBytesWord];
  if (bytes == 0 || offset < AddressSpace::kTicketBytes || offset > size ||
      bytes > size - offset || offset % AddressSpace::kPageBytes != 0) {
    return false;
  }
  void* const start =
      mmap(nullptr, AddressSpace::kTicketBytes, PROT_READ, MAP_SHARED, file, 0);
  if (start == MAP_FAILED) return false;
  const uint64_t ticket = handle.words[kTicketWord];
  const bool is_good = ticket < kTickets &&
                       Header(start)[0].load() == handle.words[kNonceWord] &&
                       Header(start)[1 + ticket].load() == offset;
  munmap(start, AddressSpace::kTicketBytes);
  return is_good;
}

}  // namespace

AddressSpace::AddressSpace(int devices)
    : devices_(devices),
      view_distance_(kWindowBytes * static_cast<uint64_t>(devices + 1)),
      next_ticket_(static_cast<size_t>(devices), 0) {
  void* const start = mmap(nullptr, 2 * view_distance_, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) Die("no addresses for device memory");
  base_ = reinterpret_cast<uint64_t>(start);
  if (getrandom(&nonce_, sizeof(nonce_), 0) != sizeof(nonce_)) {
    Die("no random numbers");
  }
  for (int device = 0; device < devices; ++device) {
    // Not a SharedSegment: mapped at a given address, and holes are punched.
    const int file = memfd_create("sherd_emulated_gpu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, kWindowBytes) != 0 ||
        mmap(View(WindowOf(device)), kWindowBytes, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0) == MAP_FAILED) {
      Die("no memory for a pretended device");
    }
    Header(View(WindowOf(device)))[0].store(nonce_);
    files_.push_back(file);
  }
}

void AddressSpace::Discard(int device, uint64_t address, uint64_t bytes) const {
  const uint64_t first = (address + kPageBytes - 1) / kPageBytes * kPageBytes;
  const uint64_t last = (address + bytes) / kPageBytes * kPageBytes;
  if (first >= last) return;
  fallocate(files_[device], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(first - WindowOf(device)),
            static_cast<off_t>(last - first));
}

std::optional<uint32_t> AddressSpace::Offer(int device, uint64_t address,
                                            uint64_t bytes, Handle* handle) {
  const uint32_t ticket = next_ticket_[device];
  if (ticket >= kTickets) return std::nullopt;
  ++next_ticket_[device];
  const uint64_t offset = address - WindowOf(device);
  Header(View(WindowOf(device)))[1 + ticket].store(offset);
  handle->words = {kMagic,
                   uint64_t{static_cast<uint32_t>(getpid())} << 32 |
                       static_cast<uint32_t>(files_[device]),
                   nonce_,
                   offset,
                   bytes,
                   ticket,
                   static_cast<uint64_t>(device),
                   0};
  handle->words[kSumWord] = Sum(*handle);
  return ticket;
}

void AddressSpace::Withdraw(int device, uint32_t ticket) {
  Header(View(WindowOf(device)))[1 + ticket].store(0);
}

uint64_t AddressSpace::BytesOf(const Handle& handle) {
  if (handle.words[kMagicWord] != kMagic ||
      handle.words[kSumWord] != Sum(handle) ||
      handle.words[kBytesWord] > kWindowBytes) {
    return 0;
  }
  return handle.words[kBytesWord];
}

bool AddressSpace::IsOfThisProcess(const Handle& handle) {
  return handle.words[kProcessWord] >> 32 == static_cast<uint64_t>(getpid());
}

int AddressSpace::Import(const Handle& handle, uint64_t address) const {
  if (BytesOf(handle) == 0) return -1;
  const UniqueFd file = SharedSegment::Open(SharedSegment::PathOf(
      static_cast<int64_t>(handle.words[kProcessWord] >> 32),
      static_cast<int>(static_cast<uint32_t>(handle.words[kProcessWord]))));
  if (!file.is_open()) return -1;
  const bool is_mapped =
      IsGood(file.get(), handle) &&
      mmap(View(address), handle.words[kBytesWord], PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file.get(),
           static_cast<off_t>(handle.words[kOffsetWord])) != MAP_FAILED;
  return is_mapped ? static_cast<int>(handle.words[kDeviceWord]) : -1;
}

void AddressSpace::Close(uint64_t address, uint64_t bytes) const {
  mmap(View(address), bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

}  // namespace sherd::testing
