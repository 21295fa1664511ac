#ifndef SHERD_BACKENDS_NCCL_NCCL_COMMUNICATOR_H_
#define SHERD_BACKENDS_NCCL_NCCL_COMMUNICATOR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/nccl/nccl_api.h"
#include "sherd/backends/nccl/nccl_library.h"
#include "sherd/backends/nccl/nccl_meeting.h"

namespace sherd::internal {

// One rank of a group, on NCCL. Functions and codes are those of
// sherd_plugin_v0 and sherd_on_device_v0.
//
// It consists of two communicators of NCCL:
//   base  non-blocking: made, split and shrunk by polling, so that a peer that
//         does not arrive costs no more than the deadline. No operation runs on
//         it, so that it can be split at any time, and stays intact when
//         operations fail.
//   work  blocking, split from base: operations run on it. A non-blocking one
//         would start a thread for each of them.
//
// Abort stops the operations on `work` from a thread of its own: by
// ncclCommRevoke where NCCL has it, otherwise by ncclCommAbort. It waits
// briefly for a thread that is inside NCCL to leave; a thread that does not
// leave is waiting for a peer there, and the call releases it.
//
// No destructor calls NCCL: communicators that were not destroyed are leaked.
//
// Threads. As for the plugin ABI.
class NcclCommunicator : public std::enable_shared_from_this<NcclCommunicator> {
 public:
  // `library` and `host` live forever.
  static sherd_code Create(const NcclLibrary& library,
                           const sherd_host_v0& host,
                           const sherd_comm_config_v0& config,
                           std::shared_ptr<NcclCommunicator>* made,
                           sherd_error_v0* error);
  sherd_code Split(const sherd_comm_config_v0& config, int32_t color,
                   int32_t key, std::shared_ptr<NcclCommunicator>* made,
                   sherd_error_v0* error);
  sherd_code Shrink(const sherd_comm_config_v0& config, const int32_t* excluded,
                    int32_t num_excluded,
                    std::shared_ptr<NcclCommunicator>* made,
                    sherd_error_v0* error);
  // Only the destructor may follow.
  void Destroy();

  sherd_code Post(const sherd_op_v0& op, sherd_error_v0* error);
  sherd_code BeginBatch(sherd_error_v0* error);
  sherd_code EndBatch(sherd_error_v0* error);
  sherd_code Poll(sherd_error_v0* error);
  sherd_code Finalize(int64_t deadline, sherd_error_v0* error);
  void Abort();

  sherd_code Register(void* data, uint64_t bytes, void** registration,
                      sherd_error_v0* error);
  void Deregister(void* registration);

 private:
  NcclCommunicator(const NcclLibrary& library, const sherd_host_v0& host,
                   const sherd_comm_config_v0& config);

  NcclConfig ConfigOf(bool blocking) const;
  // Makes base_ with the ids of the meeting.
  sherd_code Init(NcclMeeting& meeting, sherd_error_v0* error);
  // Makes work_ from base_.
  sherd_code MakeWork(NcclMeeting& meeting, int64_t deadline,
                      sherd_error_v0* error);
  // Makes base_ by make(base_ of parent, base_, config), and work_ from it.
  template <typename Make>
  sherd_code MakeFrom(NcclCommunicator& parent, const char* what,
                      const sherd_comm_config_v0& config, Make make,
                      sherd_error_v0* error);
  // Polls base_ until NCCL has completed its creation: gives up at the
  // deadline, after an abort, and once another rank has failed.
  sherd_code AwaitBase(NcclMeeting& meeting, int64_t deadline, const char* what,
                       NcclResult begun, sherd_error_v0* error);

  // Completes a call on work_ that returned `result`.
  sherd_code Settle(NcclResult result, const char* what,
                    std::unique_lock<std::mutex>& lock, sherd_error_v0* error);
  sherd_code PollBeside(sherd_error_v0* error);
  sherd_code CheckUsable(sherd_error_v0* error);
  sherd_code Note(sherd_code code, const sherd_error_v0& error);
  NcclResult StateOf(NcclComm comm);
  NcclResult AwaitState(NcclComm comm, std::unique_lock<std::mutex>& lock);
  NcclResult FinalizeBoth(const char** what);

  // Runs on a thread of its own.
  void StopWork();
  void EndBoth();

  const NcclLibrary& library_;
  const NcclApi& api_;
  const sherd_host_v0& host_;
  const int rank_;
  const int size_;
  const std::string name_;
  // The device's context, in which the communicator was made.
  void* const context_;

  // Held while NCCL is called, except by the call of StopWork that releases its
  // holder, and by polls, which hold stop_ instead. Acquired before stop_.
  std::mutex calls_;
  // Held by StopWork, and while the communicators are ended.
  std::mutex stop_;
  NcclComm base_ = nullptr;
  NcclComm work_ = nullptr;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> work_is_gone_{false};
  bool ended_ = false;              // guarded by stop_
  bool in_batch_ = false;           // guarded by calls_
  bool finalized_ = false;          // guarded by calls_
  sherd_code failure_ = SHERD_OK;   // guarded by calls_
  sherd_error_v0 failure_details_;  // guarded by calls_
  // Children that NCCL may still be making. Guarded by calls_.
  std::vector<std::shared_ptr<NcclCommunicator>> unfinished_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_NCCL_NCCL_COMMUNICATOR_H_
