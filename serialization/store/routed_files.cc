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

// The store of one directory. Guarded by mutex_, but its files are used without
// it once they are there.
struct RoutedFiles::OpenStore {
  // The thread that runs the factory; none: no thread does.
  std::thread::id opener;
  std::unique_ptr<CheckpointStore> store;
  std::optional<StoreFiles> files;
  // Below it a store of files has those of its own.
  std::optional<FaultPointFiles> with_points;
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
  SHERD_ASSIGN_OR_RETURN(FileSystem* const files, FilesOf(*directory, root));
  return Route{files, std::move(full)};
}

absl::StatusOr<FileSystem*> RoutedFiles::FilesOf(const StoreAddress& address,
                                                 const std::string& root) {
  const std::thread::id self = std::this_thread::get_id();
  OpenStore* open;
  {
    absl::MutexLock lock(&mutex_);
    std::unique_ptr<OpenStore>& entry = stores_[root];
    if (entry == nullptr) entry = std::make_unique<OpenStore>();
    open = entry.get();
    if (NeedsThread(*open, self)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the factory of the scheme ", address.scheme, " uses ", root,
          ", the store that it is to open, or one whose factory does; expected "
          "other paths only"));
    }
    const auto nobody_opens = [open] {
      return open->opener == std::thread::id();
    };
    if (!nobody_opens()) {
      waits_[self] = open;
      mutex_.Await(absl::Condition(&nobody_opens));
      waits_.erase(self);
    }
    if (open->with_points.has_value()) return &*open->with_points;
    open->opener = self;
  }
  absl::StatusOr<std::unique_ptr<CheckpointStore>> store =
      OpenStoreOver(base_, address);
  absl::MutexLock lock(&mutex_);
  open->opener = std::thread::id();
  if (!store.ok()) return store.status();
  open->store = *std::move(store);
  open->files.emplace(*open->store, root);
  return &open->with_points.emplace(*open->files);
}

bool RoutedFiles::NeedsThread(const OpenStore& store,
                              std::thread::id thread) const {
  for (const OpenStore* at = &store; at->opener != std::thread::id();) {
    if (at->opener == thread) return true;
    const auto waiting = waits_.find(at->opener);
    if (waiting == waits_.end()) return false;
    at = waiting->second;
  }
  return false;
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
