#include "sherd/serialization/store/directory_index.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace {

constexpr char kTables[] = "index-";
// Each time another operation has taken effect.
constexpr int kAttempts = 10000;
// Each time so many others that the tables of a listing are gone; or the
// whole directory is removed.
constexpr int kLooks = 100;

uint64_t NewNonce() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

// `table` with the number and nonce of the next operation.
absl::Status Advance(IndexTable& table, uint64_t nonce,
                     const std::string& where) {
  if (table.number == std::numeric_limits<uint64_t>::max()) {
    return absl::FailedPreconditionError(absl::StrCat(
        where,
        " has an index of the largest number; copy the checkpoint to "
        "another place"));
  }
  ++table.number;
  table.nonces.push_back(nonce);
  if (table.nonces.size() > kIndexHistory) {
    table.nonces.erase(table.nonces.begin());
  }
  return absl::OkStatus();
}

}  // namespace

DirectoryIndex::DirectoryIndex(CheckpointStore& store, std::string where)
    : store_(store), where_(std::move(where)) {}

absl::StatusOr<IndexTable> DirectoryIndex::Read(
    std::vector<std::string>* objects) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    SHERD_ASSIGN_OR_RETURN(
        std::vector<std::string> names,
        store_.List(objects == nullptr ? kTables : absl::string_view()));
    uint64_t newest = 0;
    for (const std::string& name : names) {
      newest = std::max(newest, NumberOfIndexObject(name).value_or(0));
    }
    absl::StatusOr<IndexTable> table = IndexTable();
    if (newest > 0) {
      table = ReadTable(newest);
    } else {
      // All may have been replaced while they were listed.
      SHERD_ASSIGN_OR_RETURN(const std::vector<uint64_t> now, ListTables());
      if (!now.empty()) continue;
    }
    // A newer one is there.
    if (absl::IsNotFound(table.status())) continue;
    if (objects != nullptr) *objects = std::move(names);
    return table;
  }
  return absl::AbortedError(absl::StrCat(
      "the index of ", where_, " is replaced faster than it can be read"));
}

absl::Status DirectoryIndex::Update(
    absl::FunctionRef<absl::Status(IndexTable&)> change) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    SHERD_ASSIGN_OR_RETURN(IndexTable table, Read());
    RemoveMarked(table);
    SHERD_RETURN_IF_ERROR(change(table));
    SHERD_ASSIGN_OR_RETURN(const bool done, Append(table));
    if (done) return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat(
      "others have changed ", where_, " ", kAttempts,
      " times while this process tried to; end all but one of the jobs that "
      "save there"));
}

absl::StatusOr<std::vector<uint64_t>> DirectoryIndex::ListTables() {
  SHERD_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                         store_.List(kTables));
  std::vector<uint64_t> numbers;
  for (const std::string& name : names) {
    if (const auto number = NumberOfIndexObject(name)) {
      numbers.push_back(*number);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

absl::StatusOr<IndexTable> DirectoryIndex::ReadTable(uint64_t number) {
  const std::string name = IndexObjectName(number);
  SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                         store_.OpenForRead(name));
  SHERD_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  if (size < 0 || size > kMaxIndexBytes) {
    return absl::DataLossError(absl::StrCat(JoinPath(where_, name), " has ",
                                            size, " bytes, expected at most ",
                                            kMaxIndexBytes));
  }
  std::string bytes(static_cast<size_t>(size), '\0');
  SHERD_RETURN_IF_ERROR(
      file->ReadAt(0, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()),
                                     bytes.size())));
  SHERD_ASSIGN_OR_RETURN(IndexTable table,
                         DecodeIndexTable(bytes, JoinPath(where_, name)));
  if (table.number == number) return table;
  return absl::DataLossError(absl::StrCat(
      JoinPath(where_, name), " has the index of number ", table.number));
}

// Puts `next`, an edited copy of the newest table, as the one after that.
// Returns false if another operation was faster.
absl::StatusOr<bool> DirectoryIndex::Append(IndexTable& next) {
  const uint64_t nonce = NewNonce();
  SHERD_RETURN_IF_ERROR(Advance(next, nonce, where_));
  const std::string bytes = EncodeIndexTable(next);
  if (static_cast<int64_t>(bytes.size()) > kMaxIndexBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the index of ", where_, " would have ", bytes.size(),
                     " bytes, expected at most ", kMaxIndexBytes,
                     "; keep fewer steps, or use another place"));
  }
  const absl::Status put =
      store_.PutIfAbsent(IndexObjectName(next.number), AsBytes(bytes));
  // Nothing was put, and there is no space to find that out by another put.
  if (absl::IsResourceExhausted(put)) return put;
  if (!put.ok() && !absl::IsAlreadyExists(put)) {
    return Settle(next.number, nonce, put);
  }
  const absl::StatusOr<bool> done =
      HasTakenEffect(next.number, nonce, put.ok());
  if (done.ok() || absl::IsUnknown(done.status())) return done;
  return Settle(next.number, nonce, done.status());
}

// `was_put`: the put has returned OK. See the class.
absl::StatusOr<bool> DirectoryIndex::HasTakenEffect(uint64_t number,
                                                    uint64_t nonce,
                                                    bool was_put) {
  for (int attempt = 0; attempt < kLooks; ++attempt) {
    SHERD_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, ListTables());
    RemoveOldTables(numbers);
    const uint64_t newest = numbers.empty() ? 0 : numbers.back();
    // It was there a moment ago.
    if (newest < number) continue;
    const bool is_kept =
        newest - number < kKeptTables &&
        (number == 1 ||
         std::binary_search(numbers.begin(), numbers.end(), number - 1));
    if (is_kept && was_put) return true;
    // The larger ones were replaced while they were listed.
    if (!is_kept && newest == number) continue;
    const absl::StatusOr<IndexTable> table = ReadTable(newest);
    if (absl::IsNotFound(table.status())) continue;
    SHERD_RETURN_IF_ERROR(table.status());
    if (const auto found = table->NonceOf(number)) return *found == nonce;
    return absl::UnknownError(absl::StrCat(
        "this process has slept while others have changed ", where_, " ",
        newest - number, " times: whether its change number ", number,
        " was one of them is not known"));
  }
  return absl::AbortedError(absl::StrCat(
      "the index of ", where_, " is replaced faster than it can be read"));
}

// After an error of a put, or of asking for its outcome: sees to it that the
// put has not taken effect and never will, and returns the error; or finds that
// it has, and returns true.
absl::StatusOr<bool> DirectoryIndex::Settle(uint64_t number, uint64_t nonce,
                                            const absl::Status& error) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    absl::StatusOr<IndexTable> table = Read();
    if (!table.ok()) break;
    const uint64_t own = NewNonce();
    if (!Advance(*table, own, where_).ok()) break;
    const absl::Status put = store_.PutIfAbsent(
        IndexObjectName(table->number), AsBytes(EncodeIndexTable(*table)));
    if (!put.ok() && !absl::IsAlreadyExists(put)) break;
    const absl::StatusOr<bool> done =
        HasTakenEffect(table->number, own, put.ok());
    if (!done.ok()) break;
    if (!*done) continue;
    const std::optional<uint64_t> found = table->NonceOf(number);
    if (!found.has_value()) break;
    if (*found == nonce) return true;
    return error;
  }
  return absl::UnknownError(
      absl::StrCat(error.message(), "; whether ", where_,
                   " was changed nevertheless is not known"));
}

void DirectoryIndex::RemoveMarked(IndexTable& table) {
  for (auto it = table.removed.begin(); it != table.removed.end();) {
    const absl::Status removed = store_.Remove(*it);
    const bool gone = removed.ok() || absl::IsNotFound(removed);
    it = gone ? table.removed.erase(it) : std::next(it);
  }
}

// In their order, so that the numbers that are there have no gap at their end.
void DirectoryIndex::RemoveOldTables(const std::vector<uint64_t>& numbers) {
  for (const uint64_t number : numbers) {
    if (numbers.back() - number < kKeptTables) return;
    const absl::Status removed = store_.Remove(IndexObjectName(number));
    if (!removed.ok() && !absl::IsNotFound(removed)) return;
  }
}

}  // namespace sherd
