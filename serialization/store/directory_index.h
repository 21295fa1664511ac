#ifndef SHERD_SERIALIZATION_STORE_DIRECTORY_INDEX_H_
#define SHERD_SERIALIZATION_STORE_DIRECTORY_INDEX_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/serialization/store.h"
#include "sherd/serialization/store/index_table.h"

namespace sherd {

// The operations on the directory of a checkpoint in an object store, in one
// order for all processes and hosts: number n put the immutable object
// IndexObjectName(n), the whole table after it. All know the directory by the
// table with the largest number.
//
// An operation reads the newest table n, decides by it, and puts n + 1 if that
// is absent; if another was faster, it begins again with that one's table. So
// each operation has decided by the state that it has changed.
//
// Old tables go: a process that sees table m removes those up to m -
// kKeptTables, in their order, never the newest. So an operation may have slept
// between its read of table n and its put, while table n + 1 came and went: the
// put succeeds, and has no place in the order. It finds out as follows. Let m
// be the largest number in a listing after the put, of at least n + 1.
//   n is listed, and m < n + 1 + kKeptTables
//                No process has removed n + 1: that takes a table of at least
//                n + 1 + kKeptTables, the largest number never falls, and n
//                goes first. So this put was the first of that number: it
//                counts.
//   otherwise    Table m has the nonces of the last kIndexHistory operations.
//                It counts if that of n + 1 is its own.
//   further back kUnknown: of more than kIndexHistory operations nothing is
//                remembered.
// A listing may take as long as many operations, of which it shows some or
// none, and lack tables that have gone meanwhile. If it shows neither n nor a
// table larger than n + 1, it is made again.
// No reader takes the table of a put that does not count for the directory, as
// a larger number is there; the next operation removes it.
//
// A put that ended with an error may take effect later, but for one that found
// no space (store.h). Then one more table is put, without a change: either it
// takes that number, and the first put never takes effect, or it finds the
// first one's nonce in the table below.
//
// Readers. A table that is gone between the listing and the read is not the
// newest: they list again, and so they do if there is none. A listing during
// which more than kKeptTables operations begin and end may show an older state
// than that at its beginning; operations are not misled by it, since they would
// lose.
//
// Threads. Any.
//
// Cost. A read is a listing of up to some kKeptTables names and the read of one
// object; an operation that meets no other one takes a put and a listing more,
// and a removal or two.
class DirectoryIndex {
 public:
  static constexpr uint64_t kKeptTables = 16;

  // `store` is borrowed. `where` is for messages.
  DirectoryIndex(CheckpointStore& store, std::string where);

  // The newest table; of number 0 if there is none. `objects`, unless null,
  // receives all names of the listing by which it was the newest.
  //   kDataLoss, kUnimplemented  It cannot be decoded.
  //   kAborted                   Others were always faster.
  //   others                     From the store.
  absl::StatusOr<IndexTable> Read(std::vector<std::string>* objects = nullptr);

  // One operation: `change` edits names and removed marks, or returns an error,
  // which is returned, and nothing is changed. It may be called several times,
  // each time with the newest table, in which objects that are marked as
  // removed are there no more; what it asks of the store was so after that
  // table was the newest.
  // Errors. As Read. The directory is unchanged, but for
  //   kUnknown  The operation may have taken effect.
  absl::Status Update(absl::FunctionRef<absl::Status(IndexTable&)> change);

 private:
  absl::StatusOr<std::vector<uint64_t>> ListTables();
  absl::StatusOr<IndexTable> ReadTable(uint64_t number);
  absl::StatusOr<bool> Append(IndexTable& next);
  absl::StatusOr<bool> HasTakenEffect(uint64_t number, uint64_t nonce,
                                      bool was_put);
  absl::StatusOr<bool> Settle(uint64_t number, uint64_t nonce,
                              const absl::Status& error);
  void RemoveMarked(IndexTable& table);
  void RemoveOldTables(const std::vector<uint64_t>& numbers);

  CheckpointStore& store_;
  const std::string where_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_STORE_DIRECTORY_INDEX_H_
