#ifndef SHERD_TOOLS_BENCH_CASES_MANY_TENSORS_H_
#define SHERD_TOOLS_BENCH_CASES_MANY_TENSORS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace sherd {

// The cases of 10,000 tensors of 32-bit words, all of one size.
inline constexpr int64_t kManyTensors = 10'000;

// Word `i`, row-major, of tensor number `tensor`.
inline uint32_t WordOf(int64_t tensor, int64_t i) {
  return static_cast<uint32_t>(i * 2654435761 + tensor * 40503 + 1);
}

// Ascend with the number.
std::string NameOfTensor(int64_t tensor);

// BenchCase::fit: each tensor has a multiple of 100 words, so that a matrix of
// it can be about square.
int64_t FitManyTensors(int64_t bytes);

// As BenchCase::check: FitManyTensors has found a size, and there is three
// times as much space.
absl::Status CheckManyTensors(int world, int64_t bytes,
                              const std::string& directory);

// There is three times as much space.
absl::Status CheckSpaceForThree(int64_t bytes, const std::string& directory);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_MANY_TENSORS_H_
