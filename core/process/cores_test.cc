#include "sherd/core/process/cores.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

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

TEST(CoresTest, BoundProcessesLeaveTheOthersTheirCores) {
  using Cores = std::vector<int>;
  const Cores all = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(internal::ShareOfCores(all, {}), 8);
  EXPECT_EQ(internal::ShareOfCores(all, {all, all, all}), 2);
  EXPECT_EQ(internal::ShareOfCores({2, 3}, {{0, 1}, {4, 5}, {6, 7}}), 2);
  EXPECT_EQ(internal::ShareOfCores({2, 3}, {{2, 3}, {4, 5}}), 1);
  EXPECT_NEAR(internal::ShareOfCores({2, 3}, {{3, 4}, all}), 0.5 + 1.0 / 3,
              1e-9);
  EXPECT_EQ(internal::ShareOfCores({7}, {all, all, all}), 0.25);
}

TEST(CoresTest, AProcessBesideThisOneIsAskedWhereItMayRun) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  const double cores = CPU_COUNT(&all);
  EXPECT_EQ(ShareOfCores({}), cores);
  EXPECT_NEAR(ShareOfCores({getpid(), -1}), cores / 3, 1e-6)
      << "one that cannot be seen is like this one";
  int core = 0;
  while (!CPU_ISSET(core, &all)) ++core;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (;;) pause();
  }
  EXPECT_EQ(sched_setaffinity(child, sizeof(one), &one), 0);
  EXPECT_NEAR(ShareOfCores({child}), cores - 0.5, 1e-6);
  EXPECT_EQ(kill(child, SIGKILL), 0);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace sherd
