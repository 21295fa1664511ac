#include "sherd/rpc/transfer/memory_transfer.h"

#include <errno.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/comm/channel/peer_memory.h"
#include "sherd/core/net/handshake.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/core/process/process_memory.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/transfer/byte_runs.h"

namespace sherd::internal {
namespace {

// Shorter runs are not worth an entry in a list for the system: such tensors
// are copied to contiguous memory at one end.
constexpr uint64_t kMinRunBytes = 256;

ByteRuns RunsOf(const Tensor& tensor) {
  return {reinterpret_cast<uintptr_t>(tensor.data()), tensor.sizes(),
          tensor.strides(), tensor.element_size()};
}

bool HasLongRuns(const ByteRuns& runs) {
  return runs.run_bytes() >= kMinRunBytes || runs.run_bytes() == runs.bytes();
}

// Bytes from the first byte of the first element to the last of the last one.
size_t SpanOf(const Tensor& tensor) {
  int64_t last = 0;
  for (size_t d = 0; d < tensor.sizes().size(); ++d) {
    last += (tensor.sizes()[d] - 1) * tensor.strides()[d];
  }
  return static_cast<size_t>(last + 1) * tensor.element_size();
}

bool HasElements(const Tensor& tensor) {
  return tensor.defined() && tensor.nbytes() > 0;
}

absl::Status NotExposed() {
  return absl::InvalidArgumentError(
      "it announced tensors that are not in its memory, or no longer");
}

absl::Status ReadError(int number) {
  if (number == ESRCH) return absl::UnavailableError("its process has ended");
  if (number == EFAULT) return NotExposed();
  return absl::PermissionDeniedError(absl::StrCat(
      "the system does not let its memory be read: ", std::strerror(number)));
}

// OK if the peer's nonce is at its announced address.
template <typename Reach>
absl::Status HasNonce(const Reach& reach) {
  std::string found(reach.nonce.size(), '\0');
  const int number = ReadProcessMemory(reach.process.pid, reach.nonce_address,
                                       found.data(), found.size());
  if (number != 0) return ReadError(number);
  return found == reach.nonce ? absl::OkStatus() : NotExposed();
}

absl::Status ReadByCma(int64_t pid, const TensorSource& source, Tensor& to) {
  ByteRuns from(source.place[0], to.sizes(), source.strides, to.element_size());
  if (!HasLongRuns(from)) return NotExposed();
  Tensor landed = to;
  if (!HasLongRuns(RunsOf(to)) || !IsNonOverlapping(to.sizes(), to.strides())) {
    SHERD_ASSIGN_OR_RETURN(landed,
                           Tensor::Empty(to.sizes(), {.dtype = to.dtype()}));
  }
  ByteRuns into = RunsOf(landed);
  std::array<iovec, kMaxProcessMemoryParts> from_parts;
  std::array<iovec, kMaxProcessMemoryParts> into_parts;
  for (;;) {
    const size_t num_from = from.Peek(absl::MakeSpan(from_parts));
    const size_t num_into = into.Peek(absl::MakeSpan(into_parts));
    if (num_into == 0) break;
    const uint64_t count = ReadProcessMemory(pid, {from_parts.data(), num_from},
                                             {into_parts.data(), num_into});
    if (count == 0) return ReadError(errno);
    from.Advance(count);
    into.Advance(count);
  }
  if (landed.data() == to.data()) return absl::OkStatus();
  return to.CopyFrom(landed);
}

absl::Status ReadByShm(const std::shared_ptr<PeerMemory>& memory,
                       const TensorSource& source, Tensor& to) {
  // Errors of shm name the ranks of its view of one process.
  const auto map = [&]() -> absl::StatusOr<absl::Span<std::byte>> {
    auto range = memory->Import(0, {.words = source.place});
    if (range.ok()) return range;
    if (absl::IsInvalidArgument(range.status())) return NotExposed();
    return absl::Status(range.status().code(), range.status().message());
  };
  SHERD_ASSIGN_OR_RETURN(const absl::Span<std::byte> range, map());
  SHERD_ASSIGN_OR_RETURN(
      std::shared_ptr<Storage> storage,
      Storage::BorrowReadOnly(range.data(), range.size(), memory));
  SHERD_ASSIGN_OR_RETURN(
      const Tensor from,
      Tensor::FromStorageStrided(std::move(storage), 0, to.sizes(),
                                 source.strides, to.dtype()));
  SHERD_RETURN_IF_ERROR(to.CopyFrom(from));
  // Whether it remained valid during the copy.
  return map().status();
}

}  // namespace

MemoryTransfer::MemoryTransfer(int world_size, MemoryPathSet paths)
    : paths_(paths),
      peers_(std::make_unique<Peer[]>(static_cast<size_t>(world_size))) {
  if (!paths_.shm) return;
  const auto open = [&]() -> absl::Status {
    SHERD_ASSIGN_OR_RETURN(shm_, BackendRegistry::Global().Find("shm"));
    SHERD_ASSIGN_OR_RETURN(own_memory_,
                           shm_->OpenPeerMemory({ProcessIdentity::Own()}));
    return absl::OkStatus();
  };
  if (const absl::Status status = open(); !status.ok()) {
    SHERD_LOG(kDebug) << "RPC without shared memory: " << status.ToString();
    paths_.shm = false;
  }
}

std::optional<MemoryProbe> MemoryTransfer::IntroduceTo(int to) {
  Peer& peer = peers_[to];
  if (!paths_.any() || peer.is_introduced.load(std::memory_order_relaxed) ||
      peer.is_introduced.exchange(true)) {
    return std::nullopt;
  }
  absl::MutexLock lock(&mutex_);
  if (peer.nonce.empty()) {
    peer.nonce = NewNonce();
    if (paths_.thread) peer.exposures = Exposures::Announce(peer.nonce);
  }
  return MemoryProbe{
      .process = DescribeOwnProcess(),
      .nonce = peer.nonce,
      .nonce_address = reinterpret_cast<uintptr_t>(peer.nonce.data())};
}

absl::StatusOr<MemoryPathSet> MemoryTransfer::Examine(
    int from, const MemoryProbe& probe) {
  Reach reach = {.nonce = probe.nonce, .nonce_address = probe.nonce_address};
  if (paths_.thread) reach.exposures = Exposures::Of(probe.nonce);
  reach.paths.thread = reach.exposures != nullptr;
  const std::optional<ProcessDescription> own =
      ProcessDescription::Parse(DescribeOwnProcess());
  const std::optional<ProcessDescription> process =
      ProcessDescription::Parse(probe.process);
  if (own && process && process->IsBeside(*own) &&
      probe.nonce.size() == kNonceBytes) {
    reach.process = process->process;
    reach.paths.cma = paths_.cma && HasNonce(reach).ok();
    absl::StatusOr<std::shared_ptr<PeerMemory>> memory = nullptr;
    if (paths_.shm) memory = shm_->OpenPeerMemory({reach.process});
    if (memory.ok()) reach.memory = *std::move(memory);
    reach.paths.shm = reach.memory != nullptr;
  }
  const MemoryPathSet paths = reach.paths;
  absl::MutexLock lock(&mutex_);
  Peer& peer = peers_[from];
  if (peer.reach != nullptr) {
    return absl::InvalidArgumentError(
        "call message: it introduces its memory for a second time");
  }
  peer.reach = std::make_shared<const Reach>(std::move(reach));
  return paths;
}

void MemoryTransfer::SetReadable(int peer, MemoryPathSet paths) {
  absl::MutexLock lock(&mutex_);
  if (peers_[peer].nonce.empty()) return;
  peers_[peer].readable_by = {.thread = paths.thread && paths_.thread,
                              .shm = paths.shm && paths_.shm,
                              .cma = paths.cma && paths_.cma};
}

void MemoryTransfer::Forget(int peer, const absl::Status& why) {
  // Unmapped without the lock.
  std::shared_ptr<const Reach> reach;
  absl::MutexLock lock(&mutex_);
  peers_[peer].readable_by = {};
  std::fill(peers_[peer].nonce.begin(), peers_[peer].nonce.end(), '\0');
  reach.swap(peers_[peer].reach);
  peers_[peer].gone.Update(why);
}

bool MemoryTransfer::Locate(MemoryPathSet paths, Tensor& tensor,
                            TensorSource& source) const {
  source.strides.assign(tensor.strides().begin(), tensor.strides().end());
  if (!HasElements(tensor)) return true;
  if (paths.thread) {
    source.path = MemoryPath::kThread;
    return true;
  }
  const void* const data = std::as_const(tensor).data();
  std::optional<MemoryHandle> handle;
  if (paths.shm) handle = own_memory_->Export(data, SpanOf(tensor));
  if (handle) {
    source.path = MemoryPath::kShm;
    source.place = handle->words;
    return true;
  }
  if (!paths.cma) return false;
  if (!HasLongRuns(RunsOf(tensor))) {
    absl::StatusOr<Tensor> packed = tensor.Contiguous();
    if (!packed.ok()) return false;
    tensor = *std::move(packed);
    return Locate({.cma = true}, tensor, source);
  }
  source.path = MemoryPath::kCma;
  source.place[0] = reinterpret_cast<uintptr_t>(data);
  return IsReadableByOthers(data, SpanOf(tensor));
}

std::shared_ptr<const Exposure> MemoryTransfer::Expose(
    int to, const std::vector<Tensor>& tensors) {
  MemoryPathSet paths;
  auto exposure = std::make_shared<Exposure>();
  {
    absl::MutexLock lock(&mutex_);
    paths = peers_[to].readable_by;
    if (paths.thread) exposure->listed = peers_[to].exposures;
  }
  if (!paths.any()) return nullptr;
  exposure->transfer = next_transfer_.fetch_add(1);
  exposure->tensors = tensors;
  exposure->sources.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!Locate(paths, exposure->tensors[i], exposure->sources[i])) {
      return nullptr;
    }
    exposure->bytes += static_cast<uint64_t>(tensors[i].nbytes());
  }
  if (exposure->listed != nullptr) exposure->listed->Add(exposure);
  return exposure;
}

absl::Status MemoryTransfer::Read(int from, uint64_t transfer,
                                  const std::vector<TensorSource>& sources,
                                  std::vector<Tensor>& tensors) {
  std::shared_ptr<const Reach> reach;
  {
    absl::MutexLock lock(&mutex_);
    reach = peers_[from].reach;
    SHERD_RETURN_IF_ERROR(peers_[from].gone);
  }
  if (reach == nullptr || sources.size() != tensors.size()) return NotExposed();
  std::shared_ptr<const Exposure> exposure;
  if (reach->paths.thread) exposure = reach->exposures->Find(transfer);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!HasElements(tensors[i])) continue;
    absl::Status status = NotExposed();
    const MemoryPath path =
        reach->paths.Has(sources[i].path) ? sources[i].path : MemoryPath::kNone;
    if (path == MemoryPath::kShm) {
      status = ReadByShm(reach->memory, sources[i], tensors[i]);
    } else if (path == MemoryPath::kCma) {
      status = ReadByCma(reach->process.pid, sources[i], tensors[i]);
      if (status.ok()) status = HasNonce(*reach);
    } else if (path == MemoryPath::kThread && exposure != nullptr &&
               i < exposure->tensors.size()) {
      status = tensors[i].CopyFrom(exposure->tensors[i]);
    }
    if (status.ok()) continue;
    status = absl::Status(status.code(),
                          absl::StrCat("tensor ", i, ": ", status.message()));
    return absl::IsUnavailable(status) ? WithFailedRank(status, from) : status;
  }
  return absl::OkStatus();
}

}  // namespace sherd::internal
