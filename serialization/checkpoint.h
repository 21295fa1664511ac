#ifndef SHERD_SERIALIZATION_CHECKPOINT_H_
#define SHERD_SERIALIZATION_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/serialization/checkpoint_files.h"

namespace sherd {

// A checkpoint is a directory: the file manifest.sherd, and one safetensors
// file for each rank that has data. The manifest names the others, and
// replacing it replaces the checkpoint. See FORMAT.md. Where a checkpoint is
// read, its path may also be that of a manifest, as of a step of a series
// (checkpoint_series.h).

// The time that a rank spent in the phases of a load.
struct LoadPhases {
  // Until it knew what to read: the manifest, and the files' sizes.
  absl::Duration plan = absl::ZeroDuration();
  // Reading data, and comparing it with CRCs, but for what is read while other
  // data is exchanged.
  absl::Duration read = absl::ZeroDuration();
  // Moving data between ranks, and waiting for those that read before it.
  absl::Duration exchange = absl::ZeroDuration();
};

// The time that a rank spent in the phases of a save.
struct SavePhases {
  // Until it knew what to write; on rank 0 also until it had the lease.
  absl::Duration plan = absl::ZeroDuration();
  // Reading replicas, if they are compared.
  absl::Duration compare = absl::ZeroDuration();
  // Writing its file, with the CRCs and, of an incremental save, the hashes.
  absl::Duration write = absl::ZeroDuration();
  // With SaveOptions::sync: after the last write, until the medium had all.
  absl::Duration sync = absl::ZeroDuration();
};

// Totals of a save or load over all ranks.
struct CheckpointStats {
  // Bytes of the elements saved or loaded.
  int64_t tensor_bytes = 0;
  // Bytes written to data files, of which a small part are headers, or read
  // from them.
  int64_t file_bytes = 0;
  // Bytes that ranks sent to one another.
  int64_t exchanged_bytes = 0;
  // Entry r is that of rank r: one list is that of a load, the other of a save.
  std::vector<LoadPhases> load_phases;
  std::vector<SavePhases> save_phases;
  // For which the others waited: it planned and read longest, or of a save
  // spent most time in all phases together.
  int slowest_rank = 0;
  // Of a load: the exchanges of data, each of which moves many tensors; and the
  // time in which the ranks compared the CRCs of chunks that several of them
  // read parts of, as this rank saw it.
  int64_t exchanges = 0;
  absl::Duration check = absl::ZeroDuration();
  // Of a save: from the end of all writing until the new checkpoint was in
  // place, as this rank saw it.
  absl::Duration commit = absl::ZeroDuration();
};

struct SaveOptions {
  // Null: CheckpointFiles().
  FileSystem* files = nullptr;
  // Makes files and directory durable before and after the manifest is
  // replaced. Without it a power failure may leave a manifest whose data files
  // are incomplete (which a load detects); the end of a process is harmless
  // either way. The same on all ranks.
  bool sync = true;
  // With `sync`, a data file is synced each time that so many bytes were
  // written, so that no sync takes a slow disk longer than `timeout`.
  int64_t max_unsynced_bytes = int64_t{256} << 20;
  // How long a rank may make no progress. Unset: the group's timeout. The same
  // on all ranks.
  std::optional<absl::Duration> timeout = std::nullopt;
  // How long a save whose process cannot be seen, as on another host, keeps
  // others from saving after the last sign of life; see "One at a time". A
  // quarter of it passes between two signs. 1 ms to a year.
  absl::Duration lease_duration = absl::Minutes(2);
  // Whether shards that several ranks hold are compared before anything is
  // written: see "Replicas". The same on all ranks.
  bool check_replicas = false;
  // Of a StateDict: names of values that are each rank's own, with all that is
  // below them. The same on all ranks, in any order. A map of tensors has none.
  std::vector<std::string> per_rank = {};
  // Set on success, if given.
  CheckpointStats* stats = nullptr;
};

// Whether there is a checkpoint at `path`, for a program that begins afresh if
// there is none. A damaged one exists, and so does one that lacks a data file,
// or has lost its manifest, which `sherd recover` rebuilds.
//
// Not collective. Several ranks that ask may get different answers, if a save
// ends meanwhile: one of them asks and informs the others, or all of them load,
// and kNotFound is the answer that they have in common.
//
//   kFailedPrecondition  The manifest is a link that leads nowhere, as to a
//                        disk that is not mounted.
//   others               From the file system, if it does not answer (see
//                        FileSystem::KindOf).
absl::StatusOr<bool> CheckpointExists(const std::string& path,
                                      FileSystem& files = CheckpointFiles());

// Saves tensors as the checkpoint `path`, a directory that is created if
// necessary, or a place in an object store (checkpoint_files.h), that all ranks
// see. An existing checkpoint is replaced atomically: at every instant a reader
// finds the complete old one or the complete new one.
//
// Collective. Every rank of `group`, by default the default group, calls this
// with the same path and names. Every tensor is spread over `group`.
//
// Replicas. Each element is saved once: of the ranks that hold a shard, the one
// with the least to write, on the host with the least to write, saves it, and
// from 8 MiB on several of them save parts. With check_replicas, kDataLoss if
// the replicas of a shard differ; the message names tensor and ranks. It costs
// one more pass over the shards that several ranks hold, and two more
// collectives, of which the second has 4 bytes per shard and rank that holds
// it.
//
// One at a time. While it saves, rank 0 holds the file lease.sherd. Of several
// jobs that save to one directory, such as a job that lives on beside its
// restart, one goes on, and the others get kAborted with its host and process.
// The lease of a process that has ended is taken over at once if it ran on this
// host, and otherwise once it was not renewed for its duration. A save that was
// frozen and lost its lease fails when it wakes. Whatever the clocks, a
// checkpoint that exists stays loadable and is replaced by a complete one only;
// if the clocks of two hosts differ by more than the lease's duration, a live
// save may lose its lease and fail. The file system must order the operations
// on a directory for all hosts, as local ones and NFS do.
//
// Files. In the directory, only files of saves that are over are removed (named
// shard-….safetensors, manifest.sherd… and lease.sherd…), after the manifest is
// replaced or when no manifest names them.
//
// Slow disks. Ranks wait for one another as long as the slowest makes progress:
// a write, sync or removal ends.
//
// Buffers. Read until the call returns. Contiguous shards in host memory are
// written directly, others through at most 1 MiB, and shards on a device
// through at most 16 MiB of pinned memory: while some are written, the next are
// copied, of short ones many at once. Work that was queued on the device's
// current stream precedes the copies.
//
// Errors. All ranks return the same error; it names the rank where it happened,
// and the old checkpoint remains, except after kUnknown and perhaps
// kUnavailable. Messages begin with `save "path": `.
// FailedRank is set for a rank that died, timed out or deviated, not for one
// with a full disk.
//   kInvalidArgument     Names, layouts, placements, requires_grad, path or
//                        options differ between ranks (the message contains
//                        each rank's); a name is empty,
//                        not UTF-8, too long or "sherd.crc32c", or that of
//                        the values of a state (see FORMAT.md), which the
//                        tensor is not; a tensor belongs to another group, or
//                        is of complex128 or complex32 and has kMaxRank
//                        dimensions.
//   kFailedPrecondition  A tensor is not initialised or has no data; or the
//                        checkpoint that is there has the last save id of all,
//                        which no save can exceed.
//   kResourceExhausted   Not enough space; the message has both numbers. Or a
//                        header or the manifest exceeds its limit.
//   kUnavailable         A rank died; the message names it. If it died in the
//                        last step, the new checkpoint may have replaced the
//                        old one.
//   kUnknown             The new checkpoint has replaced the old one, and a
//                        load finds it, but the directory could not be synced:
//                        after a loss of power a load finds the old one or the
//                        new one, whole. Save again. Of an object store that
//                        gave no answer: a load finds the old one or the new
//                        one, whole.
//   kDeadlineExceeded    A rank made no progress for the timeout; the message
//                        names it.
//   kAborted             Another save holds the lease, or has taken it over;
//                        the message names its process.
//   kUnimplemented       With `sync`: the file system has no sync of
//                        directories.
//   others               From the file system.
//
// Cost. One pass over the data, whose CRC is computed while a block is in the
// cache for writing, for shards that are not contiguous in their tensor twice:
// once for its fingerprint. Three small collectives, however many tensors
// there are, and a fourth if tensors * ranks exceed 16384, which reduces 4
// bytes per tensor; one per second that a rank waits for another. Per rank one
// file and, with `sync`, an fsync per max_unsynced_bytes and one of the
// directory; on rank 0 the lease, and the manifest.
//
// Plans. A save plans with the boxes of one tensor at a time, rank 0 for all
// ranks: for 10 000 tensors in chunks on 1000 ranks less than a second. The
// plans of a group's last four saves are kept with the group: saving tensors of
// the same names and layouts again plans nothing. Memory: see kept_plans.h.
absl::Status SaveCheckpoint(const std::string& path,
                            const std::map<std::string, ShardedTensor>& tensors,
                            std::shared_ptr<ProcessGroup> group = nullptr,
                            const SaveOptions& options = {});

// Saves a state: tensors, sharded or not, and all other values, with its tree.
//
//     SaveCheckpoint("ckpt", state, group, {.per_rank = {"rng"}});
//
// One of nothing is written StateDict{}: of a plain {} the compiler cannot say
// whether it is a state or a map of tensors.
//
// Collective, as above, but ranks may have different names, as those of
// pipeline stages. What several ranks have under one name is one thing:
//
//   sharded tensor  Over `group`, or over a group within it, of which all
//                   members have the name and no other rank does.
//   tensor          A replica on each of its ranks, of the same dtype and
//                   sizes.
//   other value     Equal on all of its ranks; so are lengths of lists.
//
// What is below a name in options.per_rank is each rank's own: tensors that are
// not sharded, and other values, such as the state of a generator. Names lead
// through maps, and ranks need not have them.
//
// Names. A tensor has its name in the state (see StateDict) in the checkpoint;
// functions for maps of tensors load it, too. See "The state" in FORMAT.md for
// the rest.
//
// Errors. As above, and
//   kInvalidArgument     Ranks have values that differ under one name, or
//                        tensors that do; the message has name, both values,
//                        and ranks. A member of a sharded tensor's group lacks
//                        it, a rank that is none has it, or its group is not
//                        within `group`. A tensor's name begins with "sherd.".
//                        A name in per_rank is malformed, or has a sharded
//                        tensor below it; or ranks have different ones.
//   kResourceExhausted   The values of a rank have more than 2^30 bytes, or
//                        would take more than 2^33 when loaded.
//
// Cost. One small collective more, for all that is known from one of the last
// four saves of the group: values may differ from those, but not names, dtypes,
// sizes and groups. Otherwise three more, unless all ranks have the same names;
// then each distinct set of them travels once. Values are copied and hashed:
// make a tensor of what is large. Tensors that are alike, as an optimizer's
// thousands of scalars, share one layout in memory.
absl::Status SaveCheckpoint(const std::string& path, const StateDict& state,
                            std::shared_ptr<ProcessGroup> group = nullptr,
                            const SaveOptions& options = {});

// A load that is not strict leaves out what does not fit; this lists it. The
// same on all ranks; names ascend.
struct LoadReport {
  // Destinations that the checkpoint has no tensor for.
  std::vector<std::string> missing;
  // Tensors of the checkpoint that are for no destination, by their names
  // there. Also of a strict load.
  std::vector<std::string> unexpected;
  // Destinations for which the checkpoint has a tensor of another dtype or
  // other sizes, and a sentence that has both.
  struct Mismatch {
    std::string name;
    std::string reason;
  };
  std::vector<Mismatch> mismatched;
  // Destinations whose values were converted from another dtype. Also of a
  // strict load.
  std::vector<std::string> converted;
};

// Destinations whose names begin with `loaded` get the tensor whose name in the
// checkpoint begins with `saved` instead, and is otherwise the same:
// {"encoder.", "module.encoder."}.
struct RenameRule {
  std::string loaded;
  std::string saved;
};

struct LoadOptions {
  // Null: CheckpointFiles().
  FileSystem* files = nullptr;
  // False: destinations that the checkpoint has no tensor for, or one of
  // another dtype (see `convert`) or other sizes, are left as they are, and
  // LoadCheckpoint leaves them out. The same on all ranks.
  bool strict = true;
  // True: a destination may have another dtype than the tensor that was saved;
  // its values are converted as by Tensor::To, also where that loses some of
  // them; carried dtypes (IsCarried) are not converted. The same on all ranks.
  bool convert = false;
  // Of the rules that a destination's name fits, the first counts. The same on
  // all ranks.
  std::vector<RenameRule> rename = {};
  // Set on success, if given; a pointer or none on all ranks alike. Costs
  // reading all of the manifest.
  LoadReport* report = nullptr;
  // If the pieces that a rank needs are shorter than this in a file, ranks read
  // long pieces instead and exchange what they need. Raise it where small reads
  // are expensive, as on a network.
  int64_t min_read_bytes = 1024;
  // Bounds the host memory for data on its way between ranks, shared by the
  // ranks of a host; at least 2 MiB per rank, and 1 KiB for each rank of the
  // group. The same on all ranks. Beside it a rank has: destinations; its plan;
  // 8 MiB for devices; the CRCs of files it reads, 4 bytes per 256 KiB, of
  // which it keeps up to 64 MiB, or one file's; and until the end some 100
  // bytes for each chunk of which it read a part, 32 of which are sent.
  //
  // Afterwards the memory for data waits in the pools of HeapAllocator() and of
  // the group's shard_allocator(), which bound what a process keeps
  // (SetHeapPoolCapacity), for the next load: that touches no fresh pages.
  int64_t memory_budget = int64_t{256} << 20;
  // True: compares, once all is loaded, the elements of each tensor with the
  // fingerprint that the save computed of it as a whole, and so checks what
  // came after the files: exchanges between ranks, devices, memory. Not of
  // tensors that are converted, nor of a checkpoint of version 1, which has no
  // fingerprints; of replicas one is checked. Costs a pass over the
  // destinations and two small collectives, of which one has 4 bytes per
  // tensor. The same on all ranks.
  bool check_elements = false;
  // How long a rank may read nothing, and of each collective of an exchange of
  // data. Unset: the group's timeout. The same on all ranks.
  std::optional<absl::Duration> timeout = std::nullopt;
  // For tensors that are created. Null: the group's shard_allocator().
  Allocator* allocator = nullptr;
  // How many threads of this rank read, where no destination is on a device. 0:
  // as many as have a core each if all ranks of the host read, each at least 8
  // MiB. A thread takes 768 KiB. 1: nor does another one read while data is
  // exchanged.
  int threads = 0;
  // Set on success, if given.
  CheckpointStats* stats = nullptr;
};

// Loads tensors of the checkpoint `path` into existing ones of any layout and
// world size: every element of a destination is set, replicas too. Tensors of
// the checkpoint that `destinations` does not name are not loaded.
//
// Collective. Every rank of `group`, by default the default group, calls this
// with the same path and names. Every destination is spread over `group`.
//
// Integrity. Each chunk that is read is checked against its CRC-32C, also if
// several ranks read parts of it.
//
// Conversion. With LoadOptions::convert, values are converted where they are
// read, in blocks of 256 KiB; the bytes that ranks exchange have the dtype of
// the destination.
//
// Errors. All ranks return the same error, which names the rank if it happened
// on one; FailedRank as for SaveCheckpoint. Messages begin with
// `load "path": `. After kNotFound, kInvalidArgument, kFailedPrecondition and
// kUnimplemented the destinations are as before, unless a save replaced the
// checkpoint meanwhile. After any other error their contents are unspecified:
// it may have happened while data moved.
//   kNotFound            There is no checkpoint, and nothing else is meant.
//   kInvalidArgument     The checkpoint has no tensor of that name, or dtype or
//                        sizes differ from those that were saved, and the load
//                        is strict (and does not convert); names, layouts or
//                        options differ between ranks; two destinations, or
//                        shards of one, share memory on a rank.
//   kFailedPrecondition  A destination is not initialised, not writable or
//                        without data; some ranks find a checkpoint and
//                        others none; or the manifest is a link that leads
//                        nowhere.
//   kUnimplemented       A later version wrote the checkpoint.
//   kDataLoss            Manifest or data are damaged or incomplete, or the
//                        manifest or a data file was lost; the message names
//                        file, tensor and offset. Or
//                        LoadOptions::check_elements finds other elements than
//                        were saved; the message names the tensor.
//   kResourceExhausted   The manifest exceeds a limit of manifest_codec.h, or
//                        memory is short.
//   kUnavailable         A rank died; the message names it.
//   kDeadlineExceeded    A rank made no progress for the timeout, that is, read
//                        nothing; the message names it.
//   others               From the file system.
//
// Cost. Each rank reads of the manifest what concerns its tensors, and plans
// its own reads, which are ordered by file and offset. Bytes that are
// contiguous in the destination are read straight into it, and each is read
// once over all ranks; shorter ones go through 256 KiB, in reads that span
// several pieces and tensors as long as few pages are read in vain, so that two
// ranks may read the same page of small tensors. For a device they go through 8
// MiB of pinned memory, after which it is complete. Tensors whose pieces are
// many and short (see min_read_bytes) are read in long pieces, each once over
// all ranks, and exchanged in rounds of many tensors, within memory_budget;
// where a core is free, or the page cache has little of the data, another
// thread reads the next round meanwhile. Of shards that several ranks hold,
// each element is read by one of them, and one exchange for all tensors
// distributes them. An exchange is for tensors of one element size.
//
// What changes no destination, the first round of an exchange, is read before
// the ranks agree on the load: a rank that comes early need not wait for it.
//
// Two small collectives, and one per second that a rank waits for another; one
// more, at most 256 KiB, or three, if ranks read parts of the same chunks; and
// one per exchange but the first, besides those of RunReshard
// (reshard_executor.h). An error on one rank ends the work of the others within
// some seconds.
absl::Status LoadCheckpointInto(
    const std::string& path,
    const std::map<std::string, ShardedTensor*>& destinations,
    std::shared_ptr<ProcessGroup> group = nullptr,
    const LoadOptions& options = {});

// Loads into a state, whose values are the destinations: tensors are filled,
// also sharded ones, of any group within `group`; other values are replaced.
//
// Collective. Ranks may have different names, and tensors in different layouts,
// whatever they had when they saved. A tensor that is not sharded is the whole
// tensor on each rank that has it; it is read once.
//
// What is replaced. A value by that of its name, of any kind; a list that has
// no tensors as a whole, whatever its length; an empty map, and a state that is
// empty, by all that is there. Tensors that have no destination are left out of
// that; in a list none stands for each. Other maps keep their keys.
//
// Values that were in per_rank go to the rank of the same number; ranks beyond
// those that saved have none to load. A checkpoint of a map of tensors has
// tensors only.
//
// Errors. As above, where a value counts as a tensor does. After an error no
// value has changed. And
//   kInvalidArgument  There is a tensor where a value is wanted, or the
//                     reverse. Groups of sharded tensors, and tensors that
//                     ranks have under one name, are as for SaveCheckpoint.
//   kAborted          Again and again a save replaced the checkpoint while it
//                     was loaded.
//
// Cost. Each rank reads the values, of all ranks' trees, which are checked and
// take at most 2^33 bytes. One small collective more, or as in SaveCheckpoint;
// with options.report three more.
absl::Status LoadCheckpointInto(const std::string& path, StateDict& state,
                                std::shared_ptr<ProcessGroup> group = nullptr,
                                const LoadOptions& options = {});

// The same into new tensors, with layouts from `specs`. What is not exchanged
// is read before the last rank has come; if nothing is, all of the load is one
// small collective.
//   kInvalidArgument  Also if a spec does not fit the saved sizes.
absl::StatusOr<std::map<std::string, ShardedTensor>> LoadCheckpoint(
    const std::string& path,
    const std::map<std::string, ShardingSpecPtr>& specs,
    std::shared_ptr<ProcessGroup> group = nullptr,
    const LoadOptions& options = {});

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_H_
