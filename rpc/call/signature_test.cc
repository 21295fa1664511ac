#include "sherd/rpc/call/signature.h"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "google/protobuf/duration.pb.h"
#include "gtest/gtest.h"
#include "sherd/core/sharding/shard.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call/sample_values.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;

struct Ping {
  static constexpr absl::string_view kName = "ping";
  using Signature = absl::Status();
};
struct Scale {
  static constexpr absl::string_view kName = "scale";
  using Signature = absl::StatusOr<Tensor>(const Tensor&, double);
};
struct All {
  static constexpr absl::string_view kName = "everything";
  using Signature = absl::StatusOr<absl::flat_hash_map<int64_t, Tree>>(
      bool, int8_t, uint16_t, int32_t, uint64_t, float, double, Colour,
      std::string, absl::Duration, absl::Time, Tensor, const Shard&,
      TestRef<Tensor>, TestRef<void>, std::vector<std::string>,
      std::vector<bool>, std::array<int16_t, 3>,
      std::map<std::string, std::vector<Tensor>>, std::optional<int64_t>,
      std::tuple<int32_t, std::string>, std::pair<int32_t, std::string>,
      std::tuple<>, Tree, Nothing, google::protobuf::Duration);
};
struct Views {
  static constexpr absl::string_view kName = "views";
  using Signature = absl::Status(absl::string_view, std::string_view,
                                 absl::Span<const int64_t>);
};

// Two structs that contain one another.
struct Left;
struct Right {
  static auto Fields(auto& self) { return std::tie(self.lefts, self.rights); }
  std::vector<Left> lefts;
  std::vector<Right> rights;
};
struct Left {
  static auto Fields(auto& self) { return std::tie(self.number, self.right); }
  int32_t number = 0;
  Right right;
};
struct Nested {
  static constexpr absl::string_view kName = "nested";
  using Signature = absl::StatusOr<int8_t>(Left);
};

// Golden: workers of other builds compare these. A change of the bytes of a
// value changes kArgumentsFormat, and with it all hashes.
TEST(SignatureTest, IsTheSameInEveryBuild) {
  EXPECT_EQ(SignatureOf<Ping>().text, "ping()->none");
  EXPECT_EQ(SignatureOf<Ping>().hash, 0xdc05cc25d028f3be);
  EXPECT_EQ(SignatureOf<Scale>().text, "scale(tensor,f64)->tensor");
  EXPECT_EQ(SignatureOf<Scale>().hash, 0xc6a66ba5e1788a5b);
  EXPECT_EQ(SignatureOf<All>().text,
            "everything(bool,i8,u16,i32,u64,f32,f64,enum(u16),string,duration,"
            "time,tensor,shard,ref(tensor),ref(none),list(string),list(bool),"
            "array(i16,3),map(string,list(tensor)),optional(i64),"
            "tuple(i32,string),tuple(i32,string),tuple(),"
            "struct(string,f64,list(^1)),struct(),"
            "proto(google.protobuf.Duration))->"
            "map(i64,struct(string,f64,list(^1)))");
  EXPECT_EQ(SignatureOf<All>().hash, 0xfea77e2a94a90a23);
  EXPECT_EQ(SignatureOf<Views>().text, "views(string,string,list(i64))->none");
  EXPECT_EQ(SignatureOf<Views>().hash, 0xa4c3f10f6186d38a);
  EXPECT_EQ(SignatureOf<Nested>().text,
            "nested(struct(i32,struct(list(^2),list(^1))))->i8");
  EXPECT_EQ(SignatureOf<Nested>().hash, 0x449e446a7665ec56);
}

template <typename T>
std::string TypeOf() {
  TypeText type;
  DescribeType<T>(type);
  return std::move(type).Take();
}

TEST(SignatureTest, TypesOfOneFormHaveOneName) {
  EXPECT_EQ(TypeOf<long>(), TypeOf<long long>());  // NOLINT(runtime/int)
  EXPECT_EQ((TypeOf<std::map<int, bool>>()),
            (TypeOf<std::unordered_map<int, bool>>()));
  EXPECT_EQ((TypeOf<std::pair<int, bool>>()),
            (TypeOf<std::tuple<int, bool>>()));
  EXPECT_NE(TypeOf<int32_t>(), TypeOf<uint32_t>());
  EXPECT_NE(TypeOf<Colour>(), TypeOf<uint16_t>());
  EXPECT_NE((TypeOf<std::array<int, 2>>()), (TypeOf<std::array<int, 3>>()));
  EXPECT_NE(TypeOf<TestRef<int>>(), TypeOf<TestRef<int64_t>>());
}

TEST(SignatureTest, AnotherNameIsAnotherSignature) {
  EXPECT_NE(HashSignature("a()->none"), HashSignature("b()->none"));
}

TEST(MethodCodecTest, ViewsAreStoredByTheReceiver) {
  using Codec = MethodCodec<Views::Signature>;
  const std::vector<int64_t> list = {1, 2};
  SHERD_ASSERT_OK_AND_ASSIGN(Payload request,
                             Codec::Encode("views", "a", "b", list));
  Codec::Arguments arguments;
  ASSERT_THAT(Codec::Decode("views", std::move(request), arguments), IsOk());
  const absl::Status status = Codec::Invoke(
      [&](absl::string_view a, std::string_view b,
          absl::Span<const int64_t> c) {
        EXPECT_EQ(a, "a");
        EXPECT_EQ(b, "b");
        EXPECT_EQ(c, absl::MakeConstSpan(list));
        return absl::CancelledError("seen");
      },
      arguments);
  EXPECT_EQ(status.message(), "seen");
}

TEST(MethodCodecTest, ParametersByValueTakeTheArguments) {
  using Codec = MethodCodec<absl::Status(std::vector<int>, const std::string&)>;
  SHERD_ASSERT_OK_AND_ASSIGN(Payload request,
                             Codec::Encode("m", std::vector<int>{1}, "text"));
  Codec::Arguments arguments;
  ASSERT_THAT(Codec::Decode("m", std::move(request), arguments), IsOk());
  const int* const elements = std::get<0>(arguments).data();
  EXPECT_EQ(Codec::Invoke(
                [&](std::vector<int> list, const std::string& text) {
                  EXPECT_EQ(list.data(), elements);
                  EXPECT_EQ(&text, &std::get<1>(arguments));
                  return absl::OkStatus();
                },
                arguments),
            absl::OkStatus());
}

// Signatures that the compiler refuses.
template <typename Signature>
constexpr bool kValid = MethodSignature<Signature>::kValid;
static_assert(kValid<absl::Status()>);
static_assert(kValid<absl::StatusOr<Tensor>(const Tensor&, double)>);
static_assert(!kValid<Tensor(const Tensor&)>, "no status");
static_assert(!kValid<void()> && !kValid<int> && !kValid<int()>);
static_assert(!kValid<absl::StatusOr<int*>()>);
static_assert(!kValid<absl::StatusOr<absl::string_view>()>);
static_assert(!kValid<absl::Status(Tensor&)>, "would not travel back");
static_assert(!kValid<absl::Status(Tensor&&)>);
static_assert(!kValid<absl::Status(const char*)>);
static_assert(!kValid<absl::Status(int*)>);
static_assert(!kValid<absl::Status(absl::Span<int64_t>)>);
static_assert(!kValid<absl::Status(absl::Span<const bool>)>);
static_assert(!kValid<absl::Status(std::unique_ptr<int>)>);
static_assert(!kValid<absl::Status(std::vector<absl::string_view>)>);

using ScaleCodec = MethodCodec<Scale::Signature>;
static_assert(ScaleCodec::kCallableWith<Tensor, int>);
static_assert(ScaleCodec::kCallableWith<const Tensor&, double>);
static_assert(!ScaleCodec::kCallableWith<Tensor>);
static_assert(!ScaleCodec::kCallableWith<Tensor, std::string>);
static_assert(!ScaleCodec::kCallableWith<Tensor, double, double>);

}  // namespace
}  // namespace sherd::internal
