#include "sherd/core/tensor/device_stream.h"

#include <thread>

#include "gtest/gtest.h"
#include "sherd/core/tensor/device.h"

namespace sherd {
namespace {

constexpr Device kFirst = {DeviceType::kCuda, 0};
constexpr Device kSecond = {DeviceType::kCuda, 1};

// Not a stream: an address that is never used.
DeviceStream Stream(const Device& device, uintptr_t number) {
  return {device, reinterpret_cast<void*>(number)};
}

TEST(CurrentStreamTest, IsTheDefaultStreamAtFirst) {
  EXPECT_EQ(CurrentStream(kFirst), (DeviceStream{kFirst, nullptr}));
}

TEST(CurrentStreamTest, IsThatOfTheInnermostScopeOfTheDevice) {
  const ScopedStream outer(Stream(kFirst, 1));
  EXPECT_EQ(CurrentStream(kFirst), Stream(kFirst, 1));
  EXPECT_EQ(CurrentStream(kSecond).handle, nullptr);
  {
    const ScopedStream other(Stream(kSecond, 2));
    const ScopedStream inner(Stream(kFirst, 3));
    EXPECT_EQ(CurrentStream(kFirst), Stream(kFirst, 3));
    EXPECT_EQ(CurrentStream(kSecond), Stream(kSecond, 2));
    {
      const ScopedStream to_default(Stream(kFirst, 0));
      EXPECT_EQ(CurrentStream(kFirst).handle, nullptr);
    }
  }
  EXPECT_EQ(CurrentStream(kFirst), Stream(kFirst, 1));
  EXPECT_EQ(CurrentStream(kSecond).handle, nullptr);
}

TEST(CurrentStreamTest, IsOfTheCallingThread) {
  const ScopedStream scope(Stream(kFirst, 1));
  std::thread([] {
    EXPECT_EQ(CurrentStream(kFirst).handle, nullptr);
    const ScopedStream own(Stream(kFirst, 2));
    EXPECT_EQ(CurrentStream(kFirst), Stream(kFirst, 2));
  }).join();
  EXPECT_EQ(CurrentStream(kFirst), Stream(kFirst, 1));
}

TEST(ScopedStreamDeathTest, EndsTheProcessWhereScopesAreMixedUp) {
  EXPECT_DEATH(
      {
        auto* const outer = new ScopedStream(Stream(kFirst, 1));
        auto* const inner = new ScopedStream(Stream(kFirst, 2));
        delete outer;
        delete inner;
      },
      "before one that began later");
}

}  // namespace
}  // namespace sherd
