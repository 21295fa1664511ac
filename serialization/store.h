#ifndef SHERD_SERIALIZATION_STORE_H_
#define SHERD_SERIALIZATION_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"

namespace sherd {

// Checkpoints in object stores: services that keep whole objects under names,
// and can neither rename one nor change a part of it. A program that has such a
// service implements CheckpointStore, registers it under a scheme, and gives
// paths like "scheme:location" to the functions of checkpoint.h and its
// siblings; see checkpoint_files.h. Two schemes are there:
//   file:DIR     a directory; as a path of a checkpoint the same as DIR.
//   objects:DIR  a directory that is used as an object store. A checkpoint in
//                it has the form of FORMAT.md, "Object stores".

// An object that is being written. It is not visible before Finish.
//
// Threads. WriteAt from several threads, on ranges that do not overlap.
class ObjectWriter {
 public:
  // Unless Finish was called, the object never appears, and the space it took
  // is given back, now or by CheckpointStore::RemoveUnfinished.
  virtual ~ObjectWriter() = default;

  // Writes all of `data` at `offset`, in any order, beyond the end too.
  //   kResourceExhausted  There is no space, or a quota is exceeded.
  virtual absl::Status WriteAt(int64_t offset,
                               absl::Span<const std::byte> data) = 0;

  // As those of File: hints, which may do nothing. After Sync, Finish finds
  // little left to do; it makes nothing visible.
  virtual absl::Status Reserve(int64_t size);
  virtual absl::Status StartWriteback(int64_t offset, int64_t bytes);
  virtual absl::Status Sync();

  // Makes the object visible, whole, in one step, in place of one that has its
  // name, and durable. Call it once; the writer is then only destroyed. Gaps
  // that nothing was written to are zeros.
  // Errors. The object is not there, or a former one is as it was, but for
  //   kUnknown  It is there, and may be lost with the power.
  virtual absl::Status Finish() = 0;

  // The same for an object that need not be durable, of which a loss of power
  // may leave anything: that of a save with `sync` = false. By default
  // Finish().
  virtual absl::Status FinishUnsynced();
};

// A flat set of named objects, such as a prefix of a bucket.
//
// What is required. All processes see the same objects, and in one order:
//   - Once a put or a removal has returned, each later read, Stat and List of
//     any process shows it. A read sees one object as it was put, never a mix.
//   - List returns each object that was there during the whole call, and none
//     that was not there at any moment of it.
//   - Of all PutIfAbsent of one name one succeeds, until the object is removed.
//   - A put that returned OK is durable, but for FinishUnsynced. A removal is
//     once a later put is.
//   - A put that ended with an error may still take effect later, unless
//     another has taken its name, or the error says otherwise.
// Amazon S3 documents strong consistency of reads and listings after puts and
// removals (User Guide, "Amazon S3 data consistency model"). For the put if
// absent it has PutObject with "If-None-Match: *" (API Reference), which fails
// with 412 if there is one, and with 409 if another request of that name is
// under way: then it must be repeated. A listing of several pages is several
// requests, in the order of the names, so that it has what was there all the
// time. Google Cloud Storage has ifGenerationMatch=0, Azure Blob Storage
// "If-None-Match: *"; whether they promise the rest is for who implements this
// to check.
//
// Names are those of IsObjectName. Others are kInvalidArgument.
//
// Errors. Each names the object. Beside those named: kUnavailable,
// kPermissionDenied, kInternal and others, as the service has them.
//
// Threads. Any.
class CheckpointStore {
 public:
  virtual ~CheckpointStore() = default;

  // The names that begin with `prefix`, sorted. Of a location where nothing was
  // put yet, none.
  virtual absl::StatusOr<std::vector<std::string>> List(
      absl::string_view prefix) = 0;

  // The object's size.
  //   kNotFound  There is no such object.
  virtual absl::StatusOr<int64_t> Stat(const std::string& name) = 0;

  // The object for reading: ReadAt and ReadMany read ranges, Size is known,
  // Sync makes one durable that was put by FinishUnsynced, if only once a later
  // put is, all others are kUnimplemented or fail. If the object is replaced or
  // removed afterwards, reads go on in the one that was opened, or fail.
  //   kNotFound  There is no such object.
  virtual absl::StatusOr<std::unique_ptr<File>> OpenForRead(
      const std::string& name) = 0;

  // Begins an object; see ObjectWriter. The store outlives the writer.
  virtual absl::StatusOr<std::unique_ptr<ObjectWriter>> BeginPut(
      const std::string& name) = 0;

  // Puts a short object, or replaces one, in one step. Errors as Finish.
  virtual absl::Status Put(const std::string& name,
                           absl::Span<const std::byte> data) = 0;

  // Puts a short object unless there is one of its name, in one step.
  //   kAlreadyExists      There is one: another's, or this call's own, if the
  //                       implementation repeats requests that were not
  //                       answered.
  //   kResourceExhausted  There is no space, or a quota is exceeded: this call
  //                       put nothing and never will. Not for a request that
  //                       the service turned away because it is busy
  //                       (kUnavailable), nor if an earlier one of this call
  //                       was not answered.
  //   others              It may be there or not.
  virtual absl::Status PutIfAbsent(const std::string& name,
                                   absl::Span<const std::byte> data) = 0;

  //   kNotFound  There is no such object. An implementation that does not know
  //              may say OK.
  virtual absl::Status Remove(const std::string& name) = 0;

  // Removes what puts have left whose process ended before Finish, as far as
  // that can be known. By default nothing: services have rules for that.
  virtual absl::Status RemoveUnfinished();

  // Bytes that may still be put. By default the largest number: unknown.
  virtual absl::StatusOr<int64_t> FreeBytes();
};

// Whether a store must accept a name: 1 to 200 letters, digits, '.', '_' and
// '-' of ASCII, the first no '.'.
bool IsObjectName(absl::string_view name);

// Opens the store of one location, what follows "scheme:" in an address. Called
// once per location and process, by any thread, and again after an error. It
// may use paths of other stores, such as a file of credentials, but not those
// whose factory uses this one: that use is kFailedPrecondition.
using CheckpointStoreFactory =
    std::function<absl::StatusOr<std::unique_ptr<CheckpointStore>>(
        const std::string& location)>;

// From here on, for the rest of the process, paths that begin with "scheme:"
// lead to stores of this factory. Call it before the first such path is used,
// on every rank.
//   kInvalidArgument  The scheme is not 2 to 32 lower-case letters, digits, '+'
//                     and '-', a letter first; or `factory` is null.
//   kAlreadyExists    It is registered, or built in.
absl::Status RegisterCheckpointStore(const std::string& scheme,
                                     CheckpointStoreFactory factory);

// The store of an address, "scheme:location".
//   kInvalidArgument  No such scheme is registered, or the location is empty.
//   others            From the factory.
absl::StatusOr<std::unique_ptr<CheckpointStore>> OpenCheckpointStore(
    const std::string& address);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_STORE_H_
