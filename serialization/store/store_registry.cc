#include "sherd/serialization/store/store_registry.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/store/directory_store.h"

namespace sherd {
namespace {

constexpr size_t kMaxNameBytes = 200;

struct StoreFactories {
  absl::Mutex mutex;
  std::map<std::string, CheckpointStoreFactory> factories
      ABSL_GUARDED_BY(mutex);
};

StoreFactories& GetStoreFactories() {
  static StoreFactories* const registry = new StoreFactories;
  return *registry;
}

bool IsScheme(absl::string_view text) {
  return text.size() >= 2 && text.size() <= 32 &&
         absl::ascii_islower(text[0]) &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return absl::ascii_islower(c) || absl::ascii_isdigit(c) ||
                  c == '+' || c == '-';
         });
}

bool IsBuiltIn(absl::string_view scheme) {
  return scheme == kFileScheme || scheme == kObjectsScheme;
}

// Null if there is none.
CheckpointStoreFactory FactoryOf(const std::string& scheme) {
  StoreFactories& registry = GetStoreFactories();
  absl::MutexLock lock(&registry.mutex);
  const auto it = registry.factories.find(scheme);
  return it == registry.factories.end() ? nullptr : it->second;
}

absl::Status UnknownScheme(const std::string& address) {
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(address),
      " begins with a scheme of no store: expected file:, objects: or one that "
      "RegisterCheckpointStore was called with in this process; a path of a "
      "file with such a name begins with \"./\""));
}

}  // namespace

absl::Status ObjectWriter::Reserve(int64_t /*size*/) {
  return absl::OkStatus();
}
absl::Status ObjectWriter::StartWriteback(int64_t /*offset*/,
                                          int64_t /*bytes*/) {
  return absl::OkStatus();
}
absl::Status ObjectWriter::Sync() { return absl::OkStatus(); }
absl::Status ObjectWriter::FinishUnsynced() { return Finish(); }

absl::Status CheckpointStore::RemoveUnfinished() { return absl::OkStatus(); }
absl::StatusOr<int64_t> CheckpointStore::FreeBytes() {
  return std::numeric_limits<int64_t>::max();
}

bool IsObjectName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
         });
}

absl::Status RegisterCheckpointStore(const std::string& scheme,
                                     CheckpointStoreFactory factory) {
  if (!IsScheme(scheme) || factory == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "registering a store under ", Quoted(scheme),
        ": expected a factory, and 2 to 32 lower-case letters, digits, '+' and "
        "'-', a letter first"));
  }
  StoreFactories& registry = GetStoreFactories();
  absl::MutexLock lock(&registry.mutex);
  if (IsBuiltIn(scheme) ||
      !registry.factories.emplace(scheme, std::move(factory)).second) {
    return absl::AlreadyExistsError(
        absl::StrCat("there is a store of the scheme ", scheme, " already"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<StoreAddress>> ParseStoreAddress(
    const std::string& path) {
  const size_t colon = path.find(':');
  if (colon == std::string::npos || !IsScheme(path.substr(0, colon))) {
    return std::nullopt;
  }
  StoreAddress address = {path.substr(0, colon), path.substr(colon + 1)};
  if (!IsBuiltIn(address.scheme) && FactoryOf(address.scheme) == nullptr) {
    if (absl::StartsWith(address.location, "//")) return UnknownScheme(path);
    return std::nullopt;
  }
  if (address.location.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(path), " names no location, expected ", path, "LOCATION"));
  }
  return address;
}

bool IsInObjectStore(const std::string& path) {
  const absl::StatusOr<std::optional<StoreAddress>> address =
      ParseStoreAddress(path);
  return address.ok() && address->has_value() &&
         (*address)->scheme != kFileScheme;
}

absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenStoreOver(
    FileSystem& files, const StoreAddress& address) {
  if (IsBuiltIn(address.scheme)) {
    return std::make_unique<DirectoryStore>(files, address.location);
  }
  const CheckpointStoreFactory factory = FactoryOf(address.scheme);
  if (factory == nullptr) {
    return UnknownScheme(absl::StrCat(address.scheme, ":", address.location));
  }
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointStore> store,
                         factory(address.location));
  if (store == nullptr) {
    return absl::InternalError(
        absl::StrCat("the factory of the scheme ", address.scheme,
                     " returned OK and no store, for ", address.location));
  }
  return store;
}

absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenCheckpointStore(
    const std::string& address) {
  SHERD_ASSIGN_OR_RETURN(const std::optional<StoreAddress> parsed,
                         ParseStoreAddress(address));
  if (!parsed.has_value()) return UnknownScheme(address);
  return OpenStoreOver(FileSystem::Posix(), *parsed);
}

}  // namespace sherd
