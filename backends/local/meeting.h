#ifndef SHERD_BACKENDS_LOCAL_MEETING_H_
#define SHERD_BACKENDS_LOCAL_MEETING_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/local/mailbox.h"

namespace sherd::internal {

// Shared by the ranks of one group. The ranks that joined it own it, and so
// does the process until all have joined: forever, if a rank fails before it
// joins.
//
// A collective has two phases. Ranks arrive and publish their calls; the last
// one compares the calls. Then each rank does its share with the others'
// buffers, and no rank returns before all have done theirs. A tiny collective
// has one phase: the last rank to arrive does everything.
//
// Threads. All functions from any thread; one collective per rank at a time.
class Meeting {
 public:
  // `host` lives forever.
  static std::shared_ptr<Meeting> Make(int size, const sherd_host_v0& host);

  // Called once by each rank except the one that made it. Returns the meeting
  // with that serial number, also if ranks have aborted or left it, or null.
  static std::shared_ptr<Meeting> Join(uint64_t serial);

  sherd_code Run(int rank, const sherd_op_v0& op, sherd_error_v0* error);

  // Counts the meetings of this process.
  uint64_t serial() const { return serial_; }

  void Abort(int rank);

  void Leave(int rank);

 private:
  struct Failure {
    sherd_code code = SHERD_OK;
    int peer = -1;
    std::string text;
  };

  Meeting(int size, const sherd_host_v0& host, uint64_t serial)
      : serial_(serial),
        host_(host),
        mailbox_(size),
        calls_(size),
        left_(size),
        aborted_(size) {}

  int size() const { return static_cast<int>(calls_.size()); }

  sherd_code Meet(int rank, const sherd_op_v0& op, sherd_error_v0* error);
  // Called when the last rank has arrived.
  void Begin();
  // Called when all shares are done.
  void Finish();
  // False if the operation failed before all ranks arrived.
  bool AwaitRound(std::unique_lock<std::mutex>& lock, uint64_t round,
                  int64_t deadline);
  int FirstAbsent() const;
  // Only the first failure counts.
  void SetFailure(Failure failure);
  // The error that `rank` reports: its own abort takes precedence.
  sherd_code Report(int rank, sherd_error_v0* error) const;

  const uint64_t serial_;
  const sherd_host_v0& host_;
  Mailbox mailbox_;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Read without the lock while ranks do their shares: no thread writes then.
  std::vector<const sherd_op_v0*> calls_;
  std::vector<bool> left_;
  std::vector<bool> aborted_;
  // Guarded by the lock of the open meetings.
  int came_ = 1;
  int arrived_ = 0;
  int finished_ = 0;
  // Advances twice per collective; odd while ranks do their shares.
  uint64_t round_ = 0;
  // The calls of the last collective differed. Never reset.
  bool refused_ = false;
  Failure failure_;
};

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_LOCAL_MEETING_H_
