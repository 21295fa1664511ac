#include "sherd/serialization/store/routed_files.h"

#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/fault_point_files.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/store.h"
#include "sherd/serialization/store/store_files.h"
#include "sherd/serialization/store/store_registry.h"

namespace sherd {
namespace {

absl::string_view LastPart(absl::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

// The store of one directory.
class RoutedFiles::OpenStore {
 public:
  // The files in it, which live as long as this. Opens it the first time, and
  // again after an error; the factory of a store may use paths of others, so no
  // lock is held while it runs.
  //   kFailedPrecondition  The factory of this store, on this thread, asks.
  absl::StatusOr<FileSystem*> Files(FileSystem& base,
                                    const StoreAddress& address,
                                    const std::string& root) {
    const std::thread::id self = std::this_thread::get_id();
    {
      absl::MutexLock lock(&mutex_);
      if (opener_ == self) {
        return absl::FailedPreconditionError(absl::StrCat(
            "the factory of the scheme ", address.scheme, " uses ", root,
            ", the store that it is to open; expected other paths only"));
      }
      const auto nobody_opens = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return opener_ == std::thread::id();
      };
      mutex_.Await(absl::Condition(&nobody_opens));
      if (with_points_.has_value()) return &*with_points_;
      opener_ = self;
    }
    absl::StatusOr<std::unique_ptr<CheckpointStore>> store =
        OpenStoreOver(base, address);
    absl::MutexLock lock(&mutex_);
    opener_ = std::thread::id();
    if (!store.ok()) return store.status();
    store_ = *std::move(store);
    files_.emplace(*store_, root);
    return &with_points_.emplace(*files_);
  }

 private:
  absl::Mutex mutex_;
  // The thread that runs the factory; none: no thread does.
  std::thread::id opener_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<CheckpointStore> store_ ABSL_GUARDED_BY(mutex_);
  std::optional<StoreFiles> files_ ABSL_GUARDED_BY(mutex_);
  // Below it a store of files has those of its own.
  std::optional<FaultPointFiles> with_points_ ABSL_GUARDED_BY(mutex_);
};

RoutedFiles::RoutedFiles(FileSystem& base) : base_(base) {}
RoutedFiles::~RoutedFiles() = default;

absl::StatusOr<RoutedFiles::Route> RoutedFiles::RouteOf(const std::string& path,
                                                        bool is_file) {
  SHERD_ASSIGN_OR_RETURN(const std::optional<StoreAddress> address,
                         ParseStoreAddress(path));
  if (!address.has_value()) return Route{&base_, path};
  if (address->scheme == kFileScheme) {
    return Route{&base_, address->location};
  }
  std::string full = path;
  while (full.back() == '/') full.pop_back();
  const std::string root = is_file ? ParentDirectory(full) : full;
  SHERD_ASSIGN_OR_RETURN(const std::optional<StoreAddress> directory,
                         ParseStoreAddress(root));
  if (!directory.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is a directory of objects, expected a file in it"));
  }
  SHERD_ASSIGN_OR_RETURN(FileSystem* const files,
                         StoreOf(root).Files(base_, *directory, root));
  return Route{files, std::move(full)};
}

RoutedFiles::OpenStore& RoutedFiles::StoreOf(const std::string& root) {
  absl::MutexLock lock(&mutex_);
  std::unique_ptr<OpenStore>& store = stores_[root];
  if (store == nullptr) store = std::make_unique<OpenStore>();
  return *store;
}

absl::StatusOr<RoutedFiles::Route> RoutedFiles::RouteOfEither(
    const std::string& path) {
  const auto parent = ParseStoreAddress(ParentDirectory(path));
  const bool is_in_store = parent.ok() && parent->has_value();
  return RouteOf(path, is_in_store && StoreFiles::IsFileName(LastPart(path)));
}

absl::StatusOr<std::unique_ptr<File>> RoutedFiles::OpenForRead(
    const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const Route route, RouteOf(path, /*is_file=*/true));
  return route.files->OpenForRead(route.path);
}

absl::StatusOr<std::unique_ptr<File>> RoutedFiles::Create(
    const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const Route route, RouteOf(path, /*is_file=*/true));
  return route.files->Create(route.path);
}

absl::Status RoutedFiles::CreateDirectories(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const Route route, RouteOf(path, /*is_file=*/false));
  return route.files->CreateDirectories(route.path);
}

absl::Status RoutedFiles::Rename(const std::string& from,
                                 const std::string& to) {
  return Place(from, to, /*if_absent=*/false);
}

absl::Status RoutedFiles::RenameNew(const std::string& from,
                                    const std::string& to) {
  return Place(from, to, /*if_absent=*/true);
}

absl::Status RoutedFiles::Place(const std::string& from, const std::string& to,
                                bool if_absent) {
  SHERD_ASSIGN_OR_RETURN(const Route source, RouteOf(from, /*is_file=*/true));
  SHERD_ASSIGN_OR_RETURN(const Route target, RouteOf(to, /*is_file=*/true));
  if (source.files != target.files) {
    return absl::InvalidArgumentError(absl::StrCat(
        "renaming ", from, " to ", to, ": expected both in one store"));
  }
  return if_absent ? target.files->RenameNew(source.path, target.path)
                   : target.files->Rename(source.path, target.path);
}

absl::Status RoutedFiles::Remove(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const Route route, RouteOf(path, /*is_file=*/true));
  return route.files->Remove(route.path);
}

absl::Status RoutedFiles::RemoveAll(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const Route route, RouteOfEither(path));
  return route.files->RemoveAll(route.path);
}

absl::StatusOr<std::vector<std::string>> RoutedFiles::List(
    const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const Route route, RouteOf(path, /*is_file=*/false));
  return route.files->List(route.path);
}

absl::Status RoutedFiles::SyncDirectory(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const std::optional<StoreAddress> address,
                         ParseStoreAddress(path));
  // Also the directory around that of a store, which is none of the store's.
  const bool is_store = address.has_value() && address->scheme != kFileScheme;
  if (is_store && LastPart(path) == "..") return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(const Route route, RouteOf(path, /*is_file=*/false));
  return route.files->SyncDirectory(route.path);
}

absl::StatusOr<FileKind> RoutedFiles::KindOf(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const Route route, RouteOfEither(path));
  return route.files->KindOf(route.path);
}

absl::StatusOr<int64_t> RoutedFiles::FreeBytes(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const Route route, RouteOf(path, /*is_file=*/false));
  return route.files->FreeBytes(route.path);
}

FileSystem& CheckpointFiles() {
  static RoutedFiles* const files = new RoutedFiles(FileSystem::Posix());
  return *files;
}

}  // namespace sherd
