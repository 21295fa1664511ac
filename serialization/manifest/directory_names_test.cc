#include "sherd/serialization/manifest/directory_names.h"

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sherd {
namespace {

TEST(DirectoryNamesTest, NamesOfStepsAreInTheirOrder) {
  std::string last;
  for (const int64_t step :
       {int64_t{0}, int64_t{9}, int64_t{10}, int64_t{1234567},
        std::numeric_limits<int64_t>::max()}) {
    const std::string name = StepManifestName(step);
    EXPECT_LT(last, name);
    EXPECT_EQ(StepOfManifestName(name), step);
    EXPECT_TRUE(IsManifestName(name));
    EXPECT_EQ(StepOfPinName(StepPinName(step)), step);
    EXPECT_EQ(StepOfManifestName(StepPinName(step)), std::nullopt);
    EXPECT_EQ(StepOfPinName(name), std::nullopt);
    last = name;
  }
  EXPECT_EQ(StepManifestName(10), "step-00000000000000000010.sherd");
}

TEST(DirectoryNamesTest, OtherNamesAreNone) {
  EXPECT_TRUE(IsManifestName("manifest.sherd"));
  for (const char* other :
       {"", "step-.sherd", "step-10.sherd", "step-0000000000000000010.sherd",
        "step-000000000000000000010.sherd", "step--0000000000000000010.sherd",
        "step-+0000000000000000010.sherd", "step- 0000000000000000010.sherd",
        "step-09223372036854775808.sherd", "step-99999999999999999999.sherd",
        "step-00000000000000000010.sherd.tmp", "step-00000000000000000010",
        "Step-00000000000000000010.sherd", "manifest.sherd.1.tmp",
        "lease.sherd"}) {
    EXPECT_FALSE(IsManifestName(other)) << other;
  }
}

TEST(DirectoryNamesTest, APathIsADirectoryUnlessItsLastPartIsAName) {
  const std::string name = StepManifestName(7);
  const auto expect = [](const std::string& path, const std::string& directory,
                         const std::string& name) {
    EXPECT_EQ(PlaceOfManifest(path).directory, directory) << path;
    EXPECT_EQ(PlaceOfManifest(path).name, name) << path;
  };
  expect("a/b", "a/b", "manifest.sherd");
  expect("a/b/", "a/b/", "manifest.sherd");
  expect("", "", "manifest.sherd");
  expect("a/b/manifest.sherd", "a/b", "manifest.sherd");
  expect("a/b/" + name, "a/b", name);
  expect("/" + name, "/", name);
  expect(name, ".", name);
  expect("a/" + name + "/b", "a/" + name + "/b", "manifest.sherd");
}

TEST(DirectoryNamesTest, OnlyNamesOfSavesAreOurs) {
  for (const char* ours :
       {"shard-00000-of-00004.0123456789abcdef.safetensors",
        "shard-123456-of-123457.ffffffffffffffff.safetensors",
        "shard-00000-of-00004.0123456789abcdef.safetensors.00aabbccddeeff11."
        "tmp",
        "lease.sherd.0123456789abcdef.tmp", "manifest.sherd.1.tmp"}) {
    EXPECT_TRUE(IsSaveFileName(ours)) << ours;
  }
  for (const char* other :
       {"", "manifest.sherd", "manifest.sherd.tmp", "manifest.sherd.x.tmp",
        "lease.sherd", "lease.sherd.1.tmp", "lease.sherd.0123456789abcdef",
        "shard-00000-of-00004.safetensors",
        "shard-00000-of-00004.0123456789abcde.safetensors",
        "shard-00000-of-00004.0123456789abcdeg.safetensors",
        "shard-00000.0123456789abcdef.safetensors",
        "shard-00000-of-00004.0123456789abcdef.safetensors.bak",
        "shard-00000-of-00004.0123456789abcdef.safetensors.tmp",
        "shard-00000-of-00004.0123456789abcdef.safetensors.1.tmp",
        "model.safetensors.0123456789abcdef.tmp", ".0123456789abcdef.tmp",
        "a-shard-00000-of-00004.0123456789abcdef.safetensors",
        "model-00001-of-00004.safetensors", "model.safetensors"}) {
    EXPECT_FALSE(IsSaveFileName(other)) << other;
  }
}

TEST(DirectoryNamesTest, ManifestsAreLostIfOneWasCommittedAndDataIsLeft) {
  const std::string data = DataFileName(0, 1, "0123456789abcdef");
  const std::string step = StepManifestName(3);
  const std::vector<std::string> lost = {"committed.pin", "lease.sherd",
                                         "manifest.sherd.1.tmp", data};
  EXPECT_TRUE(AllManifestsAreLost(lost));
  const std::vector<std::vector<std::string>> others = {
      {},
      {"committed.pin"},
      {data},
      {"committed.pin", data + ".0123456789abcdef.tmp"},
      {"committed.pin", "manifest.sherd", data},
      {"committed.pin", data, step},
      {"committed.pin.tmp", data}};
  for (const std::vector<std::string>& names : others) {
    EXPECT_FALSE(AllManifestsAreLost(names)) << ::testing::PrintToString(names);
  }
}

}  // namespace
}  // namespace sherd
