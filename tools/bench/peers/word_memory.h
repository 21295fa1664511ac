#ifndef SHERD_TOOLS_BENCH_PEERS_WORD_MEMORY_H_
#define SHERD_TOOLS_BENCH_PEERS_WORD_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace sherd {

// Words in untouched pages of their own that ask for huge ones, as Sherd's heap
// does; they are returned to the system, not to a pool.
class WordMemory {
 public:
  //   kResourceExhausted  There is not enough memory.
  static absl::StatusOr<WordMemory> Allocate(int64_t words);

  WordMemory() = default;
  WordMemory(WordMemory&& other) noexcept;
  WordMemory& operator=(WordMemory&& other) noexcept;
  ~WordMemory();

  // Null without words.
  uint32_t* words() const { return words_; }

 private:
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  uint32_t* words_ = nullptr;
};

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_PEERS_WORD_MEMORY_H_
