#include "sherd/testing/emulated_gpu/nccl/nccl_group.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>
#include <vector>

namespace sherd::testing {

using internal::kNcclInProgress;
using internal::kNcclInvalidArgument;
using internal::kNcclInvalidUsage;
using internal::kNcclSuccess;

namespace {

struct Job {
  NcclCommunicatorPtr communicator;
  std::function<NcclResult()> run;
};

struct Batch {
  NcclCommunicatorPtr communicator;
  std::vector<NcclTask> tasks;
};

struct State {
  int depth = 0;
  NcclResult error = kNcclSuccess;
  std::vector<Job> jobs;
  std::vector<Batch> batches;
};

State& Own() {
  thread_local State state;
  return state;
}

bool IsBlocking(const State& state) {
  return state.jobs.empty() ? state.batches[0].communicator->settings().blocking
                            : state.jobs[0].communicator->settings().blocking;
}

// Checks that need the whole group.
NcclResult CheckBatch(const Batch& batch) {
  const int own = batch.communicator->rank();
  const auto count = [&](NcclFunction function) {
    return std::count_if(
        batch.tasks.begin(), batch.tasks.end(), [&](const NcclTask& task) {
          return task.function == function && task.signature.root == own;
        });
  };
  const auto sends = count(NcclFunction::kSend);
  const auto receives = count(NcclFunction::kRecv);
  if (sends == receives) return kNcclSuccess;
  return NcclFail(kNcclInvalidUsage,
                  sends > receives
                      ? "Trying to send to self without a matching recv"
                      : "Trying to recv to self without a matching send");
}

NcclResult CheckGroup(const State& state) {
  if (state.error != kNcclSuccess) return state.error;
  if (!state.jobs.empty() && !state.batches.empty()) {
    return NcclFail(kNcclInvalidUsage,
                    "one group holds communication and the creation or end of "
                    "communicators");
  }
  const bool blocking = IsBlocking(state);
  const auto differs = [&](const auto& entry) {
    return entry.communicator->settings().blocking != blocking;
  };
  if (std::any_of(state.jobs.begin(), state.jobs.end(), differs) ||
      std::any_of(state.batches.begin(), state.batches.end(), differs)) {
    return NcclFail(kNcclInvalidArgument,
                    "Blocking and nonblocking communicators are not allowed "
                    "in the same group.");
  }
  for (const Batch& batch : state.batches) {
    const NcclResult result = CheckBatch(batch);
    if (result != kNcclSuccess) return result;
  }
  return kNcclSuccess;
}

NcclResult RunJobs(std::vector<Job>& jobs, bool blocking) {
  if (!blocking) {
    for (Job& job : jobs) job.communicator->StartJob(std::move(job.run));
    return kNcclInProgress;
  }
  if (jobs.size() == 1) return jobs[0].run();
  std::vector<NcclResult> results(jobs.size(), kNcclSuccess);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < jobs.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = jobs[i].run(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const NcclResult result : results) {
    if (result != kNcclSuccess) return result;
  }
  return kNcclSuccess;
}

NcclResult RunBatches(const std::vector<Batch>& batches, bool blocking) {
  for (const Batch& batch : batches) {
    if (!blocking) {
      batch.communicator->LaunchLater(batch.tasks);
    } else if (std::any_of(batch.tasks.begin(), batch.tasks.end(),
                           [](const NcclTask& task) {
                             return task.function < NcclFunction::kSend;
                           })) {
      // First all of them: ranks of one thread wait for one another.
      batch.communicator->StartConnecting();
    }
  }
  if (!blocking) return kNcclInProgress;
  for (const Batch& batch : batches) {
    const NcclResult result = batch.communicator->Launch(batch.tasks);
    if (result != kNcclSuccess) return result;
  }
  return kNcclSuccess;
}

}  // namespace

void NcclGroup::Start() { ++Own().depth; }

NcclResult NcclGroup::End(bool from_user) {
  if (Own().depth == 0) {
    return NcclFail(kNcclInvalidUsage, "ncclGroupEnd: not in a group call.");
  }
  if (Own().depth > 1) {
    --Own().depth;
    return kNcclSuccess;
  }
  State state = std::exchange(Own(), State());
  if (state.error == kNcclSuccess && state.jobs.empty() &&
      state.batches.empty()) {
    return kNcclSuccess;
  }
  NcclResult result = CheckGroup(state);
  if (result == kNcclSuccess) {
    const bool blocking = IsBlocking(state);
    result = state.jobs.empty() ? RunBatches(state.batches, blocking)
                                : RunJobs(state.jobs, blocking);
    return result;
  }
  // A group that fails outside a call of its own concerns all that it names.
  for (const Batch& batch : state.batches) {
    if (from_user && !batch.communicator->settings().blocking) {
      batch.communicator->SetError(result);
    }
  }
  return result;
}

NcclResult NcclGroup::Check(NcclResult result) {
  State& own = Own();
  if (result != kNcclSuccess && result != kNcclInProgress &&
      own.error == kNcclSuccess && own.depth > 0) {
    own.error = result;
  }
  return result;
}

void NcclGroup::AddTask(const NcclCommunicatorPtr& communicator,
                        const NcclTask& task) {
  for (Batch& batch : Own().batches) {
    if (batch.communicator == communicator) {
      batch.tasks.push_back(task);
      return;
    }
  }
  Own().batches.push_back({communicator, {task}});
}

void NcclGroup::AddJob(const NcclCommunicatorPtr& communicator,
                       std::function<NcclResult()> job) {
  Own().jobs.push_back({communicator, std::move(job)});
}

}  // namespace sherd::testing
