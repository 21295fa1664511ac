#include "sherd/tools/bench/peers/word_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/file.h"

namespace sherd {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

}  // namespace

absl::StatusOr<WordMemory> WordMemory::Allocate(int64_t words) {
  WordMemory memory;
  if (words == 0) return memory;
  const int64_t bytes =
      RoundUp(words * int64_t{sizeof(uint32_t)}, kHugePage) + kHugePage;
  void* const mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return ErrnoStatus(errno, "mapping", absl::StrCat(bytes, " bytes"));
  }
  memory.mapping_ = mapping;
  memory.mapping_bytes_ = bytes;
  const int64_t start = RoundUp(
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(mapping)), kHugePage);
  memory.words_ = reinterpret_cast<uint32_t*>(start);
  // The kernel may have no such pages.
  if (bytes >= 2 * kHugePage) {
    static_cast<void>(madvise(memory.words_, bytes - kHugePage, MADV_HUGEPAGE));
  }
  return memory;
}

WordMemory::WordMemory(WordMemory&& other) noexcept {
  *this = std::move(other);
}

WordMemory& WordMemory::operator=(WordMemory&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(words_, other.words_);
  return *this;
}

WordMemory::~WordMemory() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

}  // namespace sherd
