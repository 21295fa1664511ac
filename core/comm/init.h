#ifndef SHERD_CORE_COMM_INIT_H_
#define SHERD_CORE_COMM_INIT_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/store.h"
#include "sherd/core/tensor/device.h"

namespace sherd {

struct InitOptions {
  // "gloo", "mpi", "shm", "local", any other name for which a plugin
  // libsherd_backend_NAME.so is found, or "auto": shared memory if all ranks
  // are on one host that allows it, otherwise gloo. Or one name per device:
  // "cpu:gloo,cuda:nccl"; then every part must be available, and a missing part
  // is an error that names it, even on a machine without such a device. "nccl"
  // is "cpu:auto,cuda:nccl". Empty: SHERD_BACKEND, otherwise "auto".
  std::string backend;
  // Unset: from init_method, otherwise from the launcher's variables, in the
  // order of launch_environment.h. If none of them is set, this process is a
  // world of one rank, and a warning is logged.
  std::optional<int> rank;
  std::optional<int> world_size;
  // Where ranks meet; each form may end with "?rank=R&world_size=N":
  //   file:///PATH      A file that does not exist before the run, in a
  //                     directory that all ranks share.
  //   tcp://HOST:PORT   Rank 0 runs on HOST and listens there. IPv6 addresses
  //                     are in brackets.
  //   env://            MASTER_ADDR and MASTER_PORT, or Slurm's values.
  // Empty: SHERD_INIT_METHOD, otherwise what the launcher provides (see
  // internal::Meet in rendezvous.h). A single rank needs nothing.
  std::string init_method;
  // Instead of init_method: a store that all ranks share.
  std::shared_ptr<Store> store;
  // For Init itself and for each collective. Unset: SHERD_TIMEOUT, otherwise
  // five minutes.
  std::optional<absl::Duration> timeout;
  std::string group_name = "default";
  // With a device part: this rank's device, of that type. Unset, or without an
  // index: the device with the number of this rank among those of its host,
  // modulo the number of devices that the process sees.
  std::optional<Device> device;
};

// Connects this rank to the others and makes the result the default group of
// this process — or of this thread, with the backend "local", whose ranks are
// threads. Init, Destroy, Init works on one file, address or store.
//
// Collective. Every rank calls it, with the same options but for the rank.
//
// Errors. Those that concern all ranks are the same on all; group, operation
// "init" and, where known, the failed rank are attached.
//   kInvalidArgument     An option or variable is malformed, missing (the
//                        message names how to set it) or contradicts another
//                        rank's; or the file is left over from another run.
//   kFailedPrecondition  There is a default group already: destroy it first. Or
//                        `device` was made from malformed text, or a backend
//                        does not work on the memory that it is named for.
//   kOutOfRange          The device does not exist.
//   kNotFound            "Backend NAME not supported!" and what was searched.
//   kUnavailable         Rank 0 cannot listen on its address: another program
//                        uses it, or it belongs to another host. Or a rank
//                        failed meanwhile, which the error names.
//   kDeadlineExceeded    Some ranks did not join; the message names them.
absl::StatusOr<std::shared_ptr<ProcessGroup>> Init(
    const InitOptions& options = {});

// The group that Init created, until it is destroyed.
//   kFailedPrecondition  "Default process group has not been initialized": call
//                        Init first.
absl::StatusOr<std::shared_ptr<ProcessGroup>> DefaultGroup();

}  // namespace sherd

#endif  // SHERD_CORE_COMM_INIT_H_
