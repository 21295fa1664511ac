#ifndef SHERD_RPC_CALL_PAYLOAD_H_
#define SHERD_RPC_CALL_PAYLOAD_H_

#include <memory>
#include <string>
#include <vector>

#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/ownership/reference_id.h"

namespace sherd::internal {

// The arguments of a call, or its result, between the typed functions and the
// engine that sends them. Copies share tensors and references.
struct Payload {
  // All but tensors and references, as ARGUMENTS.md describes.
  std::string values;
  // In order of appearance. Strides, devices and undefined tensors are those of
  // the caller; the engine converts them for the transfer. `values` has their
  // number, but does not describe them.
  std::vector<Tensor> tensors;
  // Their devices at the receiver, an entry each, or none: host memory. Used by
  // the engine, during the transfer.
  std::vector<Device> devices;
  // In order of appearance. `references_keep` holds the handles of a sender, so
  // that its references exist until the reply.
  std::vector<ReferenceId> references;
  std::vector<std::shared_ptr<void>> references_keep;
};

}  // namespace sherd::internal

#endif  // SHERD_RPC_CALL_PAYLOAD_H_
