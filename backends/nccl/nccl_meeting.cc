#include "sherd/backends/nccl/nccl_meeting.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sherd/backends/nccl/nccl_error.h"
#include "sherd/backends/plugin.h"
#include "sherd/core/process/process_identity.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

// Beyond so many ranks, one that all connect to becomes the bottleneck.
constexpr int kRanksPerId = 128;

constexpr uint32_t kMagic = 0x6c63636e;

// Records in the store. Plain bytes of one program on machines of the same
// kind; validated nevertheless.
struct Self {
  uint32_t magic = kMagic;
  int32_t version = 0;
  uint64_t host = 0;
  char device[64] = {};
  char problem[192] = {};
};

struct MeetingOutcome {
  uint32_t magic = kMagic;
  int32_t code = SHERD_OK;
  int32_t peer = -1;
  int32_t native_code = 0;
  char text[244] = {};
  char doubt[128] = {};
};

struct Failure {
  uint32_t magic = kMagic;
  int32_t code = SHERD_OK;
  int32_t rank = -1;
  int32_t native_code = 0;
  char text[244] = {};
};

}  // namespace

struct NcclMeeting::Id {
  uint32_t magic = kMagic;
  int32_t code = SHERD_OK;
  NcclUniqueId id = {};
  char text[244] = {};
  char reserved[4] = {};
};

namespace {

constexpr char kOutcomeKey[] = "nccl/outcome";
constexpr char kFailureKey[] = "nccl/failure";

template <size_t N>
void CopyText(const std::string& from, char (&to)[N]) {
  const size_t size = std::min(from.size(), N - 1);
  std::memcpy(to, from.data(), size);
  to[size] = '\0';
}

template <size_t N>
std::string TextOf(const char (&field)[N]) {
  return std::string(field, strnlen(field, N));
}

// The same in all processes that NCCL takes for those of one host, unless its
// variable NCCL_HOSTID overrides it.
uint64_t HostHash() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  const std::string identity = name + BootId();
  uint64_t hash = 14695981039346656037u;  // FNV-1a.
  for (const unsigned char c : identity) hash = (hash ^ c) * 1099511628211u;
  return hash;
}

// The first two ranks that share a device, in words; empty if there are
// none.
std::string DescribeSharedDevice(const std::vector<Self>& ranks) {
  std::map<std::pair<uint64_t, std::string>, size_t> first;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const std::string device = TextOf(ranks[r].device);
    if (device.empty()) continue;
    const auto [found, is_new] = first.insert({{ranks[r].host, device}, r});
    if (!is_new) {
      return "ranks " + std::to_string(found->second) + " and " +
             std::to_string(r) + " use one GPU, " + device +
             ": give each rank its own";
    }
  }
  return "";
}

}  // namespace

sherd_code NcclMeeting::Set(const std::string& key, const void* value,
                            uint64_t size, sherd_error_v0* error) {
  const sherd_kv_v0& kv = *config_.kv;
  const sherd_code code = kv.set(kv.context, key.c_str(), value, size);
  if (code == SHERD_OK) return code;
  return Fail(error, code, -1, "the store failed");
}

sherd_code NcclMeeting::Get(const std::string& key, int64_t deadline,
                            int writer, void* value, uint64_t size,
                            sherd_error_v0* error) {
  const sherd_kv_v0& kv = *config_.kv;
  uint64_t found = 0;
  const sherd_code code =
      kv.get(kv.context, key.c_str(), deadline, value, size, &found);
  if (code != SHERD_OK) {
    const char* const text = code == SHERD_TIMEOUT     ? "did not come"
                             : code == SHERD_PEER_LOST ? "a rank is lost"
                                                       : "the store failed";
    return Fail(error, code, code == SHERD_TIMEOUT ? writer : -1, text);
  }
  uint32_t magic = 0;
  if (size >= sizeof(magic)) std::memcpy(&magic, value, sizeof(magic));
  if (found == size && magic == kMagic) return SHERD_OK;
  return Fail(error, SHERD_INTERNAL, writer,
              ("published " + std::to_string(found) + " bytes at " + key +
               ", expected a record of " + std::to_string(size))
                  .c_str());
}

sherd_code NcclMeeting::Hold(sherd_error_v0* error) {
  const bool alone = config_.size == 1;
  if (!library_.nccl_problem.empty() && alone) {
    return Fail(error, SHERD_UNSUPPORTED, -1, library_.nccl_problem.c_str());
  }
  if (!alone) {
    sherd_code code = PublishSelf(error);
    if (code != SHERD_OK) return code;
    if (config_.rank == 0) {
      sherd_error_v0 cause = *error;
      code = Judge(&cause);
      const sherd_code published = PublishOutcome(code, cause, error);
      if (code != SHERD_OK) *error = cause;
      if (code == SHERD_OK) code = published;
    } else {
      code = AwaitOutcome(error);
    }
    if (code != SHERD_OK) return code;
  }
  return ShareIds(error);
}

sherd_code NcclMeeting::PublishSelf(sherd_error_v0* error) {
  Self self;
  self.version = library_.version;
  self.host = HostHash();
  if (config_.device_id != nullptr) CopyText(config_.device_id, self.device);
  CopyText(library_.nccl_problem, self.problem);
  return Set("nccl/" + std::to_string(config_.rank), &self, sizeof(self),
             error);
}

sherd_code NcclMeeting::Judge(sherd_error_v0* error) {
  std::vector<Self> ranks(config_.size);
  for (int r = 0; r < config_.size; ++r) {
    Self& self = ranks[r];
    const sherd_code code = Get("nccl/" + std::to_string(r), config_.deadline,
                                r, &self, sizeof(self), error);
    if (code != SHERD_OK) return code;
    const std::string problem = TextOf(self.problem);
    if (!problem.empty()) {
      return Fail(error, SHERD_UNSUPPORTED, r, problem.c_str());
    }
    if (self.version == ranks[0].version) continue;
    return Fail(
        error, SHERD_INVALID_ARGUMENT, r,
        ("has NCCL " + NcclVersionText(self.version) + ", rank 0 has NCCL " +
         NcclVersionText(ranks[0].version) + ": all ranks need the same one")
            .c_str());
  }
  doubt_ = DescribeSharedDevice(ranks);
  return SHERD_OK;
}

sherd_code NcclMeeting::PublishOutcome(sherd_code code,
                                       const sherd_error_v0& cause,
                                       sherd_error_v0* error) {
  MeetingOutcome outcome;
  outcome.code = code;
  if (code != SHERD_OK) {
    outcome.peer = cause.peer;
    outcome.native_code = cause.native_code;
    CopyText(TextOf(cause.text), outcome.text);
  }
  CopyText(doubt_, outcome.doubt);
  return Set(kOutcomeKey, &outcome, sizeof(outcome), error);
}

sherd_code NcclMeeting::AwaitOutcome(sherd_error_v0* error) {
  MeetingOutcome outcome;
  sherd_code code =
      Get(kOutcomeKey, config_.deadline, 0, &outcome, sizeof(outcome), error);
  if (code == SHERD_TIMEOUT) {
    // Rank 0 may be waiting for a third.
    return Fail(error, code, -1, "not all ranks came in time");
  }
  if (code != SHERD_OK) return code;
  doubt_ = TextOf(outcome.doubt);
  if (outcome.code == SHERD_OK) return SHERD_OK;
  const bool is_rank = outcome.peer >= 0 && outcome.peer < config_.size;
  error->native_code = outcome.native_code;
  return Fail(error, outcome.code, is_rank ? outcome.peer : -1,
              TextOf(outcome.text).c_str());
}

// The ranks kRanksPerId * i create them: each of them listens for the ranks
// after it.
sherd_code NcclMeeting::ShareIds(sherd_error_v0* error) {
  const bool scalable = library_.api.comm_init_rank_scalable != nullptr;
  const int count =
      scalable ? (config_.size + kRanksPerId - 1) / kRanksPerId : 1;
  for (int i = 0; i < count; ++i) {
    const int maker = i * kRanksPerId;
    const std::string key = "nccl/id/" + std::to_string(i);
    Id id;
    if (config_.rank == maker) {
      MakeId(&id);
      if (config_.size > 1) {
        const sherd_code code = Set(key, &id, sizeof(id), error);
        if (code != SHERD_OK) return code;
      }
    } else {
      const sherd_code code =
          Get(key, config_.deadline, maker, &id, sizeof(id), error);
      if (code != SHERD_OK) return code;
    }
    if (id.code != SHERD_OK) {
      return Fail(error, id.code, maker, TextOf(id.text).c_str());
    }
    ids_.push_back(id.id);
  }
  return SHERD_OK;
}

void NcclMeeting::MakeId(Id* id) {
  const NcclResult result = library_.api.get_unique_id(&id->id);
  if (result == kNcclSuccess) return;
  sherd_error_v0 error = {};
  id->code = FailWithNccl(library_.api, result, "ncclGetUniqueId", &error);
  CopyText(TextOf(error.text), id->text);
}

void NcclMeeting::PublishFailure(const sherd_error_v0& error, sherd_code code) {
  if (config_.kv == nullptr || config_.size == 1) return;
  Failure failure;
  failure.code = code;
  failure.rank = config_.rank;
  failure.native_code = error.native_code;
  CopyText(TextOf(error.text), failure.text);
  sherd_error_v0 ignored;
  Set(kFailureKey, &failure, sizeof(failure), &ignored);
}

sherd_code NcclMeeting::LookForFailure(sherd_error_v0* error) {
  if (config_.kv == nullptr || config_.size == 1) return SHERD_OK;
  Failure failure;
  sherd_error_v0 ignored;
  // A deadline long past: does not wait.
  const sherd_code code =
      Get(kFailureKey, 0, -1, &failure, sizeof(failure), &ignored);
  if (code != SHERD_OK || failure.rank == config_.rank || failure.rank < 0 ||
      failure.rank >= config_.size) {
    return SHERD_OK;
  }
  error->native_code = failure.native_code;
  const sherd_code theirs =
      failure.code == SHERD_OK ? SHERD_INTERNAL : failure.code;
  return Fail(error, theirs, failure.rank, TextOf(failure.text).c_str());
}

void NcclMeeting::Explain(sherd_error_v0* error) const {
  if (doubt_.empty()) return;
  const std::string text = doubt_ + "; " + TextOf(error->text);
  CopyText(text, error->text);
}

}  // namespace sherd::internal
