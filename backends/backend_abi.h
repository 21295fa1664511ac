#ifndef SHERD_BACKENDS_BACKEND_ABI_H_
#define SHERD_BACKENDS_BACKEND_ABI_H_

/* The ABI between Sherd and a collective backend, in C.
 *
 * A backend is a shared object libsherd_backend_NAME.so that exports one
 * function, sherd_get_plugin_v0, or the same code linked statically. The host
 * checks arguments, watches deadlines, writes error messages and finds the root
 * cause of failures; the plugin runs operations that are known to be valid on
 * raw memory.
 *
 * Versions. Until 1.0 host and plugin match exactly in major and minor version;
 * the host refuses every other plugin. The minor version counts all changes of
 * this header and of device_abi.h. Structs begin with their size in bytes, and
 * tables with size and version, at the same place in every version.
 *
 * Types. Fixed-width integers, pointers, and structs of them. Nothing is
 * allocated on one side and freed on the other; no exception crosses the ABI.
 * Strings are UTF-8 and end in NUL.
 *
 * Deadlines are nanoseconds of CLOCK_MONOTONIC; SHERD_NO_DEADLINE never
 * passes.
 */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHERD_ABI_MAJOR 0
#define SHERD_ABI_MINOR 8

#define SHERD_NO_DEADLINE INT64_MAX

/* Outcome of a call. */
enum {
  SHERD_OK = 0,
  SHERD_IN_PROGRESS = 1,
  /* A valid call that contradicts another rank's call. */
  SHERD_INVALID_ARGUMENT = 2,
  SHERD_UNSUPPORTED = 3,
  SHERD_TIMEOUT = 4,
  /* The connection to error.peer broke. */
  SHERD_PEER_LOST = 5,
  SHERD_ABORTED = 6,
  SHERD_RESOURCE = 7,
  SHERD_SYSTEM = 8,
  SHERD_INTERNAL = 9
};
typedef int32_t sherd_code;

/* Operations. Bit 1 << OP of sherd_plugin_v0.operations is set if the plugin
 * implements OP.
 */
enum {
  SHERD_BARRIER = 0,
  SHERD_BROADCAST = 1,
  SHERD_ALL_GATHER = 2,
  SHERD_ALL_TO_ALL_V = 3,
  SHERD_ALL_REDUCE = 4,
  SHERD_REDUCE = 5,
  SHERD_REDUCE_SCATTER = 6,
  SHERD_ALL_GATHER_V = 7,
  SHERD_GATHER = 8,
  SHERD_SCATTER = 9,
  SHERD_SEND = 10,
  SHERD_RECV = 11,
  SHERD_NUM_OPERATIONS = 12
};

/* Types of elements. Those from SHERD_NUM_DTYPES on only move: they are given
 * with SHERD_OP_TYPED, and never to reductions. */
enum {
  SHERD_BOOL = 0, /* one byte, 0 or 1 */
  SHERD_UINT8 = 1,
  SHERD_INT8 = 2,
  SHERD_UINT16 = 3,
  SHERD_INT16 = 4,
  SHERD_UINT32 = 5,
  SHERD_INT32 = 6,
  SHERD_UINT64 = 7,
  SHERD_INT64 = 8,
  SHERD_FLOAT8_E4M3 = 9,
  SHERD_FLOAT8_E5M2 = 10,
  SHERD_FLOAT16 = 11,
  SHERD_BFLOAT16 = 12,
  SHERD_FLOAT32 = 13,
  SHERD_FLOAT64 = 14,
  SHERD_COMPLEX64 = 15, /* two floats */
  SHERD_COMPLEX128 = 16,
  SHERD_NUM_DTYPES = 17,
  SHERD_FLOAT8_E4M3FNUZ = 17,
  SHERD_FLOAT8_E5M2FNUZ = 18,
  SHERD_FLOAT8_E8M0 = 19,
  SHERD_COMPLEX32 = 20 /* two of float16 */
};

/* Reductions. */
enum {
  SHERD_SUM = 0, /* integers wrap; bool: or */
  SHERD_AVG = 1, /* the sum divided by the size of the group */
  SHERD_PRODUCT = 2,
  SHERD_MIN = 3,
  SHERD_MAX = 4,
  SHERD_BAND = 5,
  SHERD_BOR = 6,
  SHERD_BXOR = 7,
  SHERD_NUM_REDUCTIONS = 8
};

/* Details of an error, written by the plugin into the host's memory. The host
 * sets struct_size and the defaults: peer -1, the rest zero. */
typedef struct sherd_error_v0 {
  uint32_t struct_size;
  int32_t peer;        /* out: rank in the group, -1 if unknown */
  int32_t native_code; /* out: the vendor's number, 0 if none */
  char text[244];      /* out: what happened, without rank and operation */
} sherd_error_v0;

/* Services that the host offers to a plugin. Lives forever. */
typedef struct sherd_host_v0 {
  uint32_t struct_size;
  uint16_t major, minor;
  /* severity: 0 debug, 1 info, 2 warning, 3 error. Any thread. */
  void (*log)(int32_t severity, const char* text);
  int64_t (*now)(void); /* the clock of deadlines */
  /* out[i] = reduction of ins[0][i] … ins[num_ins - 1][i] for
   * 0 <= i < count. Floats of 16 bits and less are summed in 32 and rounded
   * once. out may be one of ins. SHERD_AVG divides by divisor at the end. Any
   * alignment, any thread. */
  void (*reduce)(int32_t dtype, int32_t reduction, void* out,
                 const void* const* ins, int32_t num_ins, uint64_t count,
                 int32_t divisor);
  /* Copies the user's value of the setting `name`, or "", with its NUL:
   * "cuda_library" and "nccl_library" are paths or names of shared objects to
   * load in place of the usual ones. Returns SHERD_RESOURCE if capacity is too
   * small, SHERD_UNSUPPORTED if there is no such setting. */
  sherd_code (*setting)(const char* name, char* value, uint64_t capacity);
} sherd_host_v0;

/* A key-value store of the group, for exchanging addresses while connecting.
 * Any thread; usable as long as the communicator. */
typedef struct sherd_kv_v0 {
  uint32_t struct_size;
  void* context; /* first argument of the calls below */
  sherd_code (*set)(void* context, const char* key, const void* value,
                    uint64_t size);
  /* Waits until the key exists. Copies min(size, capacity) bytes and sets *size
   * to the value's full size. Returns SHERD_TIMEOUT at the deadline, and
   * SHERD_PEER_LOST, before it, if some rank will never arrive. */
  sherd_code (*get)(void* context, const char* key, int64_t deadline,
                    void* value, uint64_t capacity, uint64_t* size);
  /* Atomically adds to the decimal number at key (0 if the key does not exist).
   */
  sherd_code (*add)(void* context, const char* key, int64_t amount,
                    int64_t* sum);
  sherd_code (*remove)(void* context, const char* key);
} sherd_kv_v0;

typedef struct sherd_comm_config_v0 {
  uint32_t struct_size;
  int32_t rank;
  int32_t size;      /* at least 2; see device */
  const char* group; /* for messages; valid during create */
  const sherd_kv_v0* kv;
  int64_t deadline; /* for create */
  /* world_ranks[r] is the rank in the whole job of rank r of the group; valid
   * during create. */
  const int32_t* world_ranks;
  int32_t world_size;
  /* 1 if all ranks of the group run on this host, in one PID namespace. */
  int32_t one_host;
  /* Numeric IPv4 or IPv6 address on which this rank listens. */
  const char* address;
  /* With sherd_plugin_v0.on_device: the device of this rank. All operations
   * work on its memory, and `size` may be 1. */
  int32_t device;
  /* Identifies the device: the same in every process of a host, different for
   * two devices; valid during create. Null if not known. */
  const char* device_id;
} sherd_comm_config_v0;

typedef struct sherd_bytes_v0 {
  void* data;
  uint64_t size;
} sherd_bytes_v0;

/* One operation. P is the size of the group; lengths are bytes.
 *
 * SHERD_BARRIER         returns once every rank has posted it.
 * SHERD_BROADCAST       out[0, bytes) of rank root to out[0, bytes) of all.
 * SHERD_ALL_GATHER      in[0, bytes) of rank r to out[r * bytes, (r+1) * bytes)
 *                       of all. The host has written the rank's own block.
 * SHERD_ALL_TO_ALL_V    sends[r] goes to rank r, recvs[r] comes from rank r; P
 *                       entries each. Entries of size 0, and the rank's own,
 *                       are to be left alone.
 * SHERD_ALL_REDUCE      out[0, bytes) of all = reduction of in[0, bytes) of
 *                       all. in may be out.
 * SHERD_REDUCE          the same, but only rank root has out. in may be out;
 *                       other ranks' in stays as it is, their out is null.
 * SHERD_REDUCE_SCATTER  out[0, bytes) of rank r = reduction of sends[r] of all,
 *                       sends[r].size being the same on all ranks. out may be
 *                       the data of sends[rank].
 * SHERD_ALL_GATHER_V    in[0, bytes) of rank r to recvs[r] of all; the host has
 *                       written the rank's own entry. Sizes may be 0.
 * SHERD_GATHER          in[0, bytes) of rank r to recvs[r] of rank root, whose
 *                       own entry the host has written; others' recvs is null.
 * SHERD_SCATTER         sends[r] of rank root to out[0, bytes) of rank r; the
 *                       host has written root's own out; others' sends is null.
 * SHERD_SEND            in[0, bytes) to rank root, matched by
 * SHERD_RECV            out[0, bytes) from rank root with the same tag. Equal
 *                       tags of a pair of ranks match in order. The size is the
 *                       same at both ends: if not, the receiver's call ends in
 *                       SHERD_INVALID_ARGUMENT. SEND may wait for RECV.
 *
 * Nothing to move. Where a length that is the same on all ranks is 0, the host
 * posts the operation to plugins that compare calls (SHERD_COMPARES_CALLS) and
 * a barrier in its place to all others: it ends, like any other call, in an
 * error if a rank calls something else. SEND and RECV of 0 bytes are messages.
 *
 * Everything the struct points to stays valid and unchanged until the operation
 * ended, and the host posts every operation but SEND and RECV in the same order
 * on all ranks.
 */
typedef struct sherd_op_v0 {
  uint32_t struct_size;
  int32_t op;
  int32_t root;
  uint32_t flags;
  const void* in;
  void* out;
  uint64_t bytes;
  const sherd_bytes_v0* sends;
  const sherd_bytes_v0* recvs;
  uint64_t sequence; /* the same on all ranks, different for each operation;
                        not for SEND and RECV */
  int64_t deadline;
  /* Of reductions, of which bytes is a multiple of its size; and of other
   * operations with SHERD_OP_TYPED. */
  int32_t dtype;
  int32_t reduction;
  int64_t tag; /* SEND and RECV: 0 to 2^31 - 1 */
  /* With sherd_plugin_v0.on_device: where to queue the operation. */
  void* stream;
} sherd_op_v0;

/* Flags of an operation. */
enum {
  /* The entries of sends (and recvs) have one length and are adjacent in
   * memory, in order. */
  SHERD_OP_EVEN = 1 << 0,
  /* dtype is the type of the elements, also of an operation that only moves
   * them. A plugin that compares calls compares the types of the ranks that
   * give one; a call without a type matches any. */
  SHERD_OP_TYPED = 1 << 1
};

/* 128 bytes for the plugin's own use while an operation is in flight; owned
 * and aligned to a cache line by the host. */
typedef struct sherd_request_v0 {
  uint64_t words[16];
} sherd_request_v0;

typedef struct sherd_comm_v0 sherd_comm_v0; /* the plugin's */

/* Identifies a piece of one rank's memory to its peers. Plain bytes, which can
 * be sent to other processes as they are. */
typedef struct sherd_memory_handle_v0 {
  uint64_t words[6];
} sherd_memory_handle_v0;

/* The peers' memory as one rank of a communicator can access it; owned by the
 * plugin.
 */
typedef struct sherd_peers_v0 sherd_peers_v0;

/* A process of this PID namespace, and when it started, as /proc/PID/stat has
 * it: another process of the same number started at another time. */
typedef struct sherd_process_v0 {
  int64_t pid;
  uint64_t start_time;
} sherd_process_v0;

/* Memory that ranks access in each other's processes. Any thread. The host
 * orders writes and reads of different ranks, by operations or otherwise. A
 * plugin with this table lets an ALL_GATHER end in SHERD_PEER_LOST only if it
 * ends in SHERD_OK on no rank: otherwise peers may be about to write to memory
 * that this rank would free.
 */
typedef struct sherd_memory_v0 {
  uint32_t struct_size;

  /* Allocates memory that can be exported, valid until deallocate is called
   * with the same data and bytes; it belongs to no communicator and is usable
   * without one. bytes is above 0; alignment is a power of two up to 4096. The
   * pages are committed on return: SHERD_RESOURCE is returned in place of a
   * later fault. If both functions are null, all memory of the process can be
   * exported. */
  sherd_code (*allocate)(uint64_t bytes, uint64_t alignment, void** data,
                         sherd_error_v0* error);
  void (*deallocate)(void* data, uint64_t bytes);

  /* Opens a view of the memory of the peers of `comm`, which the view may
   * outlive. Returns SHERD_UNSUPPORTED if this rank cannot reach the memory of
   * all of them. */
  sherd_code (*open_peers)(sherd_comm_v0* comm, sherd_peers_v0** peers,
                           sherd_error_v0* error);
  /* Called once nothing uses the memory that was imported through the view. */
  void (*close_peers)(sherd_peers_v0* peers);

  /* Makes a handle of data[0, bytes), bytes above 0. Returns SHERD_UNSUPPORTED
   * if peers cannot reach that memory; the host asks often, so this must be
   * fast. */
  sherd_code (*export_memory)(sherd_peers_v0* peers, const void* data,
                              uint64_t bytes, sherd_memory_handle_v0* handle,
                              sherd_error_v0* error);

  /* Maps the memory that rank `peer`, which may be this one, exported, and
   * returns its address in this process: all of it, until close_peers. The
   * handle comes from another process and must be validated:
   * SHERD_INVALID_ARGUMENT  That peer did not make it, or freed the memory.
   * SHERD_PEER_LOST         The peer's process ended, and its memory can no
   *                         longer be opened.
   * SHERD_RESOURCE          No address space or descriptor. */
  sherd_code (*import_memory)(sherd_peers_v0* peers, int32_t peer,
                              const sherd_memory_handle_v0* handle,
                              sherd_bytes_v0* range, sherd_error_v0* error);

  /* As open_peers, but of processes that need not be in a group: "rank" r of
   * the view is processes[r], and this process may be one of them. Handles that
   * they make by a view of their own are valid in this one. Null: memory is
   * reached within a communicator only. */
  sherd_code (*open_processes)(const sherd_process_v0* processes,
                               int32_t num_processes, sherd_peers_v0** peers,
                               sherd_error_v0* error);
} sherd_memory_v0;

/* Operations on the memory of devices.
 *
 * With this table the memory of all operations is memory of the communicator's
 * device (device_abi.h), and post queues the operation on op->stream: SHERD_OK
 * means that it is queued. The operation ends in the order of the stream; poll
 * reports one that cannot end. The memory that it reads and writes, but not the
 * structs, stays valid until then. Operations of one communicator are posted by
 * one thread at a time, SEND and RECV too, in an order that all ranks share;
 * equal tags of a pair of ranks match in that order.
 *
 * post may wait for peers (at the first operation, or where a queue is full),
 * but ignores deadlines: the host watches them, and aborts. Then post returns,
 * and all queued operations end with undefined results.
 *
 * A BARRIER synchronizes streams. Its out[0, bytes), at least 4 bytes, is
 * memory of the device that the plugin may overwrite.
 *
 * Before each call but poll and abort, the host makes the communicator's
 * device, or the device given as an argument, the calling thread's current one
 * (sherd_device_v0.set_current).
 */
typedef struct sherd_on_device_v0 {
  uint32_t struct_size;
  int32_t device_type; /* as in device_abi.h */

  /* Returns SHERD_OK while the communicator works, otherwise the error that
   * ended it. Never waits. Any thread, also while another one is in any other
   * call. */
  sherd_code (*poll)(sherd_comm_v0* comm, sherd_error_v0* error);

  /* Operations posted between begin and end form one batch: none runs before
   * end, and they may match in any order. One thread posts them and calls both;
   * end is also called after a failure. Not nested. */
  sherd_code (*begin_batch)(sherd_comm_v0* comm, sherd_error_v0* error);
  sherd_code (*end_batch)(sherd_comm_v0* comm, sherd_error_v0* error);

  /* Makes a communicator of the ranks of `parent` with the same color >= 0, in
   * the order of key; *comm is null with a negative color. Collective over
   * `parent`, which has no operation in flight and may be destroyed first.
   * `config` is that of the new communicator. Returns SHERD_UNSUPPORTED if the
   * vendor's library is too old. Null: not supported. */
  sherd_code (*split)(sherd_comm_v0* parent, const sherd_comm_config_v0* config,
                      int32_t color, int32_t key, sherd_comm_v0** comm,
                      sherd_error_v0* error);
  /* Makes a communicator of the ranks of `parent` except `excluded`
   * (ascending), which need not take part; also after a failure and an abort.
   * Codes and `config` as for split. Null: not supported. */
  sherd_code (*shrink)(sherd_comm_v0* parent,
                       const sherd_comm_config_v0* config,
                       const int32_t* excluded, int32_t num_excluded,
                       sherd_comm_v0** comm, sherd_error_v0* error);

  /* Shuts the communicator down cleanly: waits until its operations have ended,
   * and for the other ranks as far as the vendor's library does. Collective;
   * only destroy follows. Without it, destroy ends the communicator as abort
   * does. */
  sherd_code (*finalize)(sherd_comm_v0* comm, int64_t deadline,
                         sherd_error_v0* error);

  /* Allocates memory that operations move faster once it is registered; it
   * belongs to no communicator. Null, or SHERD_UNSUPPORTED: any memory of the
   * device will do. */
  sherd_code (*allocate)(int32_t device, uint64_t bytes, void** data,
                         sherd_error_v0* error);
  void (*deallocate)(int32_t device, void* data, uint64_t bytes);
  /* Valid until deregister_memory or destroy. Both null, or SHERD_UNSUPPORTED:
   * registration gains nothing. */
  sherd_code (*register_memory)(sherd_comm_v0* comm, void* data, uint64_t bytes,
                                void** registration, sherd_error_v0* error);
  void (*deregister_memory)(sherd_comm_v0* comm, void* registration);
} sherd_on_device_v0;

/* Flags of a plugin. */
enum {
  /* post returns only once the operation has ended. Without this flag it
   * returns SHERD_IN_PROGRESS, and test reports the end. */
  SHERD_COMPLETES_IN_POST = 1 << 0,
  /* Ranks are threads of one process. */
  SHERD_RANKS_ARE_THREADS = 1 << 1,
  /* All ranks must run on one host. */
  SHERD_ONE_HOST_ONLY = 1 << 2,
  /* Ranks are started by the vendor's launcher; world ranks are its ranks. */
  SHERD_NEEDS_LAUNCHER = 1 << 3,
  /* If one rank dies, the vendor's library ends them all. */
  SHERD_DIES_TOGETHER = 1 << 4,
  /* The plugin compares the calls of all ranks before it moves anything. If
   * they differ, all ranks return the same SHERD_INVALID_ARGUMENT: its peer is
   * the rank that differs from the majority, or -1 without a majority, and its
   * text contains both calls. */
  SHERD_COMPARES_CALLS = 1 << 5
};

typedef struct sherd_plugin_v0 {
  uint32_t struct_size;
  uint16_t major, minor;
  const char* name; /* as in the file's name */
  uint64_t operations;
  uint32_t flags;

  /* Version of the vendor's library; may be null. */
  const char* (*library_version)(void);

  /* Returns SHERD_OK if communicators can be made on this machine; initialises
   * nothing. */
  sherd_code (*probe)(sherd_error_v0* error);

  /* Connects this rank to the others; returns once all ranks called it. */
  sherd_code (*create)(const sherd_comm_config_v0* config, sherd_comm_v0** comm,
                       sherd_error_v0* error);

  /* May be called while an operation of another rank still needs this one. */
  void (*destroy)(sherd_comm_v0* comm);

  /* One call of post or test at a time per communicator, except for SEND and
   * RECV: those come from any thread, also while other operations run. post may
   * return SHERD_IN_PROGRESS if the table has a test. After an error the host
   * calls only abort and destroy. */
  sherd_code (*post)(sherd_comm_v0* comm, const sherd_op_v0* op,
                     sherd_request_v0* request, sherd_error_v0* error);
  /* Returns SHERD_IN_PROGRESS, SHERD_OK or an error. Null with
   * COMPLETES_IN_POST. */
  sherd_code (*test)(sherd_comm_v0* comm, sherd_request_v0* request,
                     sherd_error_v0* error);

  /* Makes operations of this rank end with SHERD_ABORTED, and those of its
   * peers fail, soon. Any thread, at any time before destroy, repeatedly; never
   * waits. */
  void (*abort)(sherd_comm_v0* comm);

  /* Bit 1 << REDUCTION of reductions[DTYPE] is set if ALL_REDUCE, REDUCE and
   * REDUCE_SCATTER, as far as the plugin has them, support it. */
  uint32_t reductions[SHERD_NUM_DTYPES];

  /* May be null. With SHERD_NEEDS_LAUNCHER: returns this process's rank among
   * those that were started together. With `blob`, collective over them: copies
   * blob[0, size) of rank 0 to all. Usable before create; starts the vendor's
   * library. */
  sherd_code (*bootstrap)(int32_t* rank, int32_t* world_size, void* blob,
                          uint64_t size, int64_t deadline,
                          sherd_error_v0* error);

  /* May be null. */
  const sherd_memory_v0* memory;
  /* Null: operations work on host memory. */
  const sherd_on_device_v0* on_device;
} sherd_plugin_v0;

/* Returns the plugin's table, which lives forever, or null if the plugin cannot
 * work with this host: until 1.0, if the host has another version. Called any
 * number of times, from any thread. */
typedef const sherd_plugin_v0* (*sherd_get_plugin_v0_fn)(
    const sherd_host_v0* host);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SHERD_BACKENDS_BACKEND_ABI_H_ */
