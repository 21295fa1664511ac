#ifndef SHERD_RPC_CALL_ARGUMENTS_H_
#define SHERD_RPC_CALL_ARGUMENTS_H_

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call/encoding.h"
#include "sherd/rpc/call/payload.h"

namespace sherd {

struct Shard;

// Arguments and results of calls as bytes, as ARGUMENTS.md describes: each
// value has one form, and any other form is an error.
//
// Types. Integers of fixed width, bool, float, double, enums that name their
// underlying type, std::string, absl::Duration, absl::Time, Tensor, Shard,
// std::vector, std::array, maps (std and absl; keys without floats), optional,
// pair, tuple, Protobuf messages, references, and structs that list their
// fields:
//
//     struct Range {
//       static auto Fields(auto& self) {
//         return std::tie(self.begin, self.end);
//       }
//       int64_t begin = 0;
//       int64_t end = 0;
//     };
//
// A struct may contain vectors of itself. A received enum may hold any number
// of its underlying type, since the peer may know more enumerators.
namespace internal {

// The encoding of a T:
//
//     static constexpr bool kIsKey;      // Equal values have equal bytes.
//     static constexpr size_t MinBytes();
//     static void Describe(TypeText& type);
//     static void Encode(const T& value, Encoder& encoder);
//     static bool Decode(Decoder& decoder, T& value);  // Into a new one.
template <typename T>
struct ValueCodec;

// The first two members, for most types.
template <size_t kBytes, bool kKey = false>
struct CodecBase {
  static constexpr bool kIsKey = kKey;
  static constexpr size_t MinBytes() { return kBytes; }
};

// Types that can be arguments and results.
template <typename T>
concept Codable = std::default_initializable<T> &&
    requires(TypeText& type, const T& value, Encoder& encoder) {
  ValueCodec<T>::Describe(type);
  ValueCodec<T>::Encode(value, encoder);
};

// A handle of something that stays where it is. remote_ref.h specialises this
// for its references:
//
//     using Value = …;  // What is referred to; may be void.
//     static bool IsEmpty(const T&);
//     static absl::StatusOr<HeldReference> Export(const T&);  // Not empty.
//     static absl::StatusOr<T> Import(HeldReference);
template <typename T>
struct ReferenceCodec;

// The text of a type in signatures; "none" for void.
template <typename T>
void DescribeType(TypeText& type) {
  if constexpr (std::is_void_v<T>) {
    type.Append("none");
  } else {
    ValueCodec<T>::Describe(type);
  }
}
// "name(A,B)".
template <typename... Ts>
void DescribeTypes(TypeText& type, absl::string_view name) {
  type.Append(name);
  [[maybe_unused]] absl::string_view separator = "(";
  if (sizeof...(Ts) == 0) type.Append(separator);
  ((type.Append(separator), DescribeType<Ts>(type), separator = ","), ...);
  type.Append(")");
}

// Numbers.

template <typename T, typename... Others>
concept OneOf = (std::same_as<T, Others> || ...);

// The sign of char and the sizes of the others depend on the platform.
template <typename T>
concept WireInteger =
    std::integral<T> &&
    !OneOf<T, bool, char, wchar_t, char8_t, char16_t, char32_t> &&
    sizeof(T) <= 8;
template <typename T>
concept WireFloat = OneOf<T, float, double>;
// An enum that may hold each number of its underlying type: for a plain `enum`
// without one, numbers outside of its enumerators are undefined behaviour.
template <typename T>
concept WireEnum = std::is_enum_v<T> && requires {
  T{std::underlying_type_t<T>{}};
} && WireInteger<std::underlying_type_t<T>>;
template <typename T>
concept WireScalar = WireInteger<T> || WireFloat<T> || WireEnum<T>;

template <WireScalar T>
struct ValueCodec<T> : CodecBase<sizeof(T), !WireFloat<T>> {
  static_assert(!WireFloat<T> || std::numeric_limits<T>::is_iec559);
  static void Describe(TypeText& type) {
    if constexpr (WireEnum<T>) {
      DescribeTypes<std::underlying_type_t<T>>(type, "enum");
    } else {
      type.Append(WireFloat<T> ? "f" : std::is_signed_v<T> ? "i" : "u");
      type.Append(8 * sizeof(T));
    }
  }
  static void Encode(T value, Encoder& encoder) { encoder.PutNumber(value); }
  static bool Decode(Decoder& decoder, T& value) {
    return decoder.TakeNumber(&value);
  }
};

template <>
struct ValueCodec<bool> : CodecBase<1, true> {
  static void Describe(TypeText& type) { type.Append("bool"); }
  static void Encode(bool value, Encoder& encoder) { encoder.PutFlag(value); }
  static bool Decode(Decoder& decoder, bool& value) {
    return decoder.TakeFlag(&value);
  }
};

template <>
struct ValueCodec<absl::Duration> : CodecBase<12, true> {
  static void Describe(TypeText& type) { type.Append("duration"); }
  static void Encode(absl::Duration value, Encoder& encoder);
  static bool Decode(Decoder& decoder, absl::Duration& value);
};

template <>
struct ValueCodec<absl::Time> : CodecBase<12, true> {
  static void Describe(TypeText& type) { type.Append("time"); }
  static void Encode(absl::Time value, Encoder& encoder);
  static bool Decode(Decoder& decoder, absl::Time& value);
};

// Tensors and references.

template <>
struct ValueCodec<Tensor> : CodecBase<1> {
  static void Describe(TypeText& type) { type.Append("tensor"); }
  static void Encode(const Tensor& value, Encoder& encoder) {
    encoder.PutTensor(value);
  }
  static bool Decode(Decoder& decoder, Tensor& value) {
    return decoder.TakeTensor(&value);
  }
};

// Its metadata are valid and have the sizes of the tensor. The tensor may be on
// another device than they name: the receiver's.
template <>
struct ValueCodec<Shard> : CodecBase<3> {
  static void Describe(TypeText& type) { type.Append("shard"); }
  static void Encode(const Shard& value, Encoder& encoder);
  static bool Decode(Decoder& decoder, Shard& value);
};

template <typename T>
concept WireReference = requires {
  typename ReferenceCodec<T>::Value;
};

template <WireReference T>
struct ValueCodec<T> : CodecBase<1> {
  using Reference = ReferenceCodec<T>;
  static void Describe(TypeText& type) {
    DescribeTypes<typename Reference::Value>(type, "ref");
  }
  static void Encode(const T& value, Encoder& encoder) {
    if (Reference::IsEmpty(value)) return encoder.PutReference(std::nullopt);
    absl::StatusOr<HeldReference> held = Reference::Export(value);
    if (!held.ok()) return encoder.Fail(held.status());
    encoder.PutReference(*std::move(held));
  }
  static bool Decode(Decoder& decoder, T& value) {
    std::optional<HeldReference> held;
    if (!decoder.TakeReference(&held)) return false;
    if (!held.has_value()) return true;
    absl::StatusOr<T> reference = Reference::Import(*std::move(held));
    if (!reference.ok()) return decoder.Fail(reference.status());
    value = *std::move(reference);
    return true;
  }
};

// Text and lists.

template <typename T>
concept CopiedAsAWhole =
    WireScalar<T> && std::endian::native == std::endian::little;

template <>
struct ValueCodec<std::string> : CodecBase<4, true> {
  static void Describe(TypeText& type) { type.Append("string"); }
  // From any view of text.
  template <typename Text>
  static void Encode(const Text& value, Encoder& encoder) {
    encoder.PutText(absl::string_view(value.data(), value.size()));
  }
  static bool Decode(Decoder& decoder, std::string& value) {
    absl::string_view text;
    if (!decoder.TakeText(&text)) return false;
    value.assign(text.data(), text.size());
    return true;
  }
};

template <Codable T, typename Allocator>
struct ValueCodec<std::vector<T, Allocator>> : CodecBase<4> {
  static void Describe(TypeText& type) { DescribeTypes<T>(type, "list"); }
  // From any type that has the elements one after another.
  template <typename List>
  static void Encode(const List& value, Encoder& encoder) {
    encoder.PutCount(value.size());
    if constexpr (CopiedAsAWhole<T>) {
      encoder.PutBytes(value.data(), value.size() * sizeof(T));
    } else {
      for (const auto& element : value) {
        ValueCodec<T>::Encode(element, encoder);
        if (!encoder.ok()) return;
      }
    }
  }
  static bool Decode(Decoder& decoder, std::vector<T, Allocator>& value) {
    static_assert(ValueCodec<T>::MinBytes() > 0,
                  "a list of values without bytes could have any length");
    size_t count = 0;
    if (!decoder.TakeCount(ValueCodec<T>::MinBytes(), &count)) return false;
    if constexpr (CopiedAsAWhole<T>) {
      const char* const bytes = decoder.Take(count * sizeof(T));
      if (bytes == nullptr) return false;
      value.resize(count);
      if (count > 0) std::memcpy(value.data(), bytes, count * sizeof(T));
    } else {
      for (size_t i = 0; i < count; ++i) {
        T element{};
        if (!ValueCodec<T>::Decode(decoder, element)) return false;
        value.push_back(std::move(element));
      }
    }
    return true;
  }
};

template <Codable T, size_t kSize>
struct ValueCodec<std::array<T, kSize>> {
  static constexpr bool kIsKey = ValueCodec<T>::kIsKey;
  static constexpr size_t MinBytes() {
    return kSize * ValueCodec<T>::MinBytes();
  }
  static void Describe(TypeText& type) {
    type.Append("array(");
    DescribeType<T>(type);
    type.Append(",");
    type.Append(kSize);
    type.Append(")");
  }
  static void Encode(const std::array<T, kSize>& value, Encoder& encoder) {
    for (const T& element : value) ValueCodec<T>::Encode(element, encoder);
  }
  static bool Decode(Decoder& decoder, std::array<T, kSize>& value) {
    for (T& element : value) {
      if (!ValueCodec<T>::Decode(decoder, element)) return false;
    }
    return true;
  }
};

// Maps of any type: in the order of the keys' bytes.

template <typename M>
concept MapLike = requires(M map, typename M::key_type key,
                           typename M::mapped_type value) {
  map.try_emplace(std::move(key), std::move(value)).second;
  map.begin()->first;
  map.size();
};

// Keys that have bytes: without any, a count could not be checked.
template <typename K>
concept WireKey = Codable<K> && ValueCodec<K>::kIsKey &&
    (ValueCodec<K>::MinBytes() > 0);

struct MapEntry {
  // Of the bytes of all keys.
  size_t begin = 0;
  size_t end = 0;
  const void* value = nullptr;
};
// Sorts `entries` by their keys, and returns the bytes of the keys. A key comes
// before those that begin with it.
absl::StatusOr<std::string> SortEntries(Encoder keys,
                                        std::vector<MapEntry>& entries);

template <MapLike M>
requires(WireKey<typename M::key_type>&&
             Codable<typename M::mapped_type>) struct ValueCodec<M>
    : CodecBase<4> {
  using Key = typename M::key_type;
  using Value = typename M::mapped_type;
  static void Describe(TypeText& type) {
    DescribeTypes<Key, Value>(type, "map");
  }
  static void Encode(const M& value, Encoder& encoder) {
    Encoder keys;
    std::vector<MapEntry> entries;
    for (const auto& [key, mapped] : value) {
      const size_t begin = keys.size();
      ValueCodec<Key>::Encode(key, keys);
      if (!keys.ok()) break;
      entries.push_back({begin, keys.size(), &mapped});
    }
    const absl::StatusOr<std::string> bytes =
        SortEntries(std::move(keys), entries);
    if (!bytes.ok()) return encoder.Fail(bytes.status());
    encoder.PutCount(entries.size());
    for (const MapEntry& entry : entries) {
      encoder.PutBytes(bytes->data() + entry.begin, entry.end - entry.begin);
      ValueCodec<Value>::Encode(*static_cast<const Value*>(entry.value),
                                encoder);
      if (!encoder.ok()) return;
    }
  }
  static bool Decode(Decoder& decoder, M& value) {
    size_t count = 0;
    if (!decoder.TakeCount(
            ValueCodec<Key>::MinBytes() + ValueCodec<Value>::MinBytes(),
            &count)) {
      return false;
    }
    absl::string_view last;
    for (size_t i = 0; i < count; ++i) {
      const absl::string_view before = decoder.left();
      Key key{};
      if (!ValueCodec<Key>::Decode(decoder, key)) return false;
      const absl::string_view bytes =
          before.substr(0, before.size() - decoder.left().size());
      if (i > 0 && bytes <= last) {
        return decoder.Fail("expected the keys of a map in ascending order");
      }
      last = bytes;
      Value mapped{};
      if (!ValueCodec<Value>::Decode(decoder, mapped)) return false;
      if (!value.try_emplace(std::move(key), std::move(mapped)).second) {
        return decoder.Fail(
            "expected different keys in a map, found two alike");
      }
    }
    return true;
  }
};

// Products.

template <Codable T>
struct ValueCodec<std::optional<T>> {
  static constexpr bool kIsKey = ValueCodec<T>::kIsKey;
  static constexpr size_t MinBytes() { return 1; }
  static void Describe(TypeText& type) { DescribeTypes<T>(type, "optional"); }
  static void Encode(const std::optional<T>& value, Encoder& encoder) {
    encoder.PutFlag(value.has_value());
    if (value.has_value()) ValueCodec<T>::Encode(*value, encoder);
  }
  static bool Decode(Decoder& decoder, std::optional<T>& value) {
    bool there = false;
    if (!decoder.TakeFlag(&there)) return false;
    return !there || ValueCodec<T>::Decode(decoder, value.emplace());
  }
};

// One value after the other; `parts` is what std::apply takes.
template <typename... Ts>
struct PartsCodec {
  static constexpr size_t MinBytes() {
    return (size_t{0} + ... + ValueCodec<Ts>::MinBytes());
  }
  template <typename Parts>
  static void Encode(const Parts& parts, Encoder& encoder) {
    std::apply(
        [&](const Ts&... part) {
          (ValueCodec<Ts>::Encode(part, encoder), ...);
        },
        parts);
  }
  template <typename Parts>
  static bool Decode(Decoder& decoder, Parts&& parts) {
    return std::apply(
        [&](Ts&... part) {
          return (ValueCodec<Ts>::Decode(decoder, part) && ...);
        },
        parts);
  }
};

template <Codable... Ts>
struct ValueCodec<std::tuple<Ts...>> : PartsCodec<Ts...> {
  static constexpr bool kIsKey = (ValueCodec<Ts>::kIsKey && ...);
  static void Describe(TypeText& type) { DescribeTypes<Ts...>(type, "tuple"); }
};
template <Codable A, Codable B>
struct ValueCodec<std::pair<A, B>> : ValueCodec<std::tuple<A, B>> {};

template <typename T>
concept HasFields = requires(T& value, const T& constant) {
  T::Fields(value);
  T::Fields(constant);
};

template <typename Tie>
struct FieldsCodec;
template <typename... Fs>
struct FieldsCodec<std::tuple<Fs&...>> : PartsCodec<Fs...> {
  static void Describe(TypeText& type) { DescribeTypes<Fs...>(type, "struct"); }
};

template <HasFields T>
struct ValueCodec<T> {
  using Parts = FieldsCodec<decltype(T::Fields(std::declval<T&>()))>;
  static constexpr bool kIsKey = false;
  static constexpr size_t MinBytes() { return Parts::MinBytes(); }
  static void Describe(TypeText& type) {
    if (!type.OpenStruct(typeid(T))) return;
    Parts::Describe(type);
    type.CloseStruct();
  }
  static void Encode(const T& value, Encoder& encoder) {
    if (!encoder.Enter()) return;
    Parts::Encode(T::Fields(value), encoder);
    encoder.Leave();
  }
  static bool Decode(Decoder& decoder, T& value) {
    if (!decoder.Enter()) return false;
    const bool ok = Parts::Decode(decoder, T::Fields(value));
    decoder.Leave();
    return ok;
  }
};

// Protobuf messages, recognised by their member functions: this header includes
// no header of Protobuf.

template <typename T>
concept MessageValue = requires(const T& constant, T& message,
                                std::string* bytes) {
  { constant.SerializeToString(bytes) } -> std::same_as<bool>;
  { message.ParseFromArray(bytes->data(), 0) } -> std::same_as<bool>;
  constant.GetTypeName();
};

template <MessageValue T>
struct ValueCodec<T> : CodecBase<4> {
  static void Describe(TypeText& type) {
    type.Append("proto(");
    type.Append(absl::string_view(T().GetTypeName()));
    type.Append(")");
  }
  static void Encode(const T& value, Encoder& encoder) {
    std::string bytes;
    if (!value.SerializeToString(&bytes)) {
      return encoder.Fail(absl::InvalidArgumentError(
          "a Protobuf message is too large or lacks required fields"));
    }
    encoder.PutText(bytes);
  }
  static bool Decode(Decoder& decoder, T& value) {
    absl::string_view bytes;
    if (!decoder.TakeText(&bytes)) return false;
    // Fits: bounded by the payload.
    return value.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ||
           decoder.Fail("expected a Protobuf message, found other bytes");
  }
};

// The arguments of a call.
//   kInvalidArgument  They exceed the limits of a message, or a value is not
//                     valid: names the argument.
//   kInternal         An argument's type threw.
//   other             From a reference.
template <Codable... Ts, typename... Args>
absl::StatusOr<Payload> EncodeArguments(absl::string_view method,
                                        const Args&... args) {
  static_assert(sizeof...(Ts) == sizeof...(Args));
  Encoder encoder;
  size_t index = 0;
  encoder.Begin(method, index);
  return encoder.Run([&] {
    ((encoder.Begin(method, ++index), ValueCodec<Ts>::Encode(args, encoder)),
     ...);
  });
}

// The inverse, into new `values`.
//   kDataLoss  The payload is not what EncodeArguments makes of these types:
//              names the argument.
//   kInternal  An argument's type threw, or there is no memory for it.
//   other      From a reference.
template <Codable... Ts>
absl::Status DecodeArguments(absl::string_view method, Payload payload,
                             std::tuple<Ts...>& values) {
  Decoder decoder(std::move(payload));
  size_t index = 0;
  decoder.Begin(method, index);
  return decoder.Run([&] {
    std::apply(
        [&](Ts&... parts) {
          static_cast<void>(((decoder.Begin(method, ++index),
                              ValueCodec<Ts>::Decode(decoder, parts)) &&
                             ...));
        },
        values);
  });
}

// The result of a call; nothing for a method that returns absl::Status. Errors
// as above.
template <typename T>
absl::StatusOr<Payload> EncodeResult(absl::string_view method,
                                     const absl::StatusOr<T>& result) {
  if (!result.ok()) return result.status();
  Encoder encoder;
  encoder.Begin(method, kResult);
  return encoder.Run([&] { ValueCodec<T>::Encode(*result, encoder); });
}
absl::StatusOr<Payload> EncodeResult(absl::string_view method,
                                     const absl::Status& result);

template <typename T>
absl::StatusOr<T> DecodeResult(absl::string_view method,
                               absl::StatusOr<Payload> result) {
  if (!result.ok()) return result.status();
  std::optional<T> value;
  Decoder decoder(*std::move(result));
  decoder.Begin(method, kResult);
  absl::Status status =
      decoder.Run([&] { ValueCodec<T>::Decode(decoder, value.emplace()); });
  if (!status.ok()) return status;
  return *std::move(value);
}
template <std::same_as<void> T>
absl::Status DecodeResult(absl::string_view method,
                          absl::StatusOr<Payload> result) {
  return DecodeResult<std::tuple<>>(method, std::move(result)).status();
}

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_RPC_CALL_ARGUMENTS_H_
