#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/testing/emulated_gpu/control.h"
#include "sherd/testing/emulated_gpu/nccl/nccl_ranks.h"
#include "sherd/testing/emulated_gpu/nccl/nccl_words.h"

namespace sherd::testing {
namespace {

using internal::kNcclInProgress;
using internal::kNcclInvalidArgument;
using internal::kNcclInvalidUsage;
using internal::kNcclRemoteError;
using internal::kNcclSuccess;
using internal::NcclApi;
using internal::NcclComm;
using internal::NcclConfig;
using internal::NcclResult;
using internal::NcclUniqueId;

constexpr auto kInt32 = internal::kNcclInt32;
constexpr auto kSum = internal::kNcclSum;

NcclConfig NonBlocking() {
  NcclConfig config;
  config.blocking = 0;
  return config;
}

NcclConfig Blocking() {
  NcclConfig config;
  config.blocking = 1;
  return config;
}

void SetFaults(const char* faults) {
  ASSERT_EQ(sherd_emulated_gpu_set_faults(faults), 0) << faults;
}

// The sum over the communicator of what each rank has, seen by all.
int32_t SumOf(NcclRank& self, NcclComm comm, int32_t own) {
  void* const stream = self.NewStream();
  int32_t* const data = self.Upload(std::vector<int32_t>{own});
  EXPECT_EQ(self.nccl().all_reduce(data, data, 1, kInt32, kSum, comm, stream),
            kNcclSuccess);
  EXPECT_EQ(self.Synchronize(stream), 0);
  return self.Download(data, 1)[0];
}

// Queues a sum that peers do not call; returns its stream.
void* StartSum(NcclRank& self, NcclComm comm) {
  void* const stream = self.NewStream();
  int32_t* const data = self.Upload(std::vector<int32_t>{1});
  EXPECT_EQ(self.nccl().all_reduce(data, data, 1, kInt32, kSum, comm, stream),
            kNcclSuccess);
  return stream;
}

size_t OpenDescriptors() {
  size_t count = 0;
  DIR* const directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

TEST(NcclInit, LeavesNothingBehindAndTakesAnIdOnce) {
  ExpectNcclRanks(2, [](NcclRank& self) {
    const size_t before = OpenDescriptors();
    const NcclUniqueId id = self.ShareId();
    NcclComm comm = nullptr, again = nullptr;
    NcclConfig config;
    ASSERT_EQ(
        self.nccl().comm_init_rank_config(&comm, 2, id, self.rank(), &config),
        kNcclSuccess);
    EXPECT_EQ(OpenDescriptors(), before);
    EXPECT_EQ(
        self.nccl().comm_init_rank_config(&again, 2, id, self.rank(), &config),
        kNcclRemoteError);
    EXPECT_EQ(SumOf(self, comm, self.rank() + 1), 3);
    EXPECT_EQ(self.nccl().comm_destroy(comm), kNcclSuccess);
  });
}

TEST(NcclInit, RefusesAnInvalidIdRankOrConfig) {
  ExpectNcclRanks(1, [](NcclRank& self) {
    const NcclApi& nccl = self.nccl();
    NcclComm comm = nullptr;
    const NcclUniqueId id = self.ShareId();
    NcclUniqueId garbage;
    std::memset(&garbage, 0x5a, sizeof(garbage));
    NcclConfig config;
    EXPECT_EQ(nccl.comm_init_rank_config(&comm, 1, garbage, 0, &config),
              kNcclInvalidArgument);
    EXPECT_EQ(nccl.comm_init_rank_config(nullptr, 1, id, 0, &config),
              kNcclInvalidArgument);
    EXPECT_STREQ(nccl.get_last_error(nullptr),
                 "CommInitRank : newcomm argument is NULL");
    EXPECT_EQ(nccl.comm_init_rank_config(&comm, 1, id, 1, &config),
              kNcclInvalidArgument);
    EXPECT_STREQ(nccl.get_last_error(nullptr), "Invalid rank requested : 1/1");
    config.magic = 1;
    EXPECT_EQ(nccl.comm_init_rank_config(&comm, 1, id, 0, &config),
              kNcclInvalidArgument);
    EXPECT_STREQ(nccl.get_last_error(nullptr),
                 "ncclConfig_t argument not initialized via "
                 "NCCL_CONFIG_INITIALIZER");
    config = NcclConfig();
    config.blocking = 2;
    EXPECT_EQ(nccl.comm_init_rank_config(&comm, 1, id, 0, &config),
              kNcclInvalidArgument);
    EXPECT_STREQ(nccl.get_last_error(nullptr),
                 "Invalid config blocking attribute value 2");
    // An older program's config is shorter.
    config = NcclConfig();
    config.size = offsetof(NcclConfig, comm_name);
    EXPECT_EQ(nccl.comm_init_rank_config(&comm, 1, id, 0, &config),
              kNcclSuccess);
  });
}

TEST(NcclInit, RefusesOneDeviceForTwoRanksOfAHost) {
  for (const bool own_hosts : {false, true}) {
    ExpectNcclRanks(2, [&](NcclRank& self) {
      self.UseDevice(0);
      if (own_hosts) {
        setenv("NCCL_HOSTID", std::to_string(self.rank()).c_str(), 1);
      }
      NcclComm comm = nullptr;
      NcclConfig config;
      EXPECT_EQ(self.nccl().comm_init_rank_config(&comm, 2, self.ShareId(),
                                                  self.rank(), &config),
                own_hosts ? kNcclSuccess : kNcclInvalidUsage);
      if (own_hosts) {
        EXPECT_EQ(SumOf(self, comm, self.rank() + 1), 3);
      } else {
        EXPECT_NE(std::string(self.nccl().get_last_error(nullptr))
                      .find("Duplicate GPU detected : rank 1 and rank 0"),
                  std::string::npos);
      }
    });
  }
}

TEST(NcclInit, RefusesRanksOfDifferentVersions) {
  ExpectNcclRanks(2, [](NcclRank& self) {
    if (self.rank() == 1) SetFaults("ncclGetVersion:*:version=21805");
    int version = 0;
    EXPECT_EQ(self.nccl().get_version(&version), kNcclSuccess);
    EXPECT_EQ(version, self.rank() == 1 ? 21805 : 22809);
    NcclComm comm = nullptr;
    NcclConfig config;
    EXPECT_EQ(self.nccl().comm_init_rank_config(&comm, 2, self.ShareId(),
                                                self.rank(), &config),
              kNcclInvalidUsage);
    EXPECT_STREQ(self.nccl().get_last_error(nullptr),
                 "Mismatched NCCL version detected : rank 0 version 22809 "
                 "rank 1 version 21805");
  });
}

TEST(NcclInit, WithoutBlockingIsInProgressAtFirst) {
  ExpectNcclRanks(2, [](NcclRank& self) {
    const NcclApi& nccl = self.nccl();
    NcclComm comm = nullptr;
    NcclConfig config = NonBlocking();
    const NcclUniqueId id = self.ShareId();
    ASSERT_EQ(nccl.comm_init_rank_config(&comm, 2, id, self.rank(), &config),
              kNcclInProgress);
    ASSERT_NE(comm, nullptr);
    NcclResult state = kNcclSuccess;
    EXPECT_EQ(nccl.comm_get_async_error(comm, &state), kNcclSuccess);
    EXPECT_EQ(state, kNcclInProgress);
    ASSERT_EQ(self.WaitReady(comm), kNcclSuccess);

    // A posted call waits for the poll, and allows no second call before it.
    void* const stream = self.NewStream();
    int32_t* const data = self.Upload(std::vector<int32_t>{self.rank() + 1});
    const auto post = [&] {
      return nccl.all_reduce(data, data, 1, kInt32, kSum, comm, stream);
    };
    EXPECT_EQ(post(), kNcclInProgress);
    EXPECT_EQ(post(), kNcclInvalidArgument);
    EXPECT_NE(std::string(nccl.get_last_error(nullptr))
                  .find("before the previous operation returned ncclSuccess"),
              std::string::npos);
    ASSERT_EQ(self.WaitReady(comm), kNcclSuccess);
    EXPECT_EQ(self.Synchronize(stream), 0);
    EXPECT_EQ(self.Download(data, 1)[0], 3);
    EXPECT_EQ(nccl.comm_finalize(comm), kNcclInProgress);
    EXPECT_EQ(self.WaitReady(comm), kNcclSuccess);
    EXPECT_EQ(nccl.comm_destroy(comm), kNcclSuccess);
  });
}

TEST(NcclInit, WithoutPeersEndsByAbort) {
  ExpectNcclRanks(1, [](NcclRank& self) {
    NcclComm comm = nullptr;
    NcclConfig config = NonBlocking();
    ASSERT_EQ(
        self.nccl().comm_init_rank_config(&comm, 2, self.ShareId(), 0, &config),
        kNcclInProgress);
    NcclResult state = kNcclSuccess;
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(self.nccl().comm_get_async_error(comm, &state), kNcclSuccess);
      EXPECT_EQ(state, kNcclInProgress);
    }
    EXPECT_EQ(self.nccl().comm_abort(comm), kNcclInProgress);
  });
}

TEST(NcclSplit, MakesBlockingChildrenOfANonblockingParent) {
  ExpectNcclRanks(4, [](NcclRank& self) {
    const NcclApi& nccl = self.nccl();
    const NcclComm base = self.Connect(NonBlocking());
    NcclConfig config = Blocking();
    // Odd and even ranks, in reverse order.
    NcclComm half = nullptr;
    ASSERT_EQ(
        nccl.comm_split(base, self.rank() % 2, -self.rank(), &half, &config),
        kNcclInProgress);
    ASSERT_EQ(self.WaitReady(base), kNcclSuccess);
    ASSERT_NE(half, nullptr);
    int rank = -1;
    EXPECT_EQ(ncclCommUserRank(half, &rank), kNcclSuccess);
    EXPECT_EQ(rank, self.rank() < 2 ? 1 : 0);
    EXPECT_EQ(SumOf(self, half, 10 + self.rank()),
              self.rank() % 2 == 0 ? 22 : 24);
    // Rank 0 stays out.
    NcclComm rest = nullptr;
    ASSERT_EQ(nccl.comm_split(base, self.rank() == 0 ? -1 : 5, self.rank(),
                              &rest, &config),
              kNcclInProgress);
    ASSERT_EQ(self.WaitReady(base), kNcclSuccess);
    EXPECT_EQ(rest == nullptr, self.rank() == 0);
    if (rest != nullptr) {
      EXPECT_EQ(SumOf(self, rest, self.rank()), 6);
    }
    EXPECT_EQ(nccl.comm_split(base, -2, 0, &rest, &config),
              kNcclInvalidArgument);
    // The parent may go first.
    EXPECT_EQ(nccl.comm_finalize(base), kNcclInProgress);
    ASSERT_EQ(self.WaitReady(base), kNcclSuccess);
    EXPECT_EQ(nccl.comm_destroy(base), kNcclSuccess);
    EXPECT_EQ(SumOf(self, half, 1), 2);
    EXPECT_EQ(nccl.comm_finalize(half), kNcclSuccess);
    EXPECT_EQ(nccl.comm_finalize(half), kNcclInvalidArgument);
    EXPECT_EQ(nccl.comm_destroy(half), kNcclSuccess);
  });
}

TEST(NcclSplit, HandsAChildOverWhenTheParentIsNoLongerInProgress) {
  for (const bool aborts : {false, true}) {
    ExpectNcclRanks(1, [aborts](NcclRank& self) {
      const NcclApi& nccl = self.nccl();
      const NcclComm parent = self.Connect(NonBlocking());
      SetFaults("ncclCommGetAsyncError:*:state=7");
      NcclConfig config = NonBlocking();
      NcclComm child = nullptr;
      EXPECT_EQ(nccl.comm_split(parent, 0, 0, &child, &config),
                kNcclInProgress);
      // Long enough for the child to become whole.
      for (int poll = 0; poll < 100; ++poll) {
        NcclResult state = kNcclSuccess;
        EXPECT_EQ(nccl.comm_get_async_error(parent, &state), kNcclSuccess);
        EXPECT_EQ(state, kNcclInProgress);
        EXPECT_EQ(child, nullptr);
        usleep(100);
      }
      SetFaults("");
      if (!aborts) {
        EXPECT_EQ(self.WaitReady(parent), kNcclSuccess);
        ASSERT_NE(child, nullptr);
        EXPECT_EQ(self.WaitReady(child), kNcclSuccess);
      }
      nccl.comm_abort(parent);
      ASSERT_NE(child, nullptr);
      nccl.comm_abort(child);
    });
  }
}

TEST(NcclSplit, SharesTheFateOfTheParentWhereAsked) {
  ExpectNcclRanks(2, [](NcclRank& self) {
    const NcclApi& nccl = self.nccl();
    const NcclComm parent = self.Connect();
    NcclConfig config;
    config.split_share = 1;
    NcclComm child = nullptr;
    ASSERT_EQ(nccl.comm_split(parent, 0, self.rank(), &child, &config),
              kNcclSuccess);
    EXPECT_EQ(SumOf(self, child, 1), 2);
    if (self.rank() == 1) return;
    void* const stream = StartSum(self, child);
    EXPECT_EQ(nccl.comm_abort(parent), kNcclSuccess);
    EXPECT_EQ(self.Synchronize(stream), 0);
  });
}

// Kills the last rank once the others have seen a sum with it.
std::vector<int> Survive(int size,
                         const std::function<void(NcclRank&, NcclComm)>& body,
                         const char* faults = "") {
  return RunNcclRanks(size, [&](NcclRank& self) {
    SetFaults(faults);
    const NcclComm comm = self.Connect();
    EXPECT_EQ(SumOf(self, comm, 1), self.size());
    if (self.rank() == self.size() - 1) raise(SIGKILL);
    body(self, comm);
  });
}

TEST(NcclFailures, LeaveTheOthersWaitingUntilTheyAbort) {
  const std::vector<int> statuses = Survive(2, [](NcclRank& self,
                                                  NcclComm comm) {
    void* const stream = StartSum(self, comm);
    void* const event = self.NewEvent();
    self.Record(event, stream);
    for (int i = 0; i < 20; ++i) {
      NcclResult state = kNcclRemoteError;
      EXPECT_EQ(self.nccl().comm_get_async_error(comm, &state), kNcclSuccess);
      EXPECT_EQ(state, kNcclSuccess);
      EXPECT_FALSE(self.HasHappened(event));
    }
    std::thread aborts(
        [&] { EXPECT_EQ(self.nccl().comm_abort(comm), kNcclSuccess); });
    EXPECT_EQ(self.Synchronize(stream), 0);
    aborts.join();
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, SIGKILL}));
}

TEST(NcclFailures, AreRemoteErrorsWhereAFaultAsksForThem) {
  const std::vector<int> statuses = Survive(
      2,
      [](NcclRank& self, NcclComm comm) {
        void* const stream = StartSum(self, comm);
        NcclResult state = kNcclSuccess;
        while (state == kNcclSuccess) {
          ASSERT_EQ(self.nccl().comm_get_async_error(comm, &state),
                    kNcclSuccess);
        }
        EXPECT_EQ(state, kNcclRemoteError);
        EXPECT_EQ(self.nccl().comm_abort(comm), kNcclSuccess);
        EXPECT_EQ(self.Synchronize(stream), 0);
      },
      "ncclCommInitRankConfig:*:remote");
  EXPECT_EQ(statuses, (std::vector<int>{0, SIGKILL}));
}

TEST(NcclShrink, ContinuesWithoutTheFailedRank) {
  for (const bool revoke : {true, false}) {
    const std::vector<int> statuses =
        Survive(4, [&](NcclRank& self, NcclComm comm) {
          const NcclApi& nccl = self.nccl();
          void* const stream = StartSum(self, comm);
          int lost[] = {3};
          NcclComm rest = nullptr;
          if (revoke) {
            EXPECT_EQ(nccl.comm_revoke(comm, 1), kNcclInvalidArgument);
            EXPECT_EQ(nccl.comm_revoke(comm, 0), kNcclSuccess);
            EXPECT_EQ(nccl.comm_revoke(comm, 0), kNcclInvalidArgument);
            EXPECT_EQ(self.Synchronize(stream), 0);
            EXPECT_EQ(nccl.comm_finalize(comm), kNcclInvalidArgument);
            EXPECT_EQ(nccl.all_reduce(nullptr, nullptr, 1, kInt32, kSum, comm,
                                      stream),
                      kNcclInvalidUsage);
          }
          ASSERT_EQ(nccl.comm_shrink(comm, lost, 1, &rest, nullptr,
                                     revoke ? internal::kNcclShrinkDefault
                                            : internal::kNcclShrinkAbort),
                    kNcclSuccess);
          EXPECT_EQ(self.Synchronize(stream), 0);
          EXPECT_EQ(SumOf(self, rest, self.rank()), 3);
          // And once more, twice over.
          int first[] = {0};
          for (int i = 0; i < 2 && self.rank() != 0; ++i) {
            NcclComm two = nullptr;
            ASSERT_EQ(nccl.comm_shrink(rest, first, 1, &two, nullptr, 0),
                      kNcclSuccess);
            EXPECT_EQ(SumOf(self, two, self.rank()), 3);
          }
          EXPECT_EQ(nccl.comm_abort(comm), kNcclSuccess);
        });
    EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0, SIGKILL}));
  }
}

TEST(NcclShrink, RefusesToExcludeNoRank) {
  ExpectNcclRanks(1, [](NcclRank& self) {
    const NcclComm comm = self.Connect();
    // Plans look at what the call excludes.
    SetFaults("ncclCommShrink(base 7:*:3");
    NcclConfig config = Blocking();
    NcclComm child = nullptr;
    EXPECT_EQ(self.nccl().comm_shrink(comm, nullptr, 1, &child, &config, 0),
              kNcclInvalidArgument);
  });
}

TEST(NcclFirstCollective, WaitsOnTheHostForItsPeersOrAnAbort) {
  ExpectNcclRanks(2, [](NcclRank& self) {
    const NcclComm comm = self.Connect();
    if (self.rank() == 1) {
      self.Barrier();
      return;
    }
    std::thread revokes(
        [&] { EXPECT_EQ(self.nccl().comm_revoke(comm, 0), kNcclSuccess); });
    int32_t* const data = self.Upload(std::vector<int32_t>{1});
    const NcclResult result =
        self.nccl().all_reduce(data, data, 1, kInt32, kSum, comm, nullptr);
    EXPECT_TRUE(result == internal::kNcclInternalError ||
                result == kNcclInvalidUsage)
        << result;
    revokes.join();
    self.Barrier();
  });
}

TEST(NcclFaults, HappenInTheCallsThatTheyName) {
  ExpectNcclRanks(1, [](NcclRank& self) {
    const NcclApi& nccl = self.nccl();
    SetFaults(
        "ncclGetUniqueId:1:2,ncclAllReduce:2:1,ncclAllReduce:3:break=719,"
        "ncclCommGetAsyncError:2:async=3,ncclMemAlloc:1:1");
    NcclUniqueId id;
    EXPECT_EQ(nccl.get_unique_id(&id), internal::kNcclSystemError);
    void* memory = nullptr;
    EXPECT_EQ(nccl.mem_alloc(&memory, 8), internal::kNcclUnhandledCudaError);
    const NcclComm comm = self.Connect();
    EXPECT_EQ(SumOf(self, comm, 5), 5);
    int32_t* const data = self.Upload(std::vector<int32_t>{1});
    void* const stream = self.NewStream();
    const auto post = [&] {
      return nccl.all_reduce(data, data, 1, kInt32, kSum, comm, stream);
    };
    EXPECT_EQ(post(), internal::kNcclUnhandledCudaError);
    EXPECT_EQ(post(), kNcclSuccess);
    EXPECT_EQ(self.Synchronize(stream), 719);
    NcclResult state = kNcclSuccess;
    EXPECT_EQ(nccl.comm_get_async_error(comm, &state), kNcclSuccess);
    EXPECT_EQ(state, kNcclSuccess);
    EXPECT_EQ(nccl.comm_get_async_error(comm, &state), kNcclSuccess);
    EXPECT_EQ(state, internal::kNcclInternalError);
  });
}

TEST(NcclFaults, HangUntilAnAbortAndKillInTheMiddle) {
  const std::vector<int> statuses = RunNcclRanks(2, [](NcclRank& self) {
    SetFaults(self.rank() == 0 ? "ncclAllReduce:2:hang,"
                                 "ncclCommInitRankConfig:*:remote"
                               : "ncclAllGather:1:die_running");
    const NcclComm comm = self.Connect();
    EXPECT_EQ(SumOf(self, comm, 1), 2);
    constexpr size_t kCount = 1 << 20;
    void* const stream = self.NewStream();
    char* const data = self.Upload(std::vector<char>(2 * kCount));
    EXPECT_EQ(self.nccl().all_gather(data + self.rank() * kCount, data, kCount,
                                     internal::kNcclInt8, comm, stream),
              kNcclSuccess);
    if (self.rank() == 1) {
      self.Synchronize(stream);
      return;
    }
    void* const hanging = StartSum(self, comm);
    NcclResult state = kNcclSuccess;
    while (state == kNcclSuccess) {
      ASSERT_EQ(self.nccl().comm_get_async_error(comm, &state), kNcclSuccess);
    }
    EXPECT_EQ(self.nccl().comm_abort(comm), kNcclSuccess);
    EXPECT_EQ(self.Synchronize(hanging), 0);
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, SIGKILL}));
}

// The output of `body` to stderr, in as many processes.
std::string Printed(int size, std::vector<int>* statuses,
                    const std::function<void(NcclRank&)>& body) {
  ::testing::internal::CaptureStderr();
  *statuses = RunNcclRanks(size, body);
  return ::testing::internal::GetCapturedStderr();
}

TEST(NcclMismatches, EndTheProcessesThatFindThem) {
  struct Case {
    const char* text;
    std::function<NcclResult(const NcclApi&, int, void*, NcclComm, void*)> post;
  };
  const Case cases[] = {
      {"ncclBroadcast of 1 int32, root 1 on rank 1",
       [](const NcclApi& nccl, int rank, void* data, NcclComm comm, void* s) {
         return nccl.broadcast(data, data, 1, kInt32, rank, comm, s);
       }},
      {"ncclAllReduce of 2 int32, sum",
       [](const NcclApi& nccl, int rank, void* data, NcclComm comm, void* s) {
         return nccl.all_reduce(data, data, 1 + rank, kInt32, kSum, comm, s);
       }},
      {"rank 0 sent ncclSend of 1 int32, but rank 1 expected ncclSend of 2 "
       "int32",
       [](const NcclApi& nccl, int rank, void* data, NcclComm comm, void* s) {
         return rank == 0 ? nccl.send(data, 1, kInt32, 1, comm, s)
                          : nccl.recv(data, 2, kInt32, 0, comm, s);
       }},
  };
  for (const Case& c : cases) {
    std::vector<int> statuses;
    const std::string printed = Printed(2, &statuses, [&](NcclRank& self) {
      const NcclComm comm = self.Connect();
      EXPECT_EQ(SumOf(self, comm, 1), 2);
      void* const stream = self.NewStream();
      int32_t* const data = self.Upload(std::vector<int32_t>(8));
      EXPECT_EQ(c.post(self.nccl(), self.rank(), data, comm, stream),
                kNcclSuccess);
      // A second call, for those whose first one needs no peer.
      EXPECT_EQ(c.post(self.nccl(), self.rank(), data, comm, stream),
                kNcclSuccess);
      self.Synchronize(stream);
    });
    EXPECT_NE(printed.find(c.text), std::string::npos) << printed;
    // A rank that only sends may be through before.
    int aborted = 0;
    for (const int status : statuses) {
      const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      EXPECT_TRUE(status == 0 || signal == SIGABRT) << c.text << status;
      if (signal == SIGABRT) ++aborted;
    }
    EXPECT_GE(aborted, 1) << c.text;
  }
}

TEST(NcclMismatches, HangWhereAFaultAsksForIt) {
  ExpectNcclRanks(2, [](NcclRank& self) {
    SetFaults("ncclCommInitRankConfig:*:mismatch");
    const NcclComm comm = self.Connect();
    EXPECT_EQ(SumOf(self, comm, 1), 2);
    void* const stream = self.NewStream();
    int32_t* const data = self.Upload(std::vector<int32_t>(8));
    EXPECT_EQ(self.nccl().all_reduce(data, data, 1 + self.rank(), kInt32, kSum,
                                     comm, stream),
              kNcclSuccess);
    void* const event = self.NewEvent();
    self.Record(event, stream);
    self.Barrier();
    EXPECT_FALSE(self.HasHappened(event));
    EXPECT_EQ(self.nccl().comm_abort(comm), kNcclSuccess);
    EXPECT_EQ(self.Synchronize(stream), 0);
  });
}

TEST(NcclFindings, AreUseAfterTheEndAndOverlapsAndLostRegistrations) {
  ExpectNcclRanks(1, [](NcclRank& self) {
    const NcclApi& nccl = self.nccl();
    sherd_emulated_gpu_set_abort_on_finding(0);
    const auto expect = [](const std::string& text) {
      char last[512] = {};
      sherd_emulated_gpu_last_finding(last, sizeof(last));
      EXPECT_NE(std::string(last).find(text), std::string::npos) << last;
      EXPECT_EQ(sherd_emulated_gpu_findings(1), 1u);
    };
    const NcclComm comm = self.Connect();
    int32_t* const data = self.Upload(std::vector<int32_t>(8));
    EXPECT_EQ(nccl.all_reduce(data, data + 1, 4, kInt32, kSum, comm, nullptr),
              kNcclSuccess);
    expect("overlap");
    EXPECT_EQ(self.Synchronize(nullptr), 0);

    void* handle = nullptr;
    void* memory = nullptr;
    EXPECT_EQ(nccl.comm_register(comm, &memory, 8, &handle),
              kNcclInvalidArgument);
    ASSERT_EQ(nccl.mem_alloc(&memory, 100), kNcclSuccess);
    ASSERT_EQ(nccl.comm_register(comm, memory, 100, &handle), kNcclSuccess);
    EXPECT_EQ(nccl.comm_deregister(comm, handle), kNcclSuccess);
    EXPECT_EQ(nccl.comm_deregister(comm, handle), kNcclInvalidUsage);
    ASSERT_EQ(nccl.comm_register(comm, memory, 100, &handle), kNcclSuccess);
    EXPECT_EQ(nccl.mem_free(memory), kNcclSuccess);
    EXPECT_EQ(nccl.comm_deregister(comm, handle), kNcclSuccess);
    expect("freed while they were registered");

    EXPECT_EQ(nccl.comm_destroy(comm), kNcclSuccess);
    EXPECT_EQ(nccl.comm_abort(comm), kNcclInvalidArgument);
    expect("destroyed, or never was");
  });
}

TEST(NcclFindings, AreUseAfterTheEndWhateverAFaultReturns) {
  ExpectNcclRanks(1, [](NcclRank& self) {
    const NcclApi& nccl = self.nccl();
    sherd_emulated_gpu_set_abort_on_finding(0);
    const NcclComm aborted = self.Connect();
    const NcclComm destroyed = self.Connect();
    SetFaults(
        "ncclCommAbort:1:3,ncclCommDestroy:1:3,ncclAllReduce:*:0,"
        "ncclCommGetAsyncError:*:0,ncclCommRevoke:*:0,ncclCommFinalize:*:0");
    EXPECT_EQ(nccl.comm_abort(aborted), internal::kNcclInternalError);
    EXPECT_EQ(nccl.comm_destroy(destroyed), internal::kNcclInternalError);
    EXPECT_EQ(sherd_emulated_gpu_findings(1), 0u);
    const NcclComm next = self.Connect();
    for (const NcclComm comm : {aborted, destroyed}) {
      // Not even by chance.
      EXPECT_NE(next, comm);
      NcclResult state = kNcclSuccess;
      for (const NcclResult result :
           {nccl.all_reduce(nullptr, nullptr, 1, kInt32, kSum, comm, nullptr),
            nccl.comm_get_async_error(comm, &state), nccl.comm_revoke(comm, 0),
            nccl.comm_finalize(comm), nccl.comm_destroy(comm),
            nccl.comm_abort(comm)}) {
        EXPECT_EQ(result, kNcclInvalidArgument);
      }
      EXPECT_EQ(sherd_emulated_gpu_findings(1), 6u);
    }
    EXPECT_EQ(nccl.comm_abort(next), kNcclSuccess);
  });
}

TEST(NcclFindings, AreBuffersThatAnotherStreamHasNotFinished) {
  for (const bool waits : {false, true}) {
    ExpectNcclRanks(1, [&](NcclRank& self) {
      sherd_emulated_gpu_set_abort_on_finding(0);
      const NcclComm comm = self.Connect();
      void* const before = self.NewStream();
      void* const stream = self.NewStream();
      int32_t* const data = self.Upload(std::vector<int32_t>(8));
      const auto sum = [&](void* on) {
        EXPECT_EQ(self.nccl().all_reduce(data, data, 8, kInt32, kSum, comm, on),
                  kNcclSuccess);
      };
      sum(before);
      if (waits) {
        void* const event = self.NewEvent();
        self.Record(event, before);
        self.WaitEvent(stream, event);
      }
      sum(stream);
      EXPECT_EQ(sherd_emulated_gpu_findings(1) > 0, !waits);
    });
  }
}

}  // namespace
}  // namespace sherd::testing
