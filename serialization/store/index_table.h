#ifndef SHERD_SERIALIZATION_STORE_INDEX_TABLE_H_
#define SHERD_SERIALIZATION_STORE_INDEX_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sherd {

// The encoding that this build writes, and the newest that it reads.
inline constexpr uint32_t kIndexVersion = 1;

// The limit of a table's length; longer objects are damaged.
inline constexpr int64_t kMaxIndexBytes = int64_t{1} << 24;

// Of how many operations a table has the nonces.
inline constexpr size_t kIndexHistory = 64;

// The directory of a checkpoint in an object store after one operation: see
// directory_index.h.
struct IndexTable {
  // 1 for the first operation; 0: there was none yet.
  uint64_t number = 0;
  // Random numbers of the last operations, that of this table last: up to
  // kIndexHistory, and as many as there were, if those are fewer.
  std::vector<uint64_t> nonces;
  // The object of each name that a rename has given.
  std::map<std::string, std::string> names;
  // Objects that are removed, or about to be. None has a name.
  std::set<std::string> removed;

  // That of an operation up to this one; nullopt: it is too long ago.
  std::optional<uint64_t> NonceOf(uint64_t operation) const;
  // Whether a name leads to the object.
  bool IsNamed(absl::string_view object) const;

  friend bool operator==(const IndexTable&, const IndexTable&) = default;
};

// "index-", 20 digits and ".sherd".
std::string IndexObjectName(uint64_t number);
// The number of the table of that name; nullopt for all other names.
std::optional<uint64_t> NumberOfIndexObject(absl::string_view name);

// The bytes of the object.
std::string EncodeIndexTable(const IndexTable& table);

// Decodes untrusted bytes.
//
// Errors. All begin with `what`, the object.
//   kDataLoss       They are not a result of EncodeIndexTable.
//   kUnimplemented  A later version wrote it; the message has both versions.
absl::StatusOr<IndexTable> DecodeIndexTable(absl::string_view bytes,
                                            absl::string_view what);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_STORE_INDEX_TABLE_H_
