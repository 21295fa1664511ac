#ifndef SHERD_SERIALIZATION_CHECKPOINT_BACKGROUND_GROUP_H_
#define SHERD_SERIALIZATION_CHECKPOINT_BACKGROUND_GROUP_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/core/comm/process_group.h"

namespace sherd {

// A group of the ranks of a program's group, for what runs beside the program:
// its collectives and failures do not disturb those of the program.
class BackgroundGroup {
 public:
  // Collective: a NewGroup of `group`, with its errors. Without `timeout` that
  // of `group`.
  static absl::StatusOr<BackgroundGroup> Create(
      ProcessGroup& group, std::optional<absl::Duration> timeout = {});

  ProcessGroup& operator*() const { return *own_; }
  ProcessGroup* operator->() const { return own_.get(); }
  const std::shared_ptr<ProcessGroup>& handle() const { return own_; }

  // An error of this group for the program, which does not know it: the error
  // names the program's group instead.
  absl::Status ForProgram(const absl::Status& status) const;

 private:
  BackgroundGroup(std::shared_ptr<ProcessGroup> own, std::string of)
      : own_(std::move(own)), of_(std::move(of)) {}

  std::shared_ptr<ProcessGroup> own_;
  // The name of the program's group.
  std::string of_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_BACKGROUND_GROUP_H_
