#include "sherd/core/process/cores.h"

#include <sched.h>

#include <thread>

#include "gtest/gtest.h"

namespace sherd {
namespace {

TEST(CoresTest, CountsThoseThatTheThreadMayUse) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  EXPECT_EQ(CountCores(), CPU_COUNT(&all));

  // A thread of its own, so that the binding ends with it.
  std::thread([&all] {
    int core = 0;
    while (!CPU_ISSET(core, &all)) ++core;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(CountCores(), 1);
  }).join();
}

}  // namespace
}  // namespace sherd
