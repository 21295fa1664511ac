#include "sherd/rpc/engine/engine_core.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/engine/call_codec.h"
#include "sherd/rpc/engine/drain_agreement.h"
#include "sherd/rpc/link/wire.h"

namespace sherd::internal {
namespace {

// Tensors of more bytes delay what comes behind them noticeably.
constexpr uint64_t kBulkBytes = uint64_t{64} << 10;

uint64_t BytesOf(const std::vector<Tensor>& tensors) {
  uint64_t bytes = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.defined()) bytes += static_cast<uint64_t>(tensor.nbytes());
  }
  return bytes;
}

}  // namespace

DrainCounts CallCounters::Look(const std::set<int>& excluded) const {
  const auto sum = [&] {
    DrainCounts counts;
    for (int w = 0; w < size_; ++w) {
      if (excluded.contains(w)) continue;
      counts.sent += workers_[w].requests_sent.load();
      counts.received += workers_[w].requests_received.load();
    }
    return counts;
  };
  for (;;) {
    DrainCounts counts = sum();
    counts.idle = outstanding_.load() == 0 && running_.load() == 0;
    if (!counts.idle) return counts;
    const DrainCounts again = sum();
    if (again.sent == counts.sent && again.received == counts.received) {
      return counts;
    }
  }
}

EngineCore::EngineCore(CallEngineOptions engine_options,
                       CallDeadlines::Look look)
    : options(std::move(engine_options)),
      counters(options.world_size),
      outbox(options.max_unsent_bytes),
      drain(
          options.rank, options.world_size,
          [this](const std::set<int>& excluded) {
            return counters.Look(excluded);
          },
          [this](int to, const DrainHeader& header) {
            SendSmall(to, EncodeDrain(header));
          },
          [this](int worker) { return Describe(worker); }),
      pool(options.pool),
      deadlines(std::move(look)) {}

std::string EngineCore::Describe(int worker) const {
  const Wire* const wire = outbox.wire();
  if (wire == nullptr) return absl::StrCat("rank ", worker);
  return absl::StrCat(wire->names()[static_cast<size_t>(worker)], " (rank ",
                      worker, ")");
}

bool EngineCore::IsBulk(const std::vector<Tensor>& tensors) {
  return !tensors.empty() && BytesOf(tensors) > kBulkBytes;
}

absl::Status EngineCore::Send(
    int to, uint64_t call, std::string control, std::vector<Tensor> tensors,
    bool bulk, std::function<void(const absl::Status&)> on_sent) {
  counters.Of(to).bytes_sent.fetch_add(control.size() + BytesOf(tensors),
                                       std::memory_order_relaxed);
  WireMessage message{.control = std::move(control),
                      .tail = TailOf(tensors),
                      .on_sent = nullptr,
                      .bulk = bulk};
  message.on_sent = std::move(on_sent);
  if (!message.tail.empty()) {
    // The sender's storage, until the system has taken it.
    message.on_sent =
        [keep = std::move(tensors),
         on_sent = std::move(message.on_sent)](const absl::Status& end) {
          if (on_sent) on_sent(end);
        };
  }
  return outbox.Send(to, call, std::move(message));
}

void EngineCore::SendSmall(int to, std::string control, bool bulk) {
  Send(to, 0, std::move(control), {}, bulk).IgnoreError();
}

}  // namespace sherd::internal
