// Any bytes as the requests of two clients: a request is refused or answered,
// never both or twice, and what waits is accounted for.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/comm/store/store_engine.h"
#include "sherd/core/comm/store/store_protocol.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using sherd::internal::ParseStoreRequest;
  using sherd::internal::ParseStoreResponse;
  using sherd::internal::StoreEngine;
  using sherd::internal::StoreOperation;
  using sherd::internal::StoreRequest;
  using sherd::internal::StoreResponse;

  size_t answers = 0, kept = 0, cancels = 0;
  StoreEngine engine(4096, [&](uint64_t, const StoreResponse& response) {
    ++answers;
    SHERD_CHECK(ParseStoreResponse(EncodeStoreResponse(response)).ok());
  });
  StoreEngine::Clock::time_point now{};
  absl::string_view rest(reinterpret_cast<const char*>(data), size);
  // One byte for the client and for the time that passes, one for the length.
  while (rest.size() >= 2) {
    const uint64_t client = rest[0] & 1;
    now += std::chrono::nanoseconds(static_cast<uint8_t>(rest[0]) >> 1);
    const absl::string_view bytes =
        rest.substr(2, static_cast<uint8_t>(rest[1]));
    rest.remove_prefix(2 + bytes.size());
    engine.Expire(now);
    const size_t answers_before = answers;
    const size_t waiting_before = engine.num_waiting();
    const absl::Status status = engine.Handle(client, bytes, now);
    const absl::StatusOr<StoreRequest> request = ParseStoreRequest(bytes);
    SHERD_CHECK(status.ok() == request.ok());
    const size_t answered = answers - answers_before;
    const size_t waiting = engine.num_waiting();
    if (!request.ok()) {
      SHERD_CHECK(answered == 0 && waiting == waiting_before);
    } else if (request->operation == StoreOperation::kCancel) {
      SHERD_CHECK(answered == 0 && waiting + 1 >= waiting_before);
      cancels += waiting_before - waiting;
    } else {
      // Answered or kept; what others waited for may be answered too.
      ++kept;
      SHERD_CHECK(answered + waiting == waiting_before + 1);
    }
  }
  SHERD_CHECK(answers + cancels + engine.num_waiting() == kept);
  engine.Disconnect(0);
  engine.Disconnect(1);
  SHERD_CHECK(engine.num_waiting() == 0);
  SHERD_CHECK(!engine.NextExpiry());
  return 0;
}
