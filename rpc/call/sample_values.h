#ifndef SHERD_RPC_CALL_SAMPLE_VALUES_H_
#define SHERD_RPC_CALL_SAMPLE_VALUES_H_

#include <array>
#include <cctype>
#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call/arguments.h"

// Values for tests of the codec, covering nearly all types that can travel.
namespace sherd::internal {

enum class Colour : uint16_t { kRed = 1, kBlue = 7 };
enum OldEnum : int32_t { kOldOne = 1, kOldTwo = 2 };

// Contains itself.
struct Tree {
  static auto Fields(auto& self) {
    return std::tie(self.label, self.weight, self.children);
  }
  friend bool operator==(const Tree&, const Tree&) = default;

  std::string label;
  double weight = 0;
  std::vector<Tree> children;
};

struct Nothing {
  static auto Fields(auto&) { return std::tie(); }
  friend bool operator==(const Nothing&, const Nothing&) = default;
};

// For maps in which "a" and "A" are one key.
struct NoCase {
  static std::string Lower(std::string text) {
    for (char& c : text) c = static_cast<char>(std::tolower(c));
    return text;
  }
  bool operator()(const std::string& a, const std::string& b) const {
    return Lower(a) < Lower(b);
  }
};

// Looks like a reference to a value of another worker, but is none. An owner of
// -1 stands for a released reference.
template <typename T>
struct TestRef {
  friend bool operator==(const TestRef&, const TestRef&) = default;

  ReferenceId id;
  std::shared_ptr<void> keep;
};

template <typename T>
struct ReferenceCodec<TestRef<T>> {
  using Value = T;
  static bool IsEmpty(const TestRef<T>& ref) {
    return ref.id == ReferenceId() && ref.keep == nullptr;
  }
  static absl::StatusOr<HeldReference> Export(const TestRef<T>& ref) {
    if (ref.id.owner < 0) return absl::FailedPreconditionError("let go");
    return HeldReference{ref.id, ref.keep};
  }
  static absl::StatusOr<TestRef<T>> Import(HeldReference held) {
    if (held.id.owner < 0) return absl::FailedPreconditionError("let go");
    return TestRef<T>{held.id, std::move(held.keep)};
  }
};

struct Everything {
  static auto Fields(auto& self) {
    return std::tie(self.numbers, self.colour, self.text, self.duration,
                    self.time, self.tensor, self.shard, self.references,
                    self.lists, self.flags, self.array, self.tensors, self.maps,
                    self.tree, self.nothing);
  }

  std::tuple<bool, int8_t, uint16_t, int32_t, uint64_t, float, double> numbers;
  Colour colour = Colour::kRed;
  std::string text;
  absl::Duration duration;
  absl::Time time;
  Tensor tensor;
  std::optional<Shard> shard;
  std::vector<TestRef<Tensor>> references;
  std::vector<std::vector<int16_t>> lists;
  std::vector<bool> flags;
  std::array<std::optional<std::string>, 2> array;
  std::map<std::string, std::vector<Tensor>> tensors;
  absl::flat_hash_map<std::pair<int32_t, bool>, std::map<Colour, std::string>>
      maps;
  Tree tree;
  Nothing nothing;
};

// A value of T, small enough that tests can change each of its bits.
template <typename T>
struct RandomOf;
template <typename T>
T RandomValue(std::mt19937_64& random) {
  return RandomOf<T>::Make(random);
}

inline size_t RandomCount(std::mt19937_64& random) { return random() % 4; }

template <typename T>
requires std::is_arithmetic_v<T>
struct RandomOf<T> {
  static T Make(std::mt19937_64& random) {
    if constexpr (std::same_as<T, bool>) return random() % 2 == 1;
    // Every integer, and no NaN, which is not equal to itself.
    if constexpr (std::integral<T>) return static_cast<T>(random());
    return static_cast<T>(static_cast<int64_t>(random())) / 3;
  }
};
template <>
struct RandomOf<Colour> {
  static Colour Make(std::mt19937_64& random) {
    return static_cast<Colour>(RandomValue<uint16_t>(random));
  }
};
template <>
struct RandomOf<std::string> {
  static std::string Make(std::mt19937_64& random) {
    std::string text;
    for (size_t n = RandomCount(random); n > 0; --n) {
      text.push_back(static_cast<char>(random()));
    }
    return text;
  }
};
template <>
struct RandomOf<absl::Duration> {
  static absl::Duration Make(std::mt19937_64& random) {
    if (random() % 8 == 0) return absl::InfiniteDuration();
    if (random() % 8 == 0) return -absl::InfiniteDuration();
    return absl::Seconds(RandomValue<int32_t>(random)) +
           absl::Nanoseconds(RandomValue<int32_t>(random)) / 4;
  }
};
template <>
struct RandomOf<absl::Time> {
  static absl::Time Make(std::mt19937_64& random) {
    return absl::UnixEpoch() + RandomValue<absl::Duration>(random);
  }
};
template <>
struct RandomOf<Tensor> {
  static Tensor Make(std::mt19937_64& random) {
    if (random() % 4 == 0) return Tensor();
    const int64_t rows = static_cast<int64_t>(RandomCount(random));
    return Tensor::Full({rows, 2}, static_cast<int64_t>(random() % 100))
        .value();
  }
};
template <>
struct RandomOf<Shard> {
  static Shard Make(std::mt19937_64& random) {
    Shard shard;
    const int64_t rows = static_cast<int64_t>(RandomCount(random));
    shard.tensor = Tensor::Ones({rows, 2}).value();
    shard.metadata.offsets = {static_cast<int64_t>(random() % 1000), 0};
    shard.metadata.sizes = {rows, 2};
    if (random() % 2 == 0) shard.metadata.placement = "worker1/cpu";
    return shard;
  }
};
template <typename T>
struct RandomOf<TestRef<T>> {
  static TestRef<T> Make(std::mt19937_64& random) {
    if (random() % 4 == 0) return {};
    return {{static_cast<int32_t>(random() % 100), 1, random()},
            std::make_shared<int>(0)};
  }
};
template <typename T>
struct RandomOf<std::optional<T>> {
  static std::optional<T> Make(std::mt19937_64& random) {
    if (random() % 2 == 0) return std::nullopt;
    return RandomValue<T>(random);
  }
};
template <typename T>
struct RandomOf<std::vector<T>> {
  static std::vector<T> Make(std::mt19937_64& random) {
    std::vector<T> list;
    for (size_t n = RandomCount(random); n > 0; --n) {
      list.push_back(RandomValue<T>(random));
    }
    return list;
  }
};
template <typename T, size_t kSize>
struct RandomOf<std::array<T, kSize>> {
  static std::array<T, kSize> Make(std::mt19937_64& random) {
    std::array<T, kSize> list;
    for (T& element : list) element = RandomValue<T>(random);
    return list;
  }
};
template <MapLike M>
struct RandomOf<M> {
  static M Make(std::mt19937_64& random) {
    M map;
    for (size_t n = RandomCount(random); n > 0; --n) {
      auto key = RandomValue<typename M::key_type>(random);
      map.try_emplace(std::move(key),
                      RandomValue<typename M::mapped_type>(random));
    }
    return map;
  }
};
template <typename A, typename B>
struct RandomOf<std::pair<A, B>> {
  static std::pair<A, B> Make(std::mt19937_64& random) {
    A first = RandomValue<A>(random);
    return {std::move(first), RandomValue<B>(random)};
  }
};
template <typename... Ts>
struct RandomOf<std::tuple<Ts...>> {
  static std::tuple<Ts...> Make(std::mt19937_64& random) {
    // Braces: from left to right.
    return std::tuple<Ts...>{RandomValue<Ts>(random)...};
  }
};
template <>
struct RandomOf<Everything> {
  static Everything Make(std::mt19937_64& random) {
    Everything value;
    std::apply(
        [&]<typename... Ts>(Ts&... fields) {
          ((fields = RandomValue<Ts>(random)), ...);
        },
        Everything::Fields(value));
    return value;
  }
};
template <>
struct RandomOf<Nothing> {
  static Nothing Make(std::mt19937_64&) { return {}; }
};
template <>
struct RandomOf<Tree> {
  static Tree Make(std::mt19937_64& random) {
    Tree tree;
    tree.label = RandomValue<std::string>(random);
    tree.weight = RandomValue<double>(random);
    // Fewer than one child on average: the recursion ends.
    while (random() % 3 == 0) tree.children.push_back(Make(random));
    return tree;
  }
};

// Equality that considers tensors equal if they are the same.
template <typename T>
bool SameValue(const T& a, const T& b) {
  return a == b;
}
inline bool SameValue(const Tensor& a, const Tensor& b) {
  return a.defined() == b.defined() && a.data() == b.data();
}
inline bool SameValue(const Shard& a, const Shard& b) {
  return SameValue(a.tensor, b.tensor) && a.metadata == b.metadata;
}
inline bool SameValue(const std::optional<Shard>& a,
                      const std::optional<Shard>& b) {
  return a.has_value() == b.has_value() &&
         (!a.has_value() || SameValue(*a, *b));
}
inline bool SameValue(const std::map<std::string, std::vector<Tensor>>& a,
                      const std::map<std::string, std::vector<Tensor>>& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, tensors] : a) {
    const auto other = b.find(key);
    if (other == b.end() || other->second.size() != tensors.size()) {
      return false;
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!SameValue(tensors[i], other->second[i])) return false;
    }
  }
  return true;
}
inline bool SameValue(const Everything& a, const Everything& b) {
  return std::apply(
      [&](const auto&... left) {
        return std::apply(
            [&](const auto&... right) {
              return (SameValue(left, right) && ...);
            },
            Everything::Fields(b));
      },
      Everything::Fields(a));
}

}  // namespace sherd::internal

#endif  // SHERD_RPC_CALL_SAMPLE_VALUES_H_
