// One rank: Init from the environment, an AllGather, Destroy, several times.
// Prints the backend and the gathered data, or the error, to standard output.

#include <cstddef>
#include <iostream>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"

namespace sherd {
namespace {

constexpr int kLives = 3;

absl::Status Live() {
  SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group, Init({}));
  const int mine = 100 + group->rank();
  std::vector<int> all(group->size());
  SHERD_RETURN_IF_ERROR(group->AllGather(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&mine),
                          sizeof(mine)),
      absl::MakeSpan(reinterpret_cast<std::byte*>(all.data()),
                     all.size() * sizeof(int))));
  std::cout << group->backend().name << " gathered " << absl::StrJoin(all, " ")
            << std::endl;
  return group->Destroy();
}

absl::Status RunRank() {
  for (int life = 0; life < kLives; ++life) SHERD_RETURN_IF_ERROR(Live());
  std::cout << "lived " << kLives << " times" << std::endl;
  return absl::OkStatus();
}

}  // namespace
}  // namespace sherd

int main() {
  const absl::Status status = sherd::RunRank();
  if (!status.ok()) std::cout << status << std::endl;
  return status.ok() ? 0 : 1;
}
