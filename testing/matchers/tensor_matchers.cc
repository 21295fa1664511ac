#include "sherd/testing/tensor_matchers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstring>
#include <ostream>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/kernels/strided_loop.h"
#include "sherd/core/tensor/shape.h"

namespace sherd::testing {
namespace {

using internal::ElementRule;
using ::sherd::internal::ForEachRun;
using ::sherd::internal::LoopOperand;

template <typename T>
inline constexpr bool kIsComplex = false;
template <typename T>
inline constexpr bool kIsComplex<std::complex<T>> = true;

// The element at `from`, small floats as float. Any byte but 0 is true.
template <typename T>
auto Load(const std::byte* from) {
  if constexpr (std::is_same_v<T, bool>) {
    return *from != std::byte{0};
  } else {
    T value;
    std::memcpy(&value, from, sizeof(T));
    if constexpr (std::is_arithmetic_v<T> || kIsComplex<T>) {
      return value;
    } else {
      return static_cast<float>(value);
    }
  }
}

// |a - b|: exact for integers, in double otherwise.
template <typename T>
auto Distance(const T& a, const T& b) {
  if constexpr (kIsComplex<T>) {
    return std::abs(std::complex<double>(a) - std::complex<double>(b));
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::abs(static_cast<double>(a) - static_cast<double>(b));
  } else {
    const auto wide_a = static_cast<uint64_t>(a);
    const auto wide_b = static_cast<uint64_t>(b);
    return a > b ? wide_a - wide_b : wide_b - wide_a;
  }
}

template <typename T>
double Allowed(const T& expected, const Tolerance& tolerance) {
  double size;
  if constexpr (kIsComplex<T>) {
    size = std::abs(std::complex<double>(expected));
  } else {
    size = std::abs(static_cast<double>(expected));
  }
  return tolerance.atol + tolerance.rtol * size;
}

template <typename T>
bool IsFinite(const T& value) {
  if constexpr (kIsComplex<T>) {
    return std::isfinite(value.real()) && std::isfinite(value.imag());
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::isfinite(value);
  } else {
    return true;
  }
}

template <typename T>
bool IsNan(const T& value) {
  if constexpr (kIsComplex<T>) {
    return std::isnan(value.real()) || std::isnan(value.imag());
  } else if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(value);
  } else {
    return false;
  }
}

template <typename T>
bool IsNear(const T& actual, const T& expected, const Tolerance& tolerance) {
  if (actual == expected) return true;
  if constexpr (std::is_same_v<T, bool>) {
    return false;
  } else if constexpr (std::is_integral_v<T>) {
    // 64 bits of mantissa hold any distance.
    const long double size =
        static_cast<long double>(Distance<T>(expected, T{0}));
    return static_cast<long double>(Distance(actual, expected)) <=
           static_cast<long double>(tolerance.atol) +
               static_cast<long double>(tolerance.rtol) * size;
  } else if (IsFinite(actual) && IsFinite(expected)) {
    return Distance(actual, expected) <= Allowed(expected, tolerance);
  } else if constexpr (kIsComplex<T>) {
    return IsNear(actual.real(), expected.real(), tolerance) &&
           IsNear(actual.imag(), expected.imag(), tolerance);
  } else {
    return tolerance.equal_nan && IsNan(actual) && IsNan(expected);
  }
}

// A pair of elements that do not match, and its number in row-major order.
struct Pair {
  int64_t number = -1;
  const std::byte* actual = nullptr;
  const std::byte* expected = nullptr;
};

// The differences between two tensors.
template <typename T>
struct Tally {
  using Size = decltype(Distance(Load<T>(nullptr), Load<T>(nullptr)));

  int64_t count = 0;
  // Of these, with a NaN on one side.
  int64_t nans = 0;
  Pair first;
  // Of those whose distance is a number above 0.
  Pair largest;
  Size largest_distance = 0;

  void Add(const Pair& pair) {
    if (count++ == 0) first = pair;
    const auto actual = Load<T>(pair.actual);
    const auto expected = Load<T>(pair.expected);
    if (IsNan(actual) != IsNan(expected)) ++nans;
    // False for NaN.
    if (const Size distance = Distance(actual, expected);
        distance > largest_distance) {
      largest = pair;
      largest_distance = distance;
    }
  }
};

template <typename T>
void CompareRun(const std::array<const std::byte*, 2>& at,
                const std::array<int64_t, 2>& steps, int64_t begin, int64_t end,
                int64_t first_number, const ElementRule& rule,
                Tally<T>& tally) {
  for (int64_t i = begin; i < end; ++i) {
    const std::byte* const actual = at[0] + i * steps[0];
    const std::byte* const expected = at[1] + i * steps[1];
    const bool match =
        rule.bitwise
            ? std::memcmp(actual, expected, sizeof(T)) == 0
            : IsNear(Load<T>(actual), Load<T>(expected), rule.tolerance);
    if (!match) tally.Add({first_number + i, actual, expected});
  }
}

// Of two tensors of the same sizes and dtype T in host memory.
template <typename T>
Tally<T> Compare(const Tensor& actual, const Tensor& expected,
                 const ElementRule& rule) {
  constexpr int64_t kSize = sizeof(T);
  constexpr int64_t kBlock = (int64_t{16} << 10) / kSize;
  Tally<T> tally;
  const bool same_bits_match =
      rule.bitwise || rule.tolerance.equal_nan ||
      !(IsFloatingPoint(actual.dtype()) || IsComplex(actual.dtype()));
  int64_t number = 0;
  const std::array<LoopOperand, 2> operands = {
      {{static_cast<const std::byte*>(actual.data()), actual.strides(),
        sizeof(T)},
       {static_cast<const std::byte*>(expected.data()), expected.strides(),
        sizeof(T)}}};
  ForEachRun<2>(
      actual.sizes(), operands,
      [&](const auto& at, const auto& steps, int64_t count) {
        const bool by_bytes =
            same_bits_match && steps[0] == kSize && steps[1] == kSize;
        for (int64_t begin = 0; begin < count; begin += kBlock) {
          const int64_t end = std::min(begin + kBlock, count);
          if (by_bytes &&
              std::memcmp(at[0] + begin * kSize, at[1] + begin * kSize,
                          static_cast<size_t>((end - begin) * kSize)) == 0) {
            continue;
          }
          CompareRun<T>(at, steps, begin, end, number, rule, tally);
        }
        number += count;
        return true;
      });
  return tally;
}

// The shortest text that is read as this number and no other of its type.
template <typename T>
std::string FormatNumber(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (kIsComplex<T>) {
    return absl::StrCat("(", FormatNumber(value.real()), ",",
                        FormatNumber(value.imag()), ")");
  } else if constexpr (std::is_floating_point_v<T>) {
    std::array<char, 64> text;
    const auto result =
        std::to_chars(text.data(), text.data() + text.size(), value);
    return std::string(text.data(), result.ptr);
  } else {
    return absl::StrCat(value);
  }
}

// "0x7fc00001", of a complex number one per part.
template <typename T>
std::string FormatBits(const std::byte* element) {
  if constexpr (kIsComplex<T>) {
    using Part = typename T::value_type;
    return absl::StrCat("(", FormatBits<Part>(element), ",",
                        FormatBits<Part>(element + sizeof(Part)), ")");
  } else {
    uint64_t bits = 0;
    for (size_t i = sizeof(T); i > 0; --i) {
      bits = (bits << 8) | static_cast<uint64_t>(element[i - 1]);
    }
    const std::string digits = absl::StrCat(absl::Hex(bits));
    return absl::StrCat("0x", std::string(2 * sizeof(T) - digits.size(), '0'),
                        digits);
  }
}

// "1.5, expected 1.25", with the bits of both if they read the same.
template <typename T>
std::string FormatPair(const Pair& pair) {
  std::string actual = FormatNumber(Load<T>(pair.actual));
  std::string expected = FormatNumber(Load<T>(pair.expected));
  if (actual == expected) {
    absl::StrAppend(&actual, " = ", FormatBits<T>(pair.actual));
    absl::StrAppend(&expected, " = ", FormatBits<T>(pair.expected));
  }
  return absl::StrCat(actual, ", expected ", expected);
}

// The index of an element, and behind it that in the larger tensor.
std::string FormatIndex(int64_t number, absl::Span<const int64_t> sizes,
                        absl::Span<const int64_t> origin) {
  Dims index(sizes.size());
  for (size_t d = sizes.size(); d > 0; --d) {
    index[d - 1] = number % sizes[d - 1];
    number /= sizes[d - 1];
  }
  std::string text = FormatDims(index);
  if (origin.size() != index.size() || index.empty()) return text;
  for (size_t d = 0; d < index.size(); ++d) index[d] += origin[d];
  return absl::StrCat(text, ", of the whole ", FormatDims(index));
}

template <typename T>
std::string Explain(const Tally<T>& tally, const Tensor& actual,
                    const ElementRule& rule, absl::Span<const int64_t> origin) {
  const auto index = [&](const Pair& pair) {
    return FormatIndex(pair.number, actual.sizes(), origin);
  };
  std::string text =
      absl::StrCat("which differs in ", tally.count, " of ", actual.numel(),
                   actual.numel() == 1 ? " element" : " elements",
                   tally.count == 1 ? ", at " : ", first at ",
                   index(tally.first), ": ", FormatPair<T>(tally.first));
  if (tally.nans > 0 && tally.count > 1) {
    absl::StrAppend(&text, "; NaN on one side in ", tally.nans);
  }
  if (std::is_same_v<T, bool> || tally.largest.number < 0) return text;
  absl::StrAppend(&text, "; largest difference ", tally.largest_distance);
  if (tally.count > 1) {
    absl::StrAppend(&text, " at ", index(tally.largest), ": ",
                    FormatPair<T>(tally.largest));
  }
  const auto expected = Load<T>(tally.largest.expected);
  if (const double allowed = Allowed(expected, rule.tolerance);
      !rule.bitwise && allowed > 0 && IsFinite(expected)) {
    absl::StrAppend(&text, ", where ", allowed, " is allowed");
  }
  return text;
}

std::string Signature(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return absl::StrCat(Name(tensor.dtype()), " of ", FormatDims(tensor.sizes()),
                      " on ", tensor.device().ToString());
}

bool SameDevice(const Tensor& a, const Tensor& b, CompareDevices devices) {
  if (devices == CompareDevices::kNotAtAll) {
    return a.device().is_meta() == b.device().is_meta();
  }
  return SameDevice(a.device(), b.device());
}

// Describes differences other than those of elements.
std::string ExplainProperties(const Tensor& actual, const Tensor& expected,
                              CompareDevices devices) {
  if (actual.defined() != expected.defined()) {
    return absl::StrCat("which is ", Signature(actual), ", expected ",
                        expected.defined() ? "" : "one that is ",
                        Signature(expected));
  }
  std::vector<std::string> differences;
  const auto add = [&](absl::string_view what, absl::string_view a,
                       absl::string_view e) {
    differences.push_back(
        absl::StrCat("whose ", what, " is ", a, ", expected ", e));
  };
  if (actual.dtype() != expected.dtype()) {
    add("dtype", Name(actual.dtype()), Name(expected.dtype()));
  }
  if (actual.sizes() != expected.sizes()) {
    add("shape", FormatDims(actual.sizes()), FormatDims(expected.sizes()));
  }
  if (!SameDevice(actual, expected, devices)) {
    add("device", actual.device().ToString(), expected.device().ToString());
  }
  return absl::StrJoin(differences, ", and ");
}

class TensorMatcher : public ::testing::MatcherInterface<const Tensor&> {
 public:
  // `words`: "equals " and the like, and the opposite.
  TensorMatcher(absl::string_view name, absl::StatusOr<Tensor> expected,
                ElementRule rule, std::array<std::string, 2> words)
      : expected_(std::move(expected)), rule_(rule), words_(std::move(words)) {
    if (!expected_.ok()) {
      ADD_FAILURE() << name << " expects a tensor, got " << expected_.status();
    }
    internal::CheckTolerance(name, rule_.tolerance);
  }

  bool MatchAndExplain(
      const Tensor& actual,
      ::testing::MatchResultListener* listener) const override {
    if (!expected_.ok()) return false;
    const std::string difference =
        internal::ExplainDifference(actual, *expected_, rule_);
    *listener << difference;
    return difference.empty();
  }

  void DescribeTo(std::ostream* out) const override {
    Describe(words_[0], out);
  }
  void DescribeNegationTo(std::ostream* out) const override {
    Describe(words_[1], out);
  }

 private:
  void Describe(const std::string& words, std::ostream* out) const {
    *out << words;
    if (expected_.ok()) {
      *out << *expected_;
    } else {
      *out << expected_.status();
    }
  }

  const absl::StatusOr<Tensor> expected_;
  const ElementRule rule_;
  const std::array<std::string, 2> words_;
};

}  // namespace

namespace internal {

std::string ExplainDifference(const Tensor& actual, const Tensor& expected,
                              const ElementRule& rule,
                              absl::Span<const int64_t> origin) {
  std::string properties = ExplainProperties(actual, expected, rule.devices);
  if (!properties.empty()) return properties;
  if (actual.numel() == 0 || actual.device().is_meta()) return "";
  if (!actual.device().is_cpu() || !expected.device().is_cpu()) {
    const absl::StatusOr<Tensor> a = actual.To(Device());
    const absl::StatusOr<Tensor> e = expected.To(Device());
    if (a.ok() && e.ok()) return ExplainDifference(*a, *e, rule, origin);
    return absl::StrCat("whose elements on ", actual.device().ToString(),
                        " cannot be copied to host memory: ",
                        (a.ok() ? e : a).status().ToString());
  }
  if (IsCarried(actual.dtype())) {
    // Their bits are compared, as integers.
    const DType bits = actual.element_size() == 1 ? kUInt8 : kUInt32;
    ElementRule bitwise = rule;
    bitwise.bitwise = true;
    return ExplainDifference(*actual.ViewAs(bits), *expected.ViewAs(bits),
                             bitwise, origin);
  }
  return DispatchDType(actual.dtype(), [&](auto tag) -> std::string {
    using T = typename decltype(tag)::type;
    const Tally<T> tally = Compare<T>(actual, expected, rule);
    if (tally.count == 0) return "";
    return Explain<T>(tally, actual, rule, origin);
  });
}

std::string FormatTolerance(const Tolerance& tolerance) {
  return absl::StrCat(
      "within rtol ", FormatNumber(tolerance.rtol), " and atol ",
      FormatNumber(tolerance.atol),
      tolerance.equal_nan ? " of " : " (NaN is near nothing) of ");
}

void CheckTolerance(absl::string_view matcher, const Tolerance& tolerance) {
  if (tolerance.rtol >= 0 && tolerance.atol >= 0) return;
  ADD_FAILURE() << matcher << " expects tolerances that are not negative, got "
                << "rtol " << tolerance.rtol << " and atol " << tolerance.atol;
}

}  // namespace internal

Tolerance DefaultTolerance(DType dtype) {
  switch (dtype) {
    case kFloat16:
      return {.rtol = 1e-3, .atol = 1e-5};
    case kBFloat16:
      return {.rtol = 1.6e-2, .atol = 1e-5};
    case kFloat32:
    case kComplex64:
      return {.rtol = 1.3e-6, .atol = 1e-5};
    case kFloat64:
    case kComplex128:
      return {.rtol = 1e-7, .atol = 1e-7};
    default:
      return {};
  }
}

::testing::Matcher<const Tensor&> TensorEq(absl::StatusOr<Tensor> expected,
                                           CompareDevices devices) {
  return ::testing::MakeMatcher(
      new TensorMatcher("TensorEq", std::move(expected), {.devices = devices},
                        {"equals ", "does not equal "}));
}

::testing::Matcher<const Tensor&> TensorBitwiseEq(
    absl::StatusOr<Tensor> expected, CompareDevices devices) {
  return ::testing::MakeMatcher(
      new TensorMatcher("TensorBitwiseEq", std::move(expected),
                        {.bitwise = true, .devices = devices},
                        {"has the bits of ", "does not have the bits of "}));
}

::testing::Matcher<const Tensor&> TensorNear(absl::StatusOr<Tensor> expected) {
  const Tolerance tolerance =
      expected.ok() ? DefaultTolerance(expected->dtype()) : Tolerance();
  return TensorNear(std::move(expected), tolerance);
}

::testing::Matcher<const Tensor&> TensorNear(absl::StatusOr<Tensor> expected,
                                             const Tolerance& tolerance,
                                             CompareDevices devices) {
  const std::string within = internal::FormatTolerance(tolerance);
  return ::testing::MakeMatcher(new TensorMatcher(
      "TensorNear", std::move(expected),
      {.tolerance = tolerance, .devices = devices},
      {absl::StrCat("is ", within), absl::StrCat("is not ", within)}));
}

}  // namespace sherd::testing
