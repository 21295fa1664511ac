#include "sherd/core/comm/store/store_session.h"

#include <cstdint>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

constexpr char kGivenUp[] = "given_up";

std::string SessionPrefix(absl::string_view group, int64_t number) {
  return absl::StrCat("group/", group, "/", number);
}

absl::Status Taken(int rank, absl::string_view place) {
  return WithRank(
      absl::InvalidArgumentError(absl::StrCat(
          "rank ", rank,
          " has joined already: two processes have the same rank, or ", place,
          " is left over from another run and must be removed")),
      rank);
}

// Records that this rank has entered, and refuses a second one.
absl::Status Hold(Store& store, const std::string& key, int rank,
                  absl::string_view place) {
  SHERD_ASSIGN_OR_RETURN(const int64_t holders, store.Add(key, 1));
  if (holders == 1) return absl::OkStatus();
  store.Add(key, -1).IgnoreError();
  return Taken(rank, place);
}

class SessionInStore final : public StoreSession {
 public:
  SessionInStore(std::shared_ptr<Store> base, const std::string& prefix,
                 std::string holder, int world_size)
      : StoreSession(std::make_shared<PrefixStore>(prefix, base)),
        base_(std::move(base)),
        prefix_(prefix),
        holder_(std::move(holder)),
        world_size_(world_size) {}

  void Leave() override {
    base_->Retire(prefix_, world_size_).IgnoreError();
    base_->Add(holder_, -1).IgnoreError();
  }

  void GiveUp(const absl::Status& why) override {
    store()->Set(kGivenUp, why.message()).IgnoreError();
    base_->Add(holder_, -1).IgnoreError();
  }

 private:
  const std::shared_ptr<Store> base_;
  const std::string prefix_;
  const std::string holder_;
  const int world_size_;
};

class SessionInFile final : public StoreSession {
 public:
  SessionInFile(std::shared_ptr<FileStore> file, const std::string& prefix,
                int world_size)
      : StoreSession(std::make_shared<PrefixStore>(prefix, file)),
        file_(std::move(file)),
        prefix_(prefix),
        world_size_(world_size) {}

  void Leave() override {
    // A file that is left behind is harmless: its keys identify its session.
    if (absl::Status status = file_->Retire(prefix_, world_size_);
        !status.ok()) {
      SHERD_LOG(kWarning) << "rendezvous file not cleaned up: "
                          << status.ToString();
    }
  }

  void GiveUp(const absl::Status& why) override {
    store()->Set(kGivenUp, why.message()).IgnoreError();
  }

 private:
  const std::shared_ptr<FileStore> file_;
  const std::string prefix_;
  const int world_size_;
};

// How often each rank of this process has entered a file.
class FileCounts {
 public:
  using Key = std::pair<std::string, int>;

  // Leaked: groups may be destroyed among static destructors.
  static FileCounts& Global() {
    static FileCounts* const counts = new FileCounts;
    return *counts;
  }

  int Next(const Key& key) {
    absl::MutexLock lock(&mutex_);
    return ++counts_[key];
  }

  void TakeBack(const Key& key) {
    absl::MutexLock lock(&mutex_);
    --counts_[key];
  }

 private:
  absl::Mutex mutex_;
  std::map<Key, int> counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<StoreSession>> EnterStoreSession(
    const std::shared_ptr<Store>& store, absl::string_view group, int rank,
    int world_size) {
  const std::string holder = absl::StrCat("group/", group, "/holder/", rank);
  const std::string counter = absl::StrCat("group/", group, "/sessions/", rank);
  SHERD_RETURN_IF_ERROR(Hold(*store, holder, rank, "the store"));
  for (;;) {
    SHERD_ASSIGN_OR_RETURN(const int64_t number, store->Add(counter, 1));
    const std::string prefix = SessionPrefix(group, number);
    SHERD_ASSIGN_OR_RETURN(const bool given_up, store->Contains(absl::StrCat(
                                                    prefix, "/", kGivenUp)));
    if (!given_up) {
      return std::make_unique<SessionInStore>(store, prefix, holder,
                                              world_size);
    }
  }
}

absl::StatusOr<std::unique_ptr<StoreSession>> EnterFileSession(
    const std::shared_ptr<FileStore>& file, absl::string_view group, int rank,
    int world_size) {
  const FileCounts::Key key = {absl::StrCat(file->path(), "\n", group), rank};
  FileCounts& counts = FileCounts::Global();
  for (;;) {
    const std::string prefix = SessionPrefix(group, counts.Next(key));
    const absl::StatusOr<bool> given_up =
        file->Contains(absl::StrCat(prefix, "/", kGivenUp));
    if (given_up.ok() && *given_up) continue;
    absl::Status status = given_up.status();
    if (status.ok()) {
      status = Hold(*file, absl::StrCat(prefix, "/holder/", rank), rank,
                    absl::StrCat("the file ", file->path()));
    }
    if (!status.ok()) {
      counts.TakeBack(key);
      return status;
    }
    return std::make_unique<SessionInFile>(file, prefix, world_size);
  }
}

}  // namespace sherd::internal
