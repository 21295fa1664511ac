// main() for fuzz targets in ordinary test runs: one test per corpus file,
// which feeds the target the file itself, its beginnings, and copies with one
// byte changed. The variants are the same in every run. A failure is a crash,
// an assertion of the target, or a sanitizer's report.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

// Bounds the work per file, whatever its size.
constexpr size_t kVariants = 512;

void Feed(const std::vector<uint8_t>& bytes) {
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

class ReplayTest : public ::testing::Test {
 public:
  explicit ReplayTest(std::string path) : path_(std::move(path)) {}

  void TestBody() override {
    std::ifstream file(path_, std::ios::binary);
    ASSERT_TRUE(file.good()) << "cannot open " << path_;
    const std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(file)),
                                     std::istreambuf_iterator<char>());
    Feed(bytes);
    const size_t step = std::max<size_t>(1, bytes.size() / kVariants);
    for (size_t i = 0; i < bytes.size(); i += step) {
      Feed(std::vector<uint8_t>(bytes.begin(), bytes.begin() + i));
      std::vector<uint8_t> changed = bytes;
      for (uint8_t flip : {0x01, 0x80, 0xff}) {
        changed[i] = bytes[i] ^ flip;
        Feed(changed);
      }
    }
  }

 private:
  const std::string path_;
};

class EmptyInputTest : public ::testing::Test {
 public:
  void TestBody() override { Feed({}); }
};

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  ::testing::RegisterTest(
      "Replay", "EmptyInput", nullptr, nullptr, __FILE__, __LINE__,
      []() -> ::testing::Test* { return new EmptyInputTest(); });
  for (int i = 1; i < argc; ++i) {
    const std::string path = argv[i];
    const std::string name = path.substr(path.find_last_of('/') + 1);
    ::testing::RegisterTest(
        "Replay", name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
        [path]() -> ::testing::Test* { return new ReplayTest(path); });
  }
  return RUN_ALL_TESTS();
}
