#ifndef SHERD_BACKENDS_NCCL_NCCL_MEETING_H_
#define SHERD_BACKENDS_NCCL_NCCL_MEETING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/nccl/nccl_api.h"
#include "sherd/backends/nccl/nccl_library.h"

namespace sherd::internal {

// The exchange between ranks before NCCL is called, since a rank that is
// missing or different makes NCCL hang on the others.
//
// Every rank publishes its library, its device and whether it can continue.
// Rank 0 reads the records and publishes the outcome: to continue, with the ids
// by which NCCL's ranks find each other, or one error for all.
class NcclMeeting {
 public:
  // `config` outlives it.
  NcclMeeting(const NcclLibrary& library, const sherd_comm_config_v0& config)
      : library_(library), config_(config) {}

  // Returns once all ranks have called it. All ranks return the same error:
  //   SHERD_UNSUPPORTED       A rank has no NCCL or too old a one.
  //   SHERD_INVALID_ARGUMENT  Ranks have different NCCLs.
  //   SHERD_TIMEOUT           A rank did not come.
  sherd_code Hold(sherd_error_v0* error);

  // Valid after Hold. One id for each 128 ranks.
  const std::vector<NcclUniqueId>& ids() const { return ids_; }

  // Notifies the others that this rank failed after the meeting.
  void PublishFailure(const sherd_error_v0& error, sherd_code code);

  // Returns SHERD_OK, or the error that another rank published by
  // PublishFailure. Does not wait.
  sherd_code LookForFailure(sherd_error_v0* error);

  // Adds to an error a likely cause that the meeting found and left to NCCL to
  // judge: ranks share a device.
  void Explain(sherd_error_v0* error) const;

 private:
  struct Id;

  sherd_code PublishSelf(sherd_error_v0* error);
  sherd_code Judge(sherd_error_v0* error);
  sherd_code PublishOutcome(sherd_code code, const sherd_error_v0& cause,
                            sherd_error_v0* error);
  sherd_code AwaitOutcome(sherd_error_v0* error);
  sherd_code ShareIds(sherd_error_v0* error);
  void MakeId(Id* id);
  sherd_code Set(const std::string& key, const void* value, uint64_t size,
                 sherd_error_v0* error);
  // Reads the value of a key, of exactly `size` bytes.
  sherd_code Get(const std::string& key, int64_t deadline, int writer,
                 void* value, uint64_t size, sherd_error_v0* error);

  const NcclLibrary& library_;
  const sherd_comm_config_v0& config_;
  std::vector<NcclUniqueId> ids_;
  std::string doubt_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_NCCL_NCCL_MEETING_H_
