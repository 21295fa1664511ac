// A program for tests of sherd run: ranks that sum, of which one fails as its
// arguments specify.
//
//   failing_rank RANK kill|stop|call|exit|spin [TIMEOUT]

#include <signal.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"

namespace {

absl::Status Sum(sherd::ProcessGroup& group) {
  std::vector<int32_t> values(100, 1);
  return group.AllReduce<int32_t>(absl::MakeSpan(values),
                                  sherd::ReduceOp::kSum);
}

absl::Status Run(int failing, const std::string& how, absl::Duration timeout) {
  SHERD_ASSIGN_OR_RETURN(const auto group, sherd::Init({.timeout = timeout}));
  SHERD_RETURN_IF_ERROR(Sum(*group));
  if (group->rank() == failing) {
    if (how == "kill") raise(SIGKILL);
    if (how == "stop") raise(SIGSTOP);
    if (how == "exit") return absl::ResourceExhaustedError("the disk is full");
    if (how == "call") return group->Barrier();
    while (how == "spin") absl::SleepFor(absl::Seconds(1));
  }
  SHERD_RETURN_IF_ERROR(Sum(*group));
  return group->Destroy();
}

}  // namespace

int main(int argc, char** argv) {
  absl::Duration timeout = absl::Seconds(20);
  if (argc < 3 || (argc > 3 && !absl::ParseDuration(argv[3], &timeout))) {
    return 2;
  }
  const absl::Status status = Run(std::atoi(argv[1]), argv[2], timeout);
  if (!status.ok()) std::cerr << status << "\n";
  // Not that of the one that fails on purpose: who is first, is chance.
  return status.ok() ? 0 : absl::IsResourceExhausted(status) ? 7 : 1;
}
