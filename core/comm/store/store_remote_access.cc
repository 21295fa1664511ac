#include "sherd/core/comm/store/store_remote_access.h"

#include <cstdint>
#include <cstring>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd {
namespace {

// Lines with the number of the dtype and the sizes, then the elements.
absl::StatusOr<std::string> Pack(const Tensor& shard) {
  SHERD_ASSIGN_OR_RETURN(const Tensor dense, shard.Contiguous());
  std::string packed = absl::StrCat(static_cast<int>(dense.dtype()), "\n",
                                    absl::StrJoin(dense.sizes(), ","), "\n");
  packed.append(static_cast<const char*>(dense.data()), dense.nbytes());
  return packed;
}

absl::StatusOr<Tensor> Unpack(absl::string_view packed) {
  const std::vector<absl::string_view> parts =
      absl::StrSplit(packed, absl::MaxSplits('\n', 2));
  const absl::Status malformed =
      absl::DataLossError("a shard in the store is malformed");
  int dtype;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &dtype) || dtype < 0 ||
      dtype >= kNumDTypes) {
    return malformed;
  }
  std::vector<int64_t> sizes;
  for (absl::string_view text :
       absl::StrSplit(parts[1], ',', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(text, &sizes.emplace_back())) return malformed;
  }
  SHERD_ASSIGN_OR_RETURN(
      Tensor shard, Tensor::Empty(sizes, {.dtype = static_cast<DType>(dtype)}));
  if (static_cast<size_t>(shard.nbytes()) != parts[2].size()) return malformed;
  if (!parts[2].empty()) {
    std::memcpy(shard.data(), parts[2].data(), parts[2].size());
  }
  return shard;
}

class StoreRemoteAccess final : public RemoteAccess {
 public:
  explicit StoreRemoteAccess(const RemoteAccessOptions& options)
      : options_(options) {}

  absl::Status Start() {
    std::vector<std::string> keys;
    for (int r = 0; r < options_.world_size; ++r) {
      keys.push_back(absl::StrCat("worker/", r));
    }
    SHERD_RETURN_IF_ERROR(
        options_.store->Set(keys[options_.rank], options_.name));
    SHERD_ASSIGN_OR_RETURN(
        workers_,
        options_.store->MultiGet(keys, Deadline::After(options_.timeout)));
    const std::set<std::string> names(workers_.begin(), workers_.end());
    if (names.size() == workers_.size()) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat(
        "two workers have one name: ", absl::StrJoin(workers_, ", ")));
  }

  ~StoreRemoteAccess() override { Shutdown(/*graceful=*/false).IgnoreError(); }

  int rank() const override { return options_.rank; }
  const std::vector<std::string>& workers() const override { return workers_; }

  absl::Status Publish(absl::string_view key, Tensor shard) override {
    absl::MutexLock lock(&mutex_);
    SHERD_RETURN_IF_ERROR(CheckRunning());
    const std::string place = Place(rank(), key);
    if (published_.count(place) > 0) {
      return absl::AlreadyExistsError(absl::StrCat(
          workers_[rank()], " has published \"", key, "\" already"));
    }
    SHERD_ASSIGN_OR_RETURN(const std::string packed, Pack(shard));
    SHERD_RETURN_IF_ERROR(options_.store->Set(place, packed));
    published_.insert(place);
    return absl::OkStatus();
  }

  absl::Status Withdraw(absl::string_view key) override {
    absl::MutexLock lock(&mutex_);
    SHERD_RETURN_IF_ERROR(CheckRunning());
    const std::string place = Place(rank(), key);
    if (published_.erase(place) == 0) return NotPublished(rank(), key);
    return options_.store->Delete(place).status();
  }

  absl::StatusOr<Tensor> Fetch(int rank, absl::string_view key,
                               absl::Duration /*timeout*/) override {
    if (rank < 0 || rank >= options_.world_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("remote access: worker ", rank, " of ",
                       options_.world_size, " does not exist"));
    }
    {
      absl::MutexLock lock(&mutex_);
      SHERD_RETURN_IF_ERROR(CheckRunning());
    }
    SHERD_ASSIGN_OR_RETURN(const bool gone,
                           options_.store->Contains(GoneKey(rank)));
    if (gone) {
      return WithFailedRank(
          absl::UnavailableError(
              absl::StrCat(workers_[rank], " has ended its remote access")),
          rank);
    }
    absl::StatusOr<std::string> packed = options_.store->Get(
        Place(rank, key), Deadline::After(absl::ZeroDuration()));
    if (absl::IsDeadlineExceeded(packed.status())) {
      return NotPublished(rank, key);
    }
    SHERD_RETURN_IF_ERROR(packed.status());
    return Unpack(*packed);
  }

  absl::Status Shutdown(bool graceful) override {
    {
      absl::MutexLock lock(&mutex_);
      if (!running_) return absl::OkStatus();
      if (!graceful) return Close();
    }
    SHERD_RETURN_IF_ERROR(
        options_.store->Set(absl::StrCat("done/", rank()), ""));
    std::vector<std::string> all;
    for (int r = 0; r < options_.world_size; ++r) {
      all.push_back(absl::StrCat("done/", r));
    }
    SHERD_RETURN_IF_ERROR(
        options_.store->Wait(all, Deadline::After(options_.timeout)));
    absl::MutexLock lock(&mutex_);
    return Close();
  }

 private:
  static std::string Place(int rank, absl::string_view key) {
    return absl::StrCat("shard/", rank, "/", key);
  }
  static std::string GoneKey(int rank) { return absl::StrCat("gone/", rank); }

  absl::Status NotPublished(int rank, absl::string_view key) const {
    return WithRank(absl::NotFoundError(absl::StrCat(
                        workers_[rank], " has not published \"", key, "\"")),
                    rank);
  }

  absl::Status CheckRunning() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (running_) return absl::OkStatus();
    return absl::FailedPreconditionError("remote access has been shut down");
  }

  absl::Status Close() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    running_ = false;
    absl::Status status = options_.store->Set(GoneKey(rank()), "");
    for (const std::string& place : published_) {
      status.Update(options_.store->Delete(place).status());
    }
    return status;
  }

  const RemoteAccessOptions options_;
  std::vector<std::string> workers_;
  absl::Mutex mutex_;
  bool running_ ABSL_GUARDED_BY(mutex_) = true;
  // Keys in the store.
  std::set<std::string> published_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<RemoteAccess>> StartStoreRemoteAccess(
    const RemoteAccessOptions& options) {
  auto access = std::make_unique<StoreRemoteAccess>(options);
  SHERD_RETURN_IF_ERROR(access->Start());
  return std::unique_ptr<RemoteAccess>(std::move(access));
}

}  // namespace sherd
