#include "sherd/backends/shm/communicator.h"

#include <sys/random.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "sherd/backends/plugin.h"
#include "sherd/backends/shm/direct_read.h"
#include "sherd/core/process/cores.h"
#include "sherd/core/process/process_memory.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

constexpr char kSegmentKey[] = "shm/segment";
constexpr char kOutcomeKey[] = "shm/outcome";

// A deadline that has passed: only a check.
constexpr int64_t kAtOnce = 0;

// Records in the store. `code` is SHERD_OK or the reason why there is no group.
struct Notice {
  sherd_code code = SHERD_OK;
  int32_t peer = -1;
  // Of rank 0: how to open the memory.
  int64_t pid = 0;
  uint64_t nonce = 0;
  int32_t fd = -1;
  char text[200] = {};

  static Notice Of(sherd_code code, int peer, const sherd_error_v0& error) {
    Notice notice;
    notice.code = code;
    notice.peer = peer;
    std::snprintf(notice.text, sizeof(notice.text), "%.*s",
                  static_cast<int>(sizeof(notice.text) - 1), error.text);
    return notice;
  }
};

void JoinedKey(int rank, char (&key)[32]) {
  std::snprintf(key, sizeof(key), "shm/joined/%d", rank);
}

sherd_code Set(const sherd_kv_v0& kv, const char* key, const Notice& notice,
               sherd_error_v0* error) {
  const sherd_code code = kv.set(kv.context, key, &notice, sizeof(notice));
  return code == SHERD_OK ? code : Fail(error, code, -1, "the store failed");
}

sherd_code Get(const sherd_comm_config_v0& config, const char* key, int peer,
               int64_t deadline, Notice* notice, sherd_error_v0* error) {
  const sherd_kv_v0& kv = *config.kv;
  uint64_t size = 0;
  const sherd_code code =
      kv.get(kv.context, key, deadline, notice, sizeof(*notice), &size);
  // The failed rank may not be `peer`, which may still arrive.
  if (code == SHERD_PEER_LOST) return Fail(error, code, -1, "a rank is lost");
  if (code != SHERD_OK) {
    return Fail(error, code, peer, "did not set up shared memory");
  }
  if (size != sizeof(*notice)) {
    return Fail(error, SHERD_INTERNAL, peer,
                "published something else than this build does");
  }
  notice->text[sizeof(notice->text) - 1] = '\0';
  return SHERD_OK;
}

}  // namespace

ShmCommunicator::ShmCommunicator(const sherd_comm_config_v0& config)
    : rank_(config.rank), size_(config.size) {}

ShmCommunicator::~ShmCommunicator() {
  if (waiting_ != nullptr) waiting_->Seal({ShmFate::kLeft});
}

sherd_code ShmCommunicator::Create(
    const sherd_comm_config_v0& config,
    std::unique_ptr<ShmCommunicator>* communicator, sherd_error_v0* error) {
  if (config.one_host == 0) {
    return Fail(error, SHERD_UNSUPPORTED, -1,
                "not all ranks are on this host; use gloo or mpi");
  }
  if (config.size > kMaxShmRanks) {
    return Fail(error, SHERD_UNSUPPORTED, -1, "more than 1024 ranks");
  }
  std::unique_ptr<ShmCommunicator> made(new ShmCommunicator(config));
  const sherd_code code = made->Connect(config, error);
  if (code == SHERD_OK) *communicator = std::move(made);
  return code;
}

sherd_code ShmCommunicator::Connect(const sherd_comm_config_v0& config,
                                    sherd_error_v0* error) {
  const sherd_code code =
      rank_ == 0 ? ConnectFirst(config, error) : ConnectOther(config, error);
  segment_.CloseDescriptor();
  if (code != SHERD_OK) return code;
  TryReadingOthers();
  // Ranks of other groups of the job need cores too.
  waiting_ = std::make_unique<ShmWaiting>(
      segment_, rank_, std::max(size_, config.world_size) > CountCores());
  waiting_->WatchPeers();
  collectives_ = std::make_unique<ShmCollectives>(segment_, *waiting_, rank_,
                                                  plugin::Host());
  messages_ = std::make_unique<ShmPointToPoint>(segment_, *waiting_, rank_);
  return SHERD_OK;
}

sherd_code ShmCommunicator::ConnectFirst(const sherd_comm_config_v0& config,
                                         sherd_error_v0* error) {
  Notice notice;
  if (getrandom(&nonce_, sizeof(nonce_), 0) !=
      static_cast<ssize_t>(sizeof(nonce_))) {
    nonce_ = 1;
  }
  sherd_code outcome = segment_.Create(size_, nonce_, error);
  if (outcome == SHERD_OK) {
    notice.pid = getpid();
    notice.nonce = nonce_;
    notice.fd = segment_.fd();
    WriteIdentity();
  } else {
    notice = Notice::Of(outcome, 0, *error);
  }
  sherd_code code = Set(*config.kv, kSegmentKey, notice, error);
  if (outcome != SHERD_OK) return outcome;
  if (code != SHERD_OK) return code;

  // Reads all of them, also after a refusal: until then they need the
  // descriptor.
  Notice result;
  for (int r = 1; r < size_; ++r) {
    char key[32];
    JoinedKey(r, key);
    outcome = Get(config, key, r, config.deadline, &notice, error);
    if (outcome == SHERD_OK && notice.code != SHERD_OK) {
      outcome = Fail(error, notice.code, r, notice.text);
    }
    if (outcome == SHERD_OK || result.code != SHERD_OK) continue;
    result = Notice::Of(outcome, error->peer, *error);
  }
  code = Set(*config.kv, kOutcomeKey, result, error);
  if (result.code == SHERD_OK) return code;
  return Fail(error, result.code, result.peer, result.text);
}

sherd_code ShmCommunicator::ConnectOther(const sherd_comm_config_v0& config,
                                         sherd_error_v0* error) {
  Notice notice;
  sherd_code code =
      Get(config, kSegmentKey, 0, config.deadline, &notice, error);
  if (code != SHERD_OK) return code;
  // In this case rank 0 waits for no rank.
  if (notice.code != SHERD_OK) return Fail(error, notice.code, 0, notice.text);

  nonce_ = notice.nonce;
  code = segment_.Open(notice.pid, notice.fd, size_, nonce_, error);
  if (code == SHERD_OK) {
    WriteIdentity();
  } else if (sherd_error_v0 unused; Get(config, kOutcomeKey, 0, kAtOnce,
                                        &notice, &unused) == SHERD_OK &&
                                    notice.code != SHERD_OK) {
    // Rank 0 has given up, and closed its memory after it had published why.
    return Fail(error, notice.code, notice.peer, notice.text);
  }
  char key[32];
  JoinedKey(rank_, key);
  const Notice joined =
      code == SHERD_OK ? Notice() : Notice::Of(code, rank_, *error);
  const sherd_code sent = Set(*config.kv, key, joined, error);
  if (code != SHERD_OK) return code;
  if (sent != SHERD_OK) return sent;

  code = Get(config, kOutcomeKey, 0, config.deadline, &notice, error);
  if (code != SHERD_OK) return code;
  if (notice.code == SHERD_OK) return SHERD_OK;
  return Fail(error, notice.code, notice.peer, notice.text);
}

void ShmCommunicator::WriteIdentity() {
  const ProcessIdentity own = ProcessIdentity::Own();
  segment_.rank(rank_).pid = own.pid;
  segment_.rank(rank_).start_time = own.start_time;
  segment_.rank(rank_).nonce_address = reinterpret_cast<uintptr_t>(&nonce_);
}

void ShmCommunicator::TryReadingOthers() {
  for (int r = 0; r < size_; ++r) {
    const ShmRank& peer = segment_.rank(r);
    uint64_t found = 0;
    if (r != rank_ && (ReadProcessMemory(peer.pid, peer.nonce_address, &found,
                                         sizeof(found)) != 0 ||
                       found != nonce_)) {
      return;
    }
  }
  segment_.rank(rank_).reads_others.store(1, std::memory_order_relaxed);
}

sherd_code ShmCommunicator::Run(const sherd_op_v0& op, sherd_error_v0* error) {
  sherd_code code = waiting_->Check(-1, {SHERD_NO_DEADLINE, 0}, error);
  if (code == SHERD_OK) {
    if (op.op == SHERD_SEND) {
      code = messages_->Send(op, error);
    } else if (op.op == SHERD_RECV) {
      code = messages_->Receive(op, error);
    } else {
      code = collectives_->Run(op, error);
    }
  }
  // Ranks that wait for this one need not detect it themselves.
  if (code != SHERD_OK) waiting_->Seal({ShmFate::kFailed, code, error->peer});
  return code;
}

std::vector<ProcessIdentity> ShmCommunicator::Processes() const {
  std::vector<ProcessIdentity> processes;
  for (int r = 0; r < size_; ++r) {
    processes.push_back({segment_.rank(r).pid, segment_.rank(r).start_time});
  }
  return processes;
}

void ShmCommunicator::Abort() { waiting_->Seal({ShmFate::kAborted}); }

}  // namespace sherd::internal
