#include "sherd/core/tensor/device.h"

#include <sstream>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::StatusIs;

TEST(DeviceTest, ParsesTypesWithAndWithoutIndexAndPrintsThemAgain) {
  const struct {
    const char* text;
    Device device;
  } kCases[] = {
      {"cpu", {DeviceType::kCpu, -1}},
      {"cpu:0", {DeviceType::kCpu, 0}},
      {"cuda", {DeviceType::kCuda, -1}},
      {"cuda:0", {DeviceType::kCuda, 0}},
      {"cuda:17", {DeviceType::kCuda, 17}},
      {"cuda:2147483647", {DeviceType::kCuda, 2147483647}},
      {"meta", {DeviceType::kMeta, -1}},
  };
  for (const auto& c : kCases) {
    const absl::StatusOr<Device> device = Device::Parse(c.text);
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ(*device, c.device) << c.text;
    EXPECT_EQ(device->ToString(), c.text);
    std::ostringstream out;
    out << *device;
    EXPECT_EQ(out.str(), c.text);
  }
}

TEST(DeviceTest, UnknownTypesAreRefusedByListingTheKnownOnes) {
  for (const char* text : {"foo", "random:0", "CPU", "hip", "cuda_", "xla:1"}) {
    EXPECT_THAT(Device::Parse(text),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         absl::StrCat("Expected one of cpu, cuda, meta device "
                                      "type at start of device string: ",
                                      text)));
  }
}

TEST(DeviceTest, MalformedTextIsRefusedAndQuoted) {
  for (const char* text :
       {"", ":", ":0", "cuda:", "cuda:foo", "cpu2", "cuda:-1", "cuda:+1",
        "cuda:01", "cuda:0:1", "cuda: 0", " cpu", "cpu ", "cuda:2147483648",
        "cuda:99999999999999999999", "foo:bar", "cuda:0x1", "c\xc3\xa4"}) {
    EXPECT_THAT(Device::Parse(text),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         absl::StrCat("Invalid device string: '", text, "'")))
        << text;
  }
}

TEST(DeviceTest, KeysOfHashTablesLookAtTypeAndIndex) {
  absl::flat_hash_set<Device> devices;
  for (DeviceType type :
       {DeviceType::kCpu, DeviceType::kCuda, DeviceType::kMeta}) {
    for (int index : {-1, 0, 1}) devices.insert(Device{type, index});
  }
  EXPECT_EQ(devices.size(), 9u);
  EXPECT_TRUE(devices.contains(*Device::Parse("cuda:1")));
  EXPECT_FALSE(devices.contains(*Device::Parse("cuda:2")));
  EXPECT_EQ(absl::HashOf(*Device::Parse("cpu")), absl::HashOf(Device()));
}

TEST(DeviceTest, TheDefaultIsTheCpu) {
  EXPECT_EQ(Device(), *Device::Parse("cpu"));
  EXPECT_TRUE(Device().is_cpu());
  EXPECT_FALSE(Device().is_cuda());
  EXPECT_TRUE(Device::Parse("cuda:1")->is_cuda());
  EXPECT_TRUE(Device::Parse("meta")->is_meta());
}

}  // namespace
}  // namespace sherd
