#include "sherd/core/comm/store/store_remote_access.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
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

// Lines with the number of the dtype and the sizes, then the elements in host
// memory; none for a tensor without data.
absl::StatusOr<std::string> Pack(const Tensor& shard) {
  std::string packed = absl::StrCat(static_cast<int>(shard.dtype()), "\n",
                                    absl::StrJoin(shard.sizes(), ","), "\n");
  if (shard.device().is_meta()) return packed;
  SHERD_ASSIGN_OR_RETURN(const Tensor here, shard.To(Device()));
  SHERD_ASSIGN_OR_RETURN(const Tensor dense, here.Contiguous());
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
  const Device device = parts[2].empty() ? Device(DeviceType::kMeta) : Device();
  SHERD_ASSIGN_OR_RETURN(
      Tensor shard, Tensor::Empty(sizes, {.dtype = static_cast<DType>(dtype),
                                          .device = device}));
  if (shard.numel() == 0) {
    return Tensor::Empty(sizes, {.dtype = static_cast<DType>(dtype)});
  }
  if (device.is_meta()) return shard;
  if (static_cast<size_t>(shard.nbytes()) != parts[2].size()) return malformed;
  if (!parts[2].empty()) {
    std::memcpy(shard.data(), parts[2].data(), parts[2].size());
  }
  return shard;
}

// How often a reader that waits for a publication checks whether its owner
// ended.
constexpr absl::Duration kLook = absl::Milliseconds(20);

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

  ~StoreRemoteAccess() override { Shutdown({.graceful = false}).IgnoreError(); }

  int rank() const override { return options_.rank; }
  const std::vector<std::string>& workers() const override { return workers_; }
  bool is_running() const override {
    absl::MutexLock lock(&mutex_);
    return running_;
  }

  absl::Status Publish(Publication publication) override {
    absl::MutexLock lock(&mutex_);
    SHERD_RETURN_IF_ERROR(CheckRunning());
    const PublicationId& id = publication.id;
    if (published_.count(id) > 0) {
      return absl::AlreadyExistsError(absl::StrCat(
          workers_[rank()], " has published ", id.ToString(), " already"));
    }
    const std::string place = Place(rank(), id);
    for (size_t i = 0; i < publication.shards.size(); ++i) {
      SHERD_ASSIGN_OR_RETURN(const std::string packed,
                             Pack(publication.shards[i]));
      SHERD_RETURN_IF_ERROR(
          options_.store->Set(absl::StrCat(place, "/", i), packed));
    }
    SHERD_RETURN_IF_ERROR(options_.store->Set(
        place,
        absl::StrCat(publication.fingerprint, " ", publication.shards.size())));
    SHERD_RETURN_IF_ERROR(options_.store->Set(NextKey(rank(), id.scope),
                                              absl::StrCat(id.number + 1)));
    published_[id] = publication.shards.size();
    return absl::OkStatus();
  }

  absl::Status Withdraw(const PublicationId& id) override {
    absl::MutexLock lock(&mutex_);
    SHERD_RETURN_IF_ERROR(CheckRunning());
    const auto found = published_.find(id);
    if (found == published_.end()) return NotPublished(rank(), id);
    absl::Status status = Remove(id, found->second);
    published_.erase(found);
    return status;
  }

  absl::StatusOr<Tensor> Fetch(int rank, const FetchRequest& request) override {
    if (rank < 0 || rank >= options_.world_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("fetch: worker ", rank, " of ", options_.world_size,
                       " does not exist"));
    }
    SHERD_ASSIGN_OR_RETURN(const std::string entry,
                           AwaitPublication(rank, request));
    const std::pair<absl::string_view, absl::string_view> numbers =
        absl::StrSplit(entry, ' ');
    Publication publication = {.id = request.publication, .shards = {}};
    size_t shards = 0;
    if (!absl::SimpleAtoi(numbers.first, &publication.fingerprint) ||
        !absl::SimpleAtoi(numbers.second, &shards)) {
      return absl::DataLossError("a publication in the store is malformed");
    }
    publication.shards.resize(shards);
    if (request.shard >= 0 && static_cast<size_t>(request.shard) < shards) {
      const std::string key =
          absl::StrCat(Place(rank, request.publication), "/", request.shard);
      absl::StatusOr<std::string> packed =
          options_.store->Get(key, Deadline::After(absl::ZeroDuration()));
      if (absl::IsDeadlineExceeded(packed.status())) {
        return NotPublished(rank, request.publication);
      }
      SHERD_RETURN_IF_ERROR(packed.status());
      SHERD_ASSIGN_OR_RETURN(publication.shards[request.shard],
                             Unpack(*packed));
    }
    SHERD_ASSIGN_OR_RETURN(
        const Tensor elements,
        ::sherd::internal::SelectPublished(publication, request));
    SHERD_ASSIGN_OR_RETURN(Tensor dense, elements.Contiguous());
    return ::sherd::internal::DeliverFetched(std::move(dense), request);
  }

  absl::Status Shutdown(const ShutdownOptions& options) override {
    absl::Status status;
    if (options.graceful && is_running()) status = AwaitAll(options);
    absl::MutexLock lock(&mutex_);
    if (!running_) return absl::OkStatus();
    running_ = false;
    status.Update(options_.store->Set(GoneKey(rank()), ""));
    for (const auto& [id, shards] : published_) {
      status.Update(Remove(id, shards));
    }
    return status;
  }

 private:
  static std::string Place(int rank, const PublicationId& id) {
    return absl::StrCat("publication/", rank, "/", id.scope, "/", id.number);
  }
  static std::string NextKey(int rank, absl::string_view scope) {
    return absl::StrCat("next/", rank, "/", scope);
  }
  static std::string GoneKey(int rank) { return absl::StrCat("gone/", rank); }

  absl::Status NotPublished(int rank, const PublicationId& id) const {
    return WithRank(absl::NotFoundError(absl::StrCat(
                        workers_[rank], " has withdrawn publication ",
                        id.ToString(), ", or never made it")),
                    rank);
  }

  absl::Status CheckRunning() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (running_) return absl::OkStatus();
    return absl::FailedPreconditionError("remote access has been shut down");
  }

  // The record that a worker wrote about a publication, once it exists.
  absl::StatusOr<std::string> AwaitPublication(int rank,
                                               const FetchRequest& request) {
    const PublicationId& id = request.publication;
    const Deadline deadline =
        Deadline::After(request.timeout.value_or(options_.timeout));
    const Deadline now = Deadline::After(absl::ZeroDuration());
    for (;;) {
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
      // Before the entry, which is written first.
      const absl::StatusOr<std::string> next =
          options_.store->Get(NextKey(rank, id.scope), now);
      absl::StatusOr<std::string> entry =
          options_.store->Get(Place(rank, id), now);
      if (!absl::IsDeadlineExceeded(entry.status())) return entry;
      uint64_t reached = 0;
      if (next.ok() && absl::SimpleAtoi(*next, &reached) &&
          id.number < reached) {
        return NotPublished(rank, id);
      }
      if (deadline.HasPassed()) {
        return WithRank(absl::DeadlineExceededError(
                            absl::StrCat(workers_[rank], " has not published ",
                                         id.ToString(), " in time")),
                        rank);
      }
      options_.store
          ->Wait({Place(rank, id)},
                 Deadline::After(std::min(kLook, deadline.Remaining())))
          .IgnoreError();
    }
  }

  absl::Status AwaitAll(const ShutdownOptions& options) {
    SHERD_RETURN_IF_ERROR(
        options_.store->Set(absl::StrCat("done/", rank()), ""));
    std::vector<std::string> all;
    for (int r = 0; r < options_.world_size; ++r) {
      all.push_back(absl::StrCat("done/", r));
    }
    return options_.store->Wait(
        all, Deadline::After(options.timeout.value_or(options_.timeout)));
  }

  absl::Status Remove(const PublicationId& id, size_t shards) {
    const std::string place = Place(rank(), id);
    absl::Status status = options_.store->Delete(place).status();
    for (size_t i = 0; i < shards; ++i) {
      status.Update(
          options_.store->Delete(absl::StrCat(place, "/", i)).status());
    }
    return status;
  }

  const RemoteAccessOptions options_;
  std::vector<std::string> workers_;
  mutable absl::Mutex mutex_;
  bool running_ ABSL_GUARDED_BY(mutex_) = true;
  // With their numbers of shards.
  std::map<PublicationId, size_t> published_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::shared_ptr<RemoteAccess>> StartStoreRemoteAccess(
    const RemoteAccessOptions& options) {
  auto access = std::make_shared<StoreRemoteAccess>(options);
  SHERD_RETURN_IF_ERROR(access->Start());
  return std::shared_ptr<RemoteAccess>(std::move(access));
}

}  // namespace sherd
