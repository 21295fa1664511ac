// Each error that the factories of tensors and their memory document, and no
// other.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/contract_cards.h"
#include "sherd/testing/kits/fake_device.h"

namespace sherd {
namespace {

using ::sherd::testing::ExpectCardsHold;
using ::sherd::testing::FakeDevice;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kPrecondition =
    absl::StatusCode::kFailedPrecondition;
constexpr absl::StatusCode kMissing = absl::StatusCode::kUnimplemented;
constexpr absl::StatusCode kRange = absl::StatusCode::kOutOfRange;
constexpr absl::StatusCode kMemory = absl::StatusCode::kResourceExhausted;

std::string In(const char* header, const char* phrase) {
  return std::string("core/tensor/") + header + ": " + phrase;
}

class EmptyAllocator final : public Allocator {
 public:
  absl::StatusOr<void*> Allocate(size_t, size_t) override {
    return absl::ResourceExhaustedError("there is nothing");
  }
  void Deallocate(void*, size_t) override {}
  absl::string_view name() const override { return "empty"; }
};

TEST(FactoryErrorsTest, OfTensors) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  static EmptyAllocator empty;
  const Tensor some = Tensor::Zeros({4}).value();
  ExpectCardsHold({
      {"Tensor",
       {In("tensor.h", "A dense tensor: dtype, sizes and strides over")},
       {{"a negative size", kInvalid,
         [] { return Tensor::Empty({-1}).status(); }},
        {"too many bytes", kInvalid,
         [] { return Tensor::Zeros({kHuge}).status(); }},
        {"another allocator", kInvalid,
         [] {
           return Tensor::Ones({4}, {.device = "cuda", .allocator = &empty})
               .status();
         }},
        {"a value that the dtype does not hold", kInvalid,
         [] { return Tensor::Full({4}, 300, {.dtype = kUInt8}).status(); }},
        {"a dimension that is not there", kRange,
         [&] { return some.Narrow(1, 0, 1).status(); }},
        {"an element that is not there", kRange,
         [&] { return some.Select(0, 4).status(); }},
        {"undefined", kPrecondition, [] { return Tensor().Clone().status(); }},
        {"text that is not a device", kPrecondition,
         [] { return Tensor::Empty({4}, {.device = "foo"}).status(); }},
        {"a device without a loader", kPrecondition,
         [&] { return some.To("cuda").status(); }},
        {"no memory", kMemory,
         [] { return Tensor::Empty({4}, {.allocator = &empty}).status(); }}}},
      {"Tensor::FromSpan",
       {In("tensor.h", "values.size() is not the product of `sizes`")},
       {{"another number", kInvalid,
         [] {
           return Tensor::FromSpan<float>({1, 2}, {3}).status();
         }}}},
      {"Tensor::FromStorage",
       {In("tensor.h", "A contiguous tensor over part of `storage`")},
       {{"none", kInvalid,
         [] { return Tensor::FromStorage(nullptr, 0, {1}, kInt8).status(); }},
        {"too little", kInvalid,
         [&] {
           return Tensor::FromStorage(some.storage(), 4, {4}, kFloat32)
               .status();
         }},
        {"not aligned", kInvalid,
         [&] {
           return Tensor::FromStorage(some.storage(), 1, {1}, kFloat32)
               .status();
         }}}},
      {"Tensor::At",
       {In("tensor.h", "T is not the type of dtype(), or the rank differs")},
       {{"another type", kInvalid,
         [&] { return some.At<double>({0}).status(); }}}},
      {"Tensor::size",
       {In("tensor.h", "Size of a dimension; -1 is the last one")},
       {{"a dimension that is not there", kRange,
         [&] { return some.size(1).status(); }}}},
      {"Tensor::To",
       {In("tensor.h", "A contiguous copy on another device; this tensor if")},
       {{"meta", kInvalid, [&] { return some.To("meta").status(); }}}},
      {"Storage::Allocate",
       {In("storage.h", "Memory from `allocator`, which must outlive")},
       {{"no memory", kMemory,
         [] { return Storage::Allocate(8, empty).status(); }}}},
      {"Storage::Borrow",
       {In("storage.h", "Memory that is owned elsewhere. It must stay")},
       {{"a null pointer", kInvalid,
         [] { return Storage::Borrow(nullptr, 8).status(); }},
        {"a device without an index", kInvalid,
         [&] {
           return Storage::Borrow(nullptr, 0, nullptr, "cuda").status();
         }}}},
      {"FillUniform",
       {In("random.h", "low > high, a bound or high - low is not a finite")},
       {{"bounds", kInvalid,
         [] {
           Tensor tensor = Tensor::Zeros({4}).value();
           return FillUniform(tensor, 1, 0);
         }},
        {"integers", kMissing,
         [] { return Rand({4}, {.dtype = kInt32}).status(); }}}},
      {"FillNormal",
       {In("random.h", "The same with numbers from the normal")},
       {{"a negative deviation", kInvalid,
         [] {
           Tensor tensor = Tensor::Zeros({4}).value();
           return FillNormal(tensor, 0, -1);
         }}}},
      {"NumElements",
       {In("shape.h", "More than kMaxRank dimensions, a negative size, or")},
       {{"a negative size", kInvalid,
         [] { return NumElements({-1}).status(); }},
        {"too many bytes", kInvalid,
         [] { return NumBytes({kHuge}, kFloat64).status(); }}}},
      {"Device::Parse",
       {In("device.h", "Reads \"cpu\", \"cuda\", \"cuda:0\"")},
       {{"malformed", kPrecondition,
         [] { return Device::Parse("cuda:x").status(); }},
        {"unknown", kPrecondition,
         [] { return Device::Parse("foo").status(); }}}},
  });
}

TEST(FactoryErrorsTest, OfDevices) {
  const auto with_device = [](auto call) {
    return [call] {
      FakeDevice::Install(1);
      const absl::Status status = call().status();
      DeviceRuntime::SetLoader(nullptr);
      return status;
    };
  };
  ExpectCardsHold({
      {"DeviceRuntime::Resolve",
       {In("device_runtime.h", "`device` with an index, which is there")},
       {{"a device that there is not", kRange,
         with_device([] { return DeviceRuntime::Resolve("cuda:1"); })},
        {"text that is not a device", kPrecondition,
         with_device([] { return DeviceRuntime::Resolve("foo"); })}}},
      {"DeviceRuntime::AllocatorFor",
       {In("device_runtime.h", "MemoryOf a resolved device; HeapAllocator()")},
       {{"meta", kInvalid,
         with_device([] { return DeviceRuntime::AllocatorFor("meta"); })}}},
      {"Tensor::FromBorrowed",
       {In("tensor.h", "A contiguous tensor over memory that the caller")},
       {{"memory of the host", kInvalid, with_device([] {
           static float data[4];
           return Tensor::FromBorrowed(data, {4}, kFloat32, nullptr, "cuda");
         })}}},
  });
}

}  // namespace
}  // namespace sherd
