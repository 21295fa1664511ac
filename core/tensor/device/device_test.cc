#include "sherd/core/tensor/device.h"

#include <optional>
#include <sstream>
#include <string>
#include <vector>

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

// It may come from a file or a peer.
TEST(DeviceTest, ControlCharactersOfMalformedTextAreEscaped) {
  EXPECT_THAT(Device::Parse("cpu\n\x1b"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "Invalid device string: 'cpu\\n\\x1b'"));
}

TEST(DeviceTest, TextConvertsToDevices) {
  const auto name = [](Device device) { return device.ToString(); };
  EXPECT_EQ(name("cuda:3"), "cuda:3");
  EXPECT_EQ(name(std::string("cpu")), "cpu");
  EXPECT_EQ(name(DeviceType::kCuda), "cuda");
  const Device device = "cuda:1";
  EXPECT_EQ(device, Device(DeviceType::kCuda, 1));
  EXPECT_TRUE(device.status().ok());
  const std::optional<Device> optional = "meta";
  EXPECT_TRUE(optional->is_meta());
}

TEST(DeviceTest, MalformedTextIsKeptUntilTheDeviceIsUsed) {
  std::vector<std::string> texts = {"", "cuda:foo", "gpu:0", "cuda:0 "};
  // Also more of them than are kept.
  for (int i = 0; i < 200; ++i) texts.push_back(absl::StrCat("gpu:", i));
  for (const std::string& text : texts) {
    const Device device = text;
    EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_FALSE(device.is_cpu() || device.is_cuda() || device.is_meta());
  }
  const Device foo = "cuda:foo";
  EXPECT_THAT(foo.status(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                     "Invalid device string: 'cuda:foo'"));
  EXPECT_EQ(foo.ToString(), "cuda:foo");
  EXPECT_EQ(foo, Device("cuda:foo"));
  EXPECT_NE(foo, Device("gpu:0"));
}

TEST(DeviceTest, WithoutAnIndexItMayBeAnyOfItsType) {
  EXPECT_TRUE(SameDevice("cuda", "cuda:1"));
  EXPECT_TRUE(SameDevice("cpu:0", "cpu"));
  EXPECT_TRUE(SameDevice("cuda:1", "cuda:1"));
  EXPECT_FALSE(SameDevice("cuda:0", "cuda:1"));
  EXPECT_FALSE(SameDevice("cuda", "meta"));
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
