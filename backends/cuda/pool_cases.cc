#include "sherd/backends/cuda/pool_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "sherd/core/tensor/float_types.h"

namespace sherd::testing {
namespace {

using Mode = DeviceRowPooling::Mode;
using Random = std::mt19937_64;

int64_t Pick(Random& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

// Calls `visit` with a value of the type of elements.
template <typename Visitor>
auto WithElement(DType dtype, Visitor visit) {
  switch (dtype) {
    case kFloat64:
      return visit(double());
    case kFloat16:
      return visit(Float16());
    case kBFloat16:
      return visit(BFloat16());
    default:
      return visit(float());
  }
}

void Append(std::vector<std::byte>& bytes, DType dtype, double number) {
  WithElement(dtype, [&](auto element) {
    element = static_cast<decltype(element)>(
        static_cast<std::conditional_t<sizeof(element) == 8, double, float>>(
            number));
    const size_t at = bytes.size();
    bytes.resize(at + sizeof(element));
    std::memcpy(&bytes[at], &element, sizeof(element));
  });
}

double RandomNumber(Random& random) {
  const uint64_t kind = random() % 200;
  if (kind == 0) return std::numeric_limits<double>::quiet_NaN();
  if (kind == 1) return std::numeric_limits<double>::infinity();
  if (kind == 2) return -0.0;
  return std::normal_distribution<double>()(random);
}

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// Computes one column of one bag, in type `Sum`.
template <typename In, typename Out>
void PoolElement(const PoolCase& c, int64_t bag, int64_t column,
                 std::byte* to) {
  using Sum = std::conditional_t<std::is_same_v<In, double>, double, float>;
  const auto element = [&](int64_t k) {
    return c.table.data() + c.table_skip +
           static_cast<size_t>(c.rows[static_cast<size_t>(k)] *
                                   c.pooling.row_stride +
                               column * static_cast<int64_t>(sizeof(In)));
  };
  if (c.pooling.mode == Mode::kNone) {
    std::memcpy(to, element(bag), sizeof(In));
    return;
  }
  const auto b = static_cast<size_t>(bag);
  const int64_t begin = b == 0 ? 0 : c.ends[b - 1];
  Sum sum = 0;
  for (int64_t k = begin; k < c.ends[b]; ++k) {
    auto next = static_cast<Sum>(Load<In>(element(k)));
    if (!c.weights.empty()) {
      next *= Load<Sum>(&c.weights[static_cast<size_t>(k) * sizeof(Sum)]);
    }
    if (k == begin) {
      sum = next;
    } else if (c.pooling.mode == Mode::kMax) {
      sum = std::isnan(sum) || sum > next ? sum : next;
    } else {
      sum += next;
    }
  }
  const int64_t divisor =
      c.divisors.empty() ? c.ends[b] - begin : c.divisors[b];
  if (c.pooling.mode == Mode::kMean && divisor > 1) {
    sum /= static_cast<Sum>(divisor);
  }
  const Out rounded = static_cast<Out>(sum);
  std::memcpy(to, &rounded, sizeof(rounded));
}

void SetExpected(PoolCase& c) {
  c.expected = c.out;
  WithElement(c.pooling.table_dtype, [&](auto in) {
    WithElement(c.pooling.out_dtype, [&](auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      // Other pairs are not pooled.
      if constexpr (std::is_same_v<In, double> == std::is_same_v<Out, double>) {
        for (int64_t b = 0; b < c.pooling.bags; ++b) {
          for (int64_t i = 0; i < c.pooling.columns; ++i) {
            PoolElement<In, Out>(
                c, b, i,
                &c.expected[c.out_skip +
                            static_cast<size_t>(b * c.pooling.out_stride) +
                            static_cast<size_t>(i) * sizeof(Out)]);
          }
        }
      }
    });
  });
}

void SetTypes(DeviceRowPooling& pooling, Random& random) {
  constexpr DType kTypes[] = {kFloat64, kFloat32, kFloat16, kBFloat16};
  pooling.mode = static_cast<Mode>(random() % 4);
  pooling.table_dtype = kTypes[random() % 4];
  pooling.out_dtype = pooling.table_dtype;
  if (pooling.mode == Mode::kNone || random() % 2 == 0) return;
  if (SizeOf(pooling.table_dtype) == 2) pooling.out_dtype = kFloat32;
  if (pooling.table_dtype == kFloat32)
    pooling.out_dtype = kTypes[random() % 3 + 1];
}

void SetBags(PoolCase& c, int64_t table_rows, Random& random) {
  const int64_t most = table_rows == 0 ? 0 : random() % 10 == 0 ? 40 : 6;
  int64_t count =
      c.pooling.mode == Mode::kNone && most > 0 ? c.pooling.bags : 0;
  if (c.pooling.mode != Mode::kNone) {
    for (int64_t b = 0; b < c.pooling.bags; ++b) {
      count += Pick(random, 0, most);
      c.ends.push_back(count);
    }
  }
  for (int64_t k = 0; k < count; ++k) {
    c.rows.push_back(Pick(random, 0, table_rows - 1));
  }
  if (c.pooling.mode == Mode::kSum && random() % 2 == 0) {
    for (int64_t k = 0; k < count; ++k) {
      Append(c.weights, c.pooling.table_dtype == kFloat64 ? kFloat64 : kFloat32,
             RandomNumber(random));
    }
  }
  if (c.pooling.mode == Mode::kMean && random() % 2 == 0) {
    for (int64_t b = 0; b < c.pooling.bags; ++b) {
      c.divisors.push_back(Pick(random, 0, 9));
    }
  }
}

}  // namespace

std::vector<int64_t> PoolCase::RowsFor(const std::byte* table_address) const {
  std::vector<int64_t> result = rows;
  if (!by_address) return result;
  for (int64_t& row : result) {
    row = static_cast<int64_t>(
              reinterpret_cast<uintptr_t>(table_address + table_skip)) +
          row * pooling.row_stride;
  }
  return result;
}

DeviceRowPooling PoolCase::At(const Addresses& addresses) const {
  DeviceRowPooling result = pooling;
  result.table = by_address ? nullptr : addresses.table + table_skip;
  if (by_address) result.row_stride = 1;
  result.out = addresses.out + out_skip;
  result.rows = addresses.rows;
  if (!ends.empty()) result.ends = addresses.ends;
  if (!divisors.empty()) result.divisors = addresses.divisors;
  if (!weights.empty()) result.weights = addresses.weights;
  return result;
}

std::string PoolCase::ToText() const {
  return absl::StrCat(
      "mode ", static_cast<int>(pooling.mode), " of ",
      Name(pooling.table_dtype), " to ", Name(pooling.out_dtype), ", ",
      pooling.bags, " bags of ", pooling.columns, " columns, ", rows.size(),
      " rows ", by_address ? "by address" : "by number", ", strides ",
      pooling.row_stride, " and ", pooling.out_stride, ", beginning at ",
      table_skip, " and ", out_skip, weights.empty() ? "" : ", weighted",
      divisors.empty() ? "" : ", with divisors");
}

PoolCase RandomPoolCase(Random& random) {
  PoolCase c;
  SetTypes(c.pooling, random);
  const auto in = static_cast<int64_t>(SizeOf(c.pooling.table_dtype));
  const auto out = static_cast<int64_t>(SizeOf(c.pooling.out_dtype));
  const int64_t table_rows = Pick(random, 1, 30);
  // Those of whole vectors as often as others.
  c.pooling.columns = random() % 2 == 0    ? 16 * Pick(random, 0, 5)
                      : random() % 10 == 0 ? Pick(random, 200, 600)
                                           : Pick(random, 0, 40);
  c.pooling.bags = Pick(random, 0, 12);
  const bool aligned = random() % 2 == 0;
  const int64_t gap =
      aligned ? 16 * Pick(random, 0, 2) : in * Pick(random, 0, 3);
  c.pooling.row_stride = c.pooling.columns * in + gap;
  if (aligned) c.pooling.row_stride = (c.pooling.row_stride + 15) / 16 * 16;
  c.table_skip = static_cast<size_t>(aligned ? 0 : in * Pick(random, 0, 2));
  c.pooling.row_alignment = static_cast<uint64_t>(aligned ? 16 : in);
  const bool out_aligned = random() % 2 == 0;
  c.pooling.out_stride =
      c.pooling.columns * out + (out_aligned ? 16 : out) * Pick(random, 0, 2);
  if (out_aligned) c.pooling.out_stride = (c.pooling.out_stride + 15) / 16 * 16;
  c.out_skip = static_cast<size_t>(out_aligned ? 0 : out * Pick(random, 0, 2));
  c.by_address = random() % 2 == 0;
  const int64_t elements =
      (static_cast<int64_t>(c.table_skip) + table_rows * c.pooling.row_stride) /
          in +
      1;
  for (int64_t i = 0; i < elements; ++i) {
    Append(c.table, c.pooling.table_dtype, RandomNumber(random));
  }
  SetBags(c, table_rows, random);
  c.out.assign(c.out_skip +
                   static_cast<size_t>(c.pooling.bags * c.pooling.out_stride) +
                   16,
               std::byte{0xa5});
  SetExpected(c);
  return c;
}

int64_t FindDifference(const PoolCase& pool_case,
                       const std::vector<std::byte>& out) {
  const std::vector<std::byte>& expected = pool_case.expected;
  if (out.size() != expected.size()) return 0;
  const size_t element = SizeOf(pool_case.pooling.out_dtype);
  for (size_t at = 0; at < out.size(); at += element) {
    const size_t bytes = std::min(element, out.size() - at);
    if (std::memcmp(&out[at], &expected[at], bytes) == 0) continue;
    const bool both_nan =
        bytes == element && pool_case.pooling.mode != Mode::kNone &&
        WithElement(pool_case.pooling.out_dtype, [&](auto tag) {
          using T = decltype(tag);
          const T a = Load<T>(&out[at]);
          const T b = Load<T>(&expected[at]);
          return a != a && b != b;
        });
    if (!both_nan) return static_cast<int64_t>(at);
  }
  return -1;
}

}  // namespace sherd::testing
