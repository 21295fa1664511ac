#ifndef SHERD_CORE_COMM_COLLECTIVE_OPTIONS_H_
#define SHERD_CORE_COMM_COLLECTIVE_OPTIONS_H_

#include <optional>

#include "absl/time/time.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd {

struct CollectiveOptions {
  // How long this call may take. Unset: the group's timeout.
  std::optional<absl::Duration> timeout;
  // The memory of the buffers: the host's, or that of the group's device(),
  // with or without its index. The same kind on all ranks.
  Device device = {};
  // The type of the elements that a call only moves; compared with the other
  // ranks' type. Unset: bytes, which fit any type. Reductions take the type as
  // an argument.
  std::optional<DType> dtype;
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_COLLECTIVE_OPTIONS_H_
