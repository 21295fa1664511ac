#ifndef SHERD_SERIALIZATION_STORE_STORE_REGISTRY_H_
#define SHERD_SERIALIZATION_STORE_STORE_REGISTRY_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/store.h"

namespace sherd {

inline constexpr char kFileScheme[] = "file";
inline constexpr char kObjectsScheme[] = "objects";

// "scheme:location" in its parts.
struct StoreAddress {
  std::string scheme;
  std::string location;
};

// The parts of a path that begins with a scheme that is built in or registered;
// nullopt: it is a plain path.
//   kInvalidArgument  An unknown scheme and "://"; or no location.
absl::StatusOr<std::optional<StoreAddress>> ParseStoreAddress(
    const std::string& path);

// Whether a path is that of an object store or in one: a file there appears
// when it is whole, and most cannot be renamed (checkpoint_files.h).
bool IsInObjectStore(const std::string& path);

// Opens a store; `files`, which outlives it, has the directories of the schemes
// that are built in.
absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenStoreOver(
    FileSystem& files, const StoreAddress& address);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_STORE_STORE_REGISTRY_H_
