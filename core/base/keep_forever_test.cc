#include "sherd/core/base/keep_forever.h"

#include <memory>

#include "gtest/gtest.h"

namespace sherd::internal {
namespace {

TEST(KeepForeverTest, AKeptObjectOutlivesItsOwner) {
  std::weak_ptr<int> kept;
  std::weak_ptr<int> dropped;
  {
    const auto owner = std::make_shared<int>(7);
    kept = owner;
    KeepForever(owner);
    dropped = std::make_shared<int>(8);
  }
  KeepForever(nullptr);
  EXPECT_TRUE(dropped.expired());
  ASSERT_FALSE(kept.expired());
  EXPECT_EQ(*kept.lock(), 7);
}

}  // namespace
}  // namespace sherd::internal
