#include "sherd/rpc/engine/engine_core.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/scoped_blocked.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/devices/device_staging.h"
#include "sherd/rpc/engine/call_codec.h"
#include "sherd/rpc/engine/drain_agreement.h"
#include "sherd/rpc/link/wire.h"

namespace sherd::internal {
namespace {

// Larger tensors delay later messages noticeably, and are read in the sender's
// memory if possible.
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
      memory(options.world_size, options.memory_paths),
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

absl::Status EngineCore::Send(int to, uint64_t call, std::string control,
                              PackedTensors tensors,
                              std::function<void(const absl::Status&)> on_sent,
                              bool may_wait) {
  counters.Of(to).bytes_sent.fetch_add(control.size() + tensors.bytes,
                                       std::memory_order_relaxed);
  WireMessage message{.control = std::move(control),
                      .tail = TailOf(tensors.tail),
                      .on_sent = nullptr,
                      .bulk = tensors.bulk(),
                      .may_wait = may_wait};
  message.on_sent = std::move(on_sent);
  if (!message.tail.empty()) {
    // The sender's storage, until the system has taken it.
    message.on_sent =
        [keep = std::move(tensors.tail),
         on_sent = std::move(message.on_sent)](const absl::Status& end) {
          if (on_sent) on_sent(end);
        };
  }
  return outbox.Send(to, call, std::move(message), std::move(tensors.exposure));
}

void EngineCore::SendSmall(int to, std::string control,
                           std::function<void(const absl::Status&)> unsent) {
  counters.Of(to).bytes_sent.fetch_add(control.size(),
                                       std::memory_order_relaxed);
  WireMessage message{.control = std::move(control)};
  if (unsent != nullptr) {
    message.on_sent = [unsent = std::move(unsent)](const absl::Status& end) {
      if (WireMessage::IsUnsent(end)) unsent(end);
    };
  }
  outbox.Send(to, 0, std::move(message)).IgnoreError();
}

absl::StatusOr<PackedTensors> EngineCore::Pack(
    int to, Payload& payload,
    absl::FunctionRef<absl::StatusOr<Device>(const Device&)> route,
    Deadline deadline) {
  SHERD_RETURN_IF_ERROR(CheckTensors(payload, options.limits, route));
  SHERD_RETURN_IF_ERROR(CopyToHost(absl::MakeSpan(payload.tensors), deadline));
  PackedTensors packed;
  packed.bytes = BytesOf(payload.tensors);
  if (packed.bytes > kBulkBytes) {
    packed.exposure = memory.Expose(to, payload.tensors);
  }
  if (packed.exposure == nullptr) {
    SHERD_RETURN_IF_ERROR(PackTensors(payload.tensors));
    packed.tail = payload.tensors;
  }
  return packed;
}

std::vector<absl::Span<std::byte>> EngineCore::Land(
    int from, std::shared_ptr<Transfer> transfer, uint64_t tail_bytes,
    std::vector<Tensor> tensors, uint64_t* ticket, Landings::End end) {
  if (transfer != nullptr) {
    pool.Submit([transfer = std::move(transfer), tensors = std::move(tensors),
                 end = std::move(end)](const absl::Status& status) mutable {
      const absl::Status read = status.ok() ? transfer->Read(tensors) : status;
      transfer.reset();
      end(read);
    });
    return {};
  }
  if (tail_bytes == 0) {
    end(absl::OkStatus());
    return {};
  }
  std::vector<absl::Span<std::byte>> destinations = DestinationsOf(tensors);
  // The memory is kept until all has arrived, even if the call ends before.
  *ticket =
      landings.Add(from, [tensors = std::move(tensors), end = std::move(end)](
                             const absl::Status& status) { end(status); });
  return destinations;
}

void EngineCore::IntroduceMemory(int to) {
  if (const std::optional<MemoryProbe> probe = memory.IntroduceTo(to)) {
    SendSmall(to, EncodeMemoryProbe(*probe),
              [weak = weak_from_this(), to](const absl::Status& /*why*/) {
                if (const auto core = weak.lock()) core->memory.ProbeUnsent(to);
              });
  }
}

absl::Status EngineCore::OnMemoryProbe(int from, const MemoryProbe& probe) {
  SHERD_ASSIGN_OR_RETURN(const MemoryPathSet paths,
                         memory.Examine(from, probe));
  IntroduceMemory(from);
  SendSmall(from, EncodeMemoryPaths(paths));
  return absl::OkStatus();
}

bool PackedTensors::bulk() const {
  return exposure == nullptr && bytes > kBulkBytes;
}

Transfer::Transfer(std::shared_ptr<EngineCore> engine, int sender,
                   PayloadHeader& payload)
    : core(std::move(engine)),
      from(sender),
      number(payload.transfer),
      sources(std::move(payload.sources)) {}

Transfer::~Transfer() { core->SendSmall(from, EncodeTransferRead(number)); }

absl::Status Transfer::ReadMemory(std::vector<Tensor>& tensors) const {
  const ScopedBlocked blocked(WaitFor::kWork);
  return core->memory.Read(from, number, sources, tensors);
}

absl::Status Transfer::Read(std::vector<Tensor>& tensors) const {
  SHERD_RETURN_IF_ERROR(Annotate(
      ReadMemory(tensors),
      absl::StrCat("reading in the memory of ", core->Describe(from))));
  WorkerCounters& counters = core->counters.Of(from);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto path = static_cast<size_t>(sources[i].path);
    const auto bytes = static_cast<uint64_t>(tensors[i].nbytes());
    counters.bytes_read[path].fetch_add(bytes, std::memory_order_relaxed);
    counters.bytes_received.fetch_add(bytes, std::memory_order_relaxed);
  }
  return absl::OkStatus();
}

}  // namespace sherd::internal
