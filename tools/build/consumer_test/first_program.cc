// The program of the README, in a repository that depends on Sherd.

#include <iostream>
#include <string>

#include "sherd/serialization/checkpoint.h"
#include "sherd/sherd.h"

absl::Status Run(const std::string& checkpoint) {
  SHERD_ASSIGN_OR_RETURN(auto group, sherd::Init({}));
  SHERD_ASSIGN_OR_RETURN(
      auto rows, sherd::ChunkShardingSpec::Create(0, {"rank:0", "rank:1"}));
  SHERD_ASSIGN_OR_RETURN(
      auto columns, sherd::ChunkShardingSpec::Create(1, {"rank:1", "rank:0"}));
  sherd::Tensor full;  // other ranks need not have it
  if (group->rank() == 0) {
    SHERD_ASSIGN_OR_RETURN(full, sherd::Rand({1000, 777}));
  }
  SHERD_ASSIGN_OR_RETURN(auto weight, sherd::ShardTensor(full, rows));
  SHERD_RETURN_IF_ERROR(weight.Reshard(columns));
  SHERD_RETURN_IF_ERROR(
      sherd::SaveCheckpoint(checkpoint, {{"weight", weight}}, group));
  return group->Destroy();
}

int main(int argc, char** argv) {
  const absl::Status status = Run(argc > 1 ? argv[1] : "ckpt");
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
