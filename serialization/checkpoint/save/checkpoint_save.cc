#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/save/saver.h"

namespace sherd {

absl::Status SaveCheckpoint(const std::string& path,
                            const std::map<std::string, ShardedTensor>& tensors,
                            std::shared_ptr<ProcessGroup> group,
                            const SaveOptions& options) {
  if (group == nullptr) {
    SHERD_ASSIGN_OR_RETURN(group, DefaultGroup());
  }
  return RunSave(SaveJobOf(path, tensors, std::move(group), options));
}

}  // namespace sherd
