#include "sherd/testing/emulated_gpu/nccl/nccl_communicator.h"

#include <limits.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <unordered_map>
#include <utility>

#include "sherd/core/base/knobs.h"
#include "sherd/testing/emulated_gpu/plan/faults.h"

namespace sherd::testing {

using internal::kNcclInProgress;
using internal::kNcclInternalError;
using internal::kNcclInvalidArgument;
using internal::kNcclInvalidUsage;
using internal::kNcclRemoteError;
using internal::kNcclSuccess;

namespace {

// The first NCCL with nonblocking communicators: the shortest config.
constexpr size_t kShortestConfig = offsetof(NcclConfig, cga_cluster_size);

// As getHostHash of NCCL: looked up once in a process.
uint64_t HostHash() {
  static const uint64_t hash = [] {
    char name[256] = {};
    gethostname(name, sizeof(name) - 1);
    return static_cast<uint64_t>(std::hash<std::string>()(
        GetKnobOr(Knob::kNcclHostId, std::string(name))));
  }();
  return hash;
}

int64_t NowMilliseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

NcclResult CheckFlag(const char* name, int value, bool* flag) {
  if (value == internal::kNcclUndefined) return kNcclSuccess;
  if (value != 0 && value != 1) {
    return NcclFail(kNcclInvalidArgument, std::string("Invalid config ") +
                                              name + " attribute value " +
                                              std::to_string(value));
  }
  *flag = value == 1;
  return kNcclSuccess;
}

}  // namespace

NcclResult ReadConfig(const NcclConfig* config, NcclSettings* settings) {
  if (config == nullptr) return kNcclSuccess;
  NcclConfig own;
  if (config->magic != internal::kNcclConfigMagic ||
      config->size < kShortestConfig) {
    return NcclFail(kNcclInvalidArgument,
                    "ncclConfig_t argument not initialized via "
                    "NCCL_CONFIG_INITIALIZER");
  }
  std::memcpy(static_cast<void*>(&own), config,
              std::min(config->size, sizeof(own)));
  NcclResult result = CheckFlag("blocking", own.blocking, &settings->blocking);
  if (result == kNcclSuccess) {
    result = CheckFlag("splitShare", own.split_share, &settings->split_share);
  }
  if (result == kNcclSuccess) {
    result =
        CheckFlag("shrinkShare", own.shrink_share, &settings->shrink_share);
  }
  if (result != kNcclSuccess) return result;
  const bool has_min = own.min_ctas != internal::kNcclUndefined;
  const bool has_max = own.max_ctas != internal::kNcclUndefined;
  if ((has_min && own.min_ctas <= 0) || (has_max && own.max_ctas <= 0) ||
      (has_min && has_max && own.min_ctas > own.max_ctas)) {
    return NcclFail(kNcclInvalidArgument,
                    "Invalid config min/max channels attribute value " +
                        std::to_string(own.min_ctas) + "/" +
                        std::to_string(own.max_ctas));
  }
  if (own.comm_name != nullptr) settings->name = own.comm_name;
  return kNcclSuccess;
}

int NcclPretendedVersion() {
  const std::optional<GpuFault> fault = TakeFault("ncclGetVersion");
  constexpr char kWord[] = "version=";
  if (fault && fault->kind == GpuFault::Kind::kOther &&
      fault->word.rfind(kWord, 0) == 0) {
    return std::atoi(fault->word.c_str() + sizeof(kWord) - 1);
  }
  return internal::kNcclConfigVersion;
}

NcclCommunicator::NcclCommunicator(int device, const NcclSettings& settings,
                                   std::shared_ptr<NcclFamily> family)
    : device_(device), settings_(settings), family_(std::move(family)) {}

void NcclCommunicator::SetPlace(int rank, int size) {
  rank_ = rank;
  size_ = size;
}

NcclResult NcclCommunicator::Join(const NcclUniqueId& id, bool hangs) {
  {
    const std::lock_guard<std::mutex> lock(family_->mutex);
    family_->members.push_back(weak_from_this());
  }
  if (hangs) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return Ended(); });
    return NcclFail(kNcclInternalError, "aborted during initialization");
  }
  if (settings_.alone) return kNcclSuccess;
  NcclResult result = NcclSegment::Open(id, size_, &segment_);
  if (result != kNcclSuccess) return result;
  NcclRankBlock& own = segment_->rank(rank_);
  uint32_t none = 0;
  if (!own.claimed.compare_exchange_strong(none, 1)) {
    segment_->Break();
    return NcclFail(kNcclInvalidUsage, "Bootstrap Root : rank " +
                                           std::to_string(rank_) + " of " +
                                           std::to_string(size_) +
                                           " ranks has already checked in");
  }
  DescribeOwnProcess(&own.info);
  own.info.host_hash = HostHash();
  own.info.device = device_;
  own.info.version = NcclPretendedVersion();
  std::snprintf(own.info.bus_id, sizeof(own.info.bus_id), "%s",
                BusId(device_).c_str());
  own.joined.store(1);
  attached_.store(true);
  segment_->RingAll();
  const bool met = segment_->Await(
      rank_,
      [this] {
        for (int r = 0; r < size_; ++r) {
          if (segment_->rank(r).joined.load() == 0) return false;
        }
        return true;
      },
      [this] { return Ended() || segment_->broken(); });
  if (!met) {
    return segment_->broken()
               ? NcclFail(kNcclRemoteError,
                          "another rank came with another rank or size")
               : NcclFail(kNcclInternalError, "aborted during initialization");
  }
  segment_->Complete();
  return CheckPeers();
}

NcclResult NcclCommunicator::CheckPeers() const {
  for (int a = 0; a < size_; ++a) {
    const NcclRankInfo& first = segment_->rank(a).info;
    const NcclRankInfo& zero = segment_->rank(0).info;
    if (first.version != zero.version) {
      return NcclFail(kNcclInvalidUsage,
                      "Mismatched NCCL version detected : rank 0 version " +
                          std::to_string(zero.version) + " rank " +
                          std::to_string(a) + " version " +
                          std::to_string(first.version));
    }
    for (int b = 0; b < a; ++b) {
      const NcclRankInfo& other = segment_->rank(b).info;
      if (first.host_hash == other.host_hash &&
          std::strcmp(first.bus_id, other.bus_id) == 0) {
        return NcclFail(kNcclInvalidUsage,
                        "Duplicate GPU detected : rank " + std::to_string(a) +
                            " and rank " + std::to_string(b) +
                            " both on CUDA device " + first.bus_id);
      }
    }
  }
  return kNcclSuccess;
}

NcclCommunicatorPtr NcclCommunicator::NewChild(const NcclSettings& settings,
                                               bool is_split, bool shares) {
  NcclSettings own = settings;
  own.label = !is_split ? "shrunk" : settings.blocking ? "work" : "split";
  own.origin = settings_.origin;
  own.remote = settings_.remote;
  own.mismatch_hangs = settings_.mismatch_hangs;
  own.eager = settings_.eager;
  own.alone = settings_.alone;
  return std::make_shared<NcclCommunicator>(
      device_, own, shares ? family_ : std::make_shared<NcclFamily>());
}

NcclResult NcclCommunicator::JoinChild(const NcclCommunicatorPtr& child,
                                       const NcclUniqueId& id) {
  const auto set_unfinished = [this](NcclCommunicatorPtr unfinished) {
    const std::lock_guard<std::mutex> lock(mutex_);
    unfinished_ = std::move(unfinished);
  };
  // An abort of the parent is one of the child until it is whole.
  set_unfinished(child);
  const NcclResult result = Aborted() ? NcclFail(kNcclInternalError, "aborted")
                                      : child->Join(id, false);
  set_unfinished(nullptr);
  return result;
}

NcclResult NcclCommunicator::MakeChild(const std::vector<int>& members,
                                       uint64_t number, uint64_t hash,
                                       bool is_split,
                                       const NcclSettings& settings,
                                       bool shares, NcclCommunicatorPtr* made) {
  const auto control = [&](int r) -> NcclControl& {
    NcclRankBlock& block = segment_->rank(r);
    return is_split ? block.split[number % 2] : block.shrink;
  };
  if (members[0] == rank_) {
    NcclControl& own = control(rank_);
    const NcclResult result = NcclSegment::MakeUniqueId(&own.id);
    if (result != kNcclSuccess) return result;
    own.second.store(number);
    segment_->RingAll();
  }
  NcclControl& leader = control(members[0]);
  const bool has_id = segment_->Await(
      rank_,
      [&] { return leader.second.load() == number && leader.hash == hash; },
      [this] { return Aborted(); });
  if (!has_id) return NcclFail(kNcclInternalError, "aborted");
  NcclCommunicatorPtr child = NewChild(settings, is_split, shares);
  const auto place = std::find(members.begin(), members.end(), rank_);
  child->SetPlace(static_cast<int>(place - members.begin()),
                  static_cast<int>(members.size()));
  const NcclResult result = JoinChild(child, leader.id);
  if (result == kNcclSuccess) *made = std::move(child);
  return result;
}

NcclCommunicatorPtr NcclCommunicator::MakeAlone(const NcclSettings& settings,
                                                bool is_split) {
  NcclCommunicatorPtr child = NewChild(settings, is_split, /*shares=*/false);
  child->SetPlace(rank_, size_);
  return child;
}

NcclResult NcclCommunicator::Split(int color, int key,
                                   const NcclSettings& settings,
                                   NcclCommunicatorPtr* made) {
  if (settings_.alone) {
    if (color >= 0) *made = MakeAlone(settings, /*is_split=*/true);
    return kNcclSuccess;
  }
  const uint64_t number = ++splits_;
  const auto control = [&](int r) -> NcclControl& {
    return segment_->rank(r).split[number % 2];
  };
  control(rank_).color = color;
  control(rank_).key = key;
  control(rank_).hash = 0;
  control(rank_).first.store(number);
  segment_->RingAll();
  const bool met = segment_->Await(
      rank_,
      [&] {
        for (int r = 0; r < size_; ++r) {
          if (control(r).first.load() != number) return false;
        }
        return true;
      },
      [this] { return Aborted(); });
  if (!met) return NcclFail(kNcclInternalError, "aborted");
  if (color < 0) return kNcclSuccess;
  std::vector<int> members;
  for (int r = 0; r < size_; ++r) {
    if (control(r).color == color) members.push_back(r);
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return control(a).key < control(b).key;
  });
  const bool shares = settings.split_share && !stopped_.load();
  return MakeChild(members, number, 0, true, settings, shares, made);
}

NcclResult NcclCommunicator::Shrink(const std::set<int>& excluded,
                                    bool abort_first,
                                    const NcclSettings& settings,
                                    NcclCommunicatorPtr* made) {
  if (abort_first) {
    Stop();
    Drain();
  }
  if (settings_.alone) {
    *made = MakeAlone(settings, /*is_split=*/false);
    return kNcclSuccess;
  }
  // Ranks that were left out of an earlier one have not counted it.
  uint64_t hash = 1;
  for (const int r : excluded) hash = (hash + r) * 0x9e3779b97f4a7c15;
  const uint64_t number = ++shrinks_[hash];
  const auto control = [&](int r) -> NcclControl& {
    return segment_->rank(r).shrink;
  };
  control(rank_).second.store(0);
  control(rank_).hash = hash;
  control(rank_).first.store(number);
  segment_->RingAll();
  std::vector<int> members;
  for (int r = 0; r < size_; ++r) {
    if (excluded.count(r) == 0) members.push_back(r);
  }
  const bool met = segment_->Await(
      rank_,
      [&] {
        return std::all_of(members.begin(), members.end(), [&](int r) {
          return control(r).first.load() == number && control(r).hash == hash;
        });
      },
      [this] { return Aborted(); });
  if (!met) return NcclFail(kNcclInternalError, "aborted");
  const bool shares = settings.shrink_share && !stopped_.load();
  return MakeChild(members, number, hash, false, settings, shares, made);
}

NcclResult NcclCommunicator::BeginFinalize() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (finalized_ || revoked_) {
    return NcclFail(kNcclInvalidArgument,
                    std::string("CommFinalize : the communicator is already ") +
                        (finalized_ ? "finalized" : "revoked"));
  }
  finalized_ = true;
  return kNcclSuccess;
}

NcclResult NcclCommunicator::Finalize() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return turn_ == launches_ || Ended(); });
  }
  if (!attached_.load()) return kNcclSuccess;
  segment_->rank(rank_).fate.store(NcclFate::kFinalized);
  segment_->RingAll();
  const bool all = segment_->Await(
      rank_,
      [this] {
        for (int r = 0; r < size_; ++r) {
          if (segment_->rank(r).fate.load() != NcclFate::kFinalized) {
            return false;
          }
        }
        return true;
      },
      [this] { return Ended(); });
  return all ? kNcclSuccess : NcclFail(kNcclInternalError, "aborted");
}

void NcclCommunicator::WakeAll() {
  { const std::lock_guard<std::mutex> lock(mutex_); }
  changed_.notify_all();
  if (attached_.load()) segment_->Ring(rank_);
}

void NcclCommunicator::Stop() {
  stopped_.store(true);
  WakeAll();
}

void NcclCommunicator::Abort() {
  family_->aborted.store(true);
  std::vector<std::weak_ptr<NcclCommunicator>> members;
  {
    const std::lock_guard<std::mutex> lock(family_->mutex);
    members = family_->members;
  }
  for (const auto& member : members) {
    const NcclCommunicatorPtr communicator = member.lock();
    if (communicator == nullptr) continue;
    if (communicator->attached_.load()) {
      const NcclSegment& segment = *communicator->segment_;
      segment.rank(communicator->rank_).fate.store(NcclFate::kAborted);
      segment.RingAll();
    }
    communicator->WakeAll();
    NcclCommunicatorPtr unfinished;
    {
      const std::lock_guard<std::mutex> lock(communicator->mutex_);
      unfinished = communicator->unfinished_;
    }
    if (unfinished != nullptr && !unfinished->Aborted()) unfinished->Abort();
  }
}

NcclResult NcclCommunicator::Revoke() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (revoked_) {
      return NcclFail(kNcclInvalidArgument,
                      "CommRevoke : the communicator is already revoked");
    }
    if (finalized_) {
      return NcclFail(kNcclInvalidArgument,
                      "CommRevoke : the communicator is finalized");
    }
    revoked_ = true;
  }
  Stop();
  return kNcclSuccess;
}

void NcclCommunicator::Drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return turn_ == launches_; });
}

NcclResult NcclCommunicator::CheckReady(const char* what) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ != kNcclSuccess) return error_;
    if (!busy_ && polls_ > 0) return kNcclSuccess;
  }
  return NcclFail(kNcclInvalidArgument,
                  std::string(what) +
                      " : Attempt to use communicator before the previous "
                      "operation returned ncclSuccess");
}

NcclResult NcclCommunicator::CheckOperational(const char* what) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (revoked_ || stopped_.load() || finalized_) {
      return NcclFail(kNcclInvalidUsage,
                      std::string(what) + " : the communicator was " +
                          (finalized_ ? "finalized" : "revoked"));
    }
  }
  return CheckReady(what);
}

bool NcclCommunicator::is_finalized() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return finalized_;
}

bool NcclCommunicator::is_healthy() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return attached_.load() && !Ended() && error_ == kNcclSuccess;
}

NcclResult NcclCommunicator::Poll() {
  TryPending(/*any_thread=*/false);
  bool looks = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ != kNcclSuccess) return error_;
    // The first answer after a call is always the same.
    if (polls_ == 0 || busy_) {
      ++polls_;
      return kNcclInProgress;
    }
    if (settings_.remote && attached_.load() && !Ended()) {
      const int64_t now = NowMilliseconds();
      looks = now >= last_look_ + 10;
      if (looks) last_look_ = now;
    }
  }
  if (!looks) return kNcclSuccess;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const NcclFate fate = segment_->rank(r).fate.load();
    if (fate == NcclFate::kFinalized) continue;
    if (fate == NcclFate::kLive && !segment_->HasDied(r)) continue;
    SetError(
        NcclFail(kNcclRemoteError,
                 "socketProgress: Connection closed by remote peer, rank " +
                     std::to_string(r)));
    return kNcclRemoteError;
  }
  return kNcclSuccess;
}

void NcclCommunicator::SetError(NcclResult error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error_ == kNcclSuccess) error_ = error;
}

void NcclCommunicator::StartJob(std::function<NcclResult()> job) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    busy_ = true;
    polls_ = 0;
  }
  std::thread([self = shared_from_this(), job = std::move(job)] {
    const NcclResult result = job();
    const std::lock_guard<std::mutex> lock(self->mutex_);
    if (result != kNcclSuccess && self->error_ == kNcclSuccess) {
      self->error_ = result;
    }
    self->busy_ = false;
    self->changed_.notify_all();
  }).detach();
}

void NcclCommunicator::AwaitJob() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
}

void NcclCommunicator::AddMade(const NcclCommunicatorPtr& child,
                               internal::NcclComm* place) {
  const std::lock_guard<std::mutex> lock(mutex_);
  made_.push_back({child, place});
}

void NcclCommunicator::DeliverMade() {
  std::vector<MadeChild> made;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    made.swap(made_);
  }
  for (const MadeChild& one : made) {
    __atomic_store_n(one.place, AddCommunicator(one.child), __ATOMIC_RELEASE);
  }
}

int NcclCommunicator::AddFactor(const NcclFactor& factor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  factors_[next_factor_] = std::make_shared<const NcclFactor>(factor);
  return next_factor_++;
}

std::shared_ptr<const NcclFactor> NcclCommunicator::FindFactor(int op) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = factors_.find(op);
  return found == factors_.end() ? nullptr : found->second;
}

bool NcclCommunicator::RemoveFactor(int op) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return factors_.erase(op) == 1;
}

NcclResult NcclCommunicator::Register(void* data, size_t bytes, void** handle) {
  const std::optional<MemoryLocation> location = LocateMemory(data);
  const char* const base =
      location ? static_cast<const char*>(location->base) : nullptr;
  if (!location || location->kind == MemoryLocation::Kind::kPinned ||
      static_cast<const char*>(data) + bytes > base + location->bytes) {
    return NcclFail(kNcclInvalidArgument,
                    "CommRegister : not memory of a device, or beyond it");
  }
  auto registration = std::make_unique<Registration>(Registration{data, bytes});
  const std::lock_guard<std::mutex> lock(mutex_);
  *handle = registration.get();
  registrations_[registration.get()] = std::move(registration);
  return kNcclSuccess;
}

NcclResult NcclCommunicator::Deregister(void* handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = registrations_.find(handle);
  if (found == registrations_.end()) {
    return NcclFail(kNcclInvalidUsage,
                    "CommDeregister : Could not find handle");
  }
  if (!LocateMemory(found->second->data)) {
    ReportFinding("ncclCommDeregister of " +
                  std::to_string(found->second->bytes) +
                  " bytes that were freed while they were registered");
  }
  registrations_.erase(found);
  return kNcclSuccess;
}

namespace {

struct Communicators {
  std::mutex mutex;
  std::unordered_map<internal::NcclComm, NcclCommunicatorPtr> live;
  // Numbers, since addresses of objects are reused. Handles are never
  // dereferenced.
  uintptr_t next_handle = 0x1000;
};

Communicators& All() {
  static Communicators* const all = new Communicators;
  return *all;
}

}  // namespace

internal::NcclComm AddCommunicator(const NcclCommunicatorPtr& communicator) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  const auto handle = reinterpret_cast<internal::NcclComm>(All().next_handle);
  All().next_handle += 0x10;
  All().live[handle] = communicator;
  return handle;
}

NcclCommunicatorPtr FindCommunicator(internal::NcclComm handle) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  const auto found = All().live.find(handle);
  return found == All().live.end() ? nullptr : found->second;
}

void RemoveCommunicator(internal::NcclComm handle) {
  const std::lock_guard<std::mutex> lock(All().mutex);
  All().live.erase(handle);
}

}  // namespace sherd::testing
