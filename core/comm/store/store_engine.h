#ifndef SHERD_CORE_COMM_STORE_STORE_ENGINE_H_
#define SHERD_CORE_COMM_STORE_STORE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/store/store_entries.h"
#include "sherd/core/comm/store/store_protocol.h"

namespace sherd::internal {

// The entries of a TcpStoreServer, and the requests that wait for entries. The
// engine uses neither sockets nor clocks, so that it can be tested with any
// bytes. Not thread-safe.
//
// Cost. A waiting request is checked when its first missing key appears, and
// continues from there: waiting for n keys costs n lookups in all, if no keys
// are removed meanwhile.
class StoreEngine {
 public:
  // Identifies a client while it is connected.
  using ClientId = uint64_t;
  using Clock = Deadline::Clock;
  // Called from within Handle, Expire and Disconnect.
  using Reply = std::function<void(ClientId, const StoreResponse&)>;

  // At most `max_bytes` of keys, values and waiting requests together.
  StoreEngine(int64_t max_bytes, Reply reply);

  // Answers now, or keeps the request. OK also if the answer is an error.
  //   kDataLoss  `bytes` is not a request: the client is not trusted.
  absl::Status Handle(ClientId client, absl::string_view bytes,
                      Clock::time_point now);

  // Answers the requests that have timed out.
  void Expire(Clock::time_point now);

  // When Expire has something to do next.
  std::optional<Clock::time_point> NextExpiry() const;

  // Forgets what the client waits for.
  void Disconnect(ClientId client);

  size_t num_waiting() const { return waiting_.size(); }

 private:
  using RequestId = std::pair<ClientId, uint64_t>;
  struct Waiting {
    StoreOperation operation;
    std::vector<std::string> keys;
    // keys[0] to keys[cursor - 1] were there when removals_ was `removals`;
    // keys[cursor] was not.
    size_t cursor = 0;
    uint64_t removals = 0;
    int64_t bytes = 0;
    std::optional<Clock::time_point> expiry;
  };

  void Answer(ClientId client, const StoreRequest& request);
  absl::StatusOr<StoreResponse> Execute(const StoreRequest& request);
  void Begin(ClientId client, StoreRequest& request, Clock::time_point now);
  // Moves the cursor to the first missing key; true if no key is missing.
  bool Advance(Waiting& waiting) const;
  void Finish(const RequestId& id);
  void Forget(const RequestId& id);
  void AnswerMissing(ClientId client, uint64_t id, const Waiting& waiting);
  void AnswerFound(ClientId client, uint64_t id, const Waiting& waiting);

  absl::Status Put(absl::string_view key, std::string value);
  int64_t RemoveAll(absl::Span<const std::string> keys);
  // After a key was created.
  void Notify(const std::string& key);

  const int64_t max_bytes_;
  const Reply reply_;
  StoreEntries entries_;
  int64_t bytes_ = 0;
  uint64_t removals_ = 0;
  std::map<RequestId, Waiting> waiting_;
  // By the key that each misses, and by the time at which it gives up.
  std::map<std::string, std::set<RequestId>, std::less<>> by_key_;
  std::set<std::pair<Clock::time_point, RequestId>> by_expiry_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_STORE_STORE_ENGINE_H_
