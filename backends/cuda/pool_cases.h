#ifndef SHERD_BACKENDS_CUDA_POOL_CASES_H_
#define SHERD_BACKENDS_CUDA_POOL_CASES_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd::testing {

// A case of sherd_pool_rows_v0 in bytes, for tests that put these where a
// kernel, or a device, finds them.
struct PoolCase {
  // Without addresses.
  DeviceRowPooling pooling;
  // Whether `rows` become addresses.
  bool by_address = false;
  // Where the table and the result begin within their bytes.
  size_t table_skip = 0;
  size_t out_skip = 0;
  std::vector<std::byte> table;
  std::vector<int64_t> rows;
  std::vector<int64_t> ends;
  std::vector<int64_t> divisors;
  std::vector<std::byte> weights;
  // The result's memory before and after.
  std::vector<std::byte> out;
  std::vector<std::byte> expected;

  // Of this process or a device; empty arrays have none.
  struct Addresses {
    std::byte* table = nullptr;
    std::byte* out = nullptr;
    int64_t* rows = nullptr;
    int64_t* ends = nullptr;
    int64_t* divisors = nullptr;
    std::byte* weights = nullptr;
  };
  // What the array `rows` has to contain.
  std::vector<int64_t> RowsFor(const std::byte* table_address) const;
  DeviceRowPooling At(const Addresses& addresses) const;

  // "mean of float16 to float32, 3 bags of 7 columns, …".
  std::string ToText() const;
};

// Any modes, types, alignments and sizes, empty ones too; with NaN and infinite
// numbers. `expected` is computed as the definition reads.
PoolCase RandomPoolCase(std::mt19937_64& random);

// The position of the first byte of an element that differs, where two NaN do
// not unless rows are copied; -1: there is none.
int64_t FindDifference(const PoolCase& pool_case,
                       const std::vector<std::byte>& out);

}  // namespace sherd::testing

#endif  // SHERD_BACKENDS_CUDA_POOL_CASES_H_
