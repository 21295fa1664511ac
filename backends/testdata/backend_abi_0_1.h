#ifndef SHERD_BACKENDS_BACKEND_ABI_H_
#define SHERD_BACKENDS_BACKEND_ABI_H_

/* The line between Sherd and a collective backend, in C.
 *
 * A backend is a shared object libsherd_backend_NAME.so that exports one
 * function, sherd_get_plugin_v0, or the same code linked statically. The host
 * checks arguments, watches deadlines, words errors and finds out who is to
 * blame; the plugin runs operations that are known to be valid on raw memory.
 *
 * Versions. Structs begin with their size in bytes as the writer knew it. With
 * the same major version a reader treats what lies beyond the size as absent:
 * null, zero. Fields and operations are only ever appended. While the major
 * version is 0 the host accepts only its own minor version.
 *
 * Types. Fixed-width integers, pointers, and structs of them. Nothing is
 * allocated on one side and freed on the other; no function throws across the
 * line. Strings are UTF-8 and end in NUL.
 *
 * Deadlines are nanoseconds of CLOCK_MONOTONIC; SHERD_NO_DEADLINE never
 * passes.
 */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHERD_ABI_MAJOR 0
#define SHERD_ABI_MINOR 1

#define SHERD_NO_DEADLINE INT64_MAX

/* Outcome of a call. */
enum {
  SHERD_OK = 0,
  SHERD_IN_PROGRESS = 1,
  /* A valid call that contradicts another rank's. */
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

/* Operations; bit 1 << OP of sherd_plugin_v0.operations says that it is there.
 */
enum {
  SHERD_BARRIER = 0,
  SHERD_BROADCAST = 1,
  SHERD_ALL_GATHER = 2,
  SHERD_ALL_TO_ALL_V = 3
};

/* Details of an error, written by the plugin into the host's memory. The host
 * sets struct_size and the defaults: peer -1, the rest zero. */
typedef struct sherd_error_v0 {
  uint32_t struct_size;
  int32_t peer;        /* out: rank in the group, -1 if unknown */
  int32_t native_code; /* out: the vendor's number, 0 if none */
  char text[244];      /* out: what happened, without rank and operation */
} sherd_error_v0;

/* What the host offers to a plugin; lives forever. */
typedef struct sherd_host_v0 {
  uint32_t struct_size;
  uint16_t major, minor;
  const void* next; /* extensions; null today */
  /* severity: 0 debug, 1 info, 2 warning, 3 error. Any thread. */
  void (*log)(int32_t severity, const char* text);
  int64_t (*now)(void); /* the clock of deadlines */
} sherd_host_v0;

/* A key-value store of the group, for exchanging addresses while connecting.
 * Any thread; usable as long as the communicator. */
typedef struct sherd_kv_v0 {
  uint32_t struct_size;
  void* context; /* first argument of the calls below */
  sherd_code (*set)(void* context, const char* key, const void* value,
                    uint64_t size);
  /* Waits until the key is there. Copies min(size, capacity) bytes and sets
   * *size to the value's full size. SHERD_TIMEOUT at the deadline. */
  sherd_code (*get)(void* context, const char* key, int64_t deadline,
                    void* value, uint64_t capacity, uint64_t* size);
} sherd_kv_v0;

typedef struct sherd_comm_config_v0 {
  uint32_t struct_size;
  int32_t rank;
  int32_t size;      /* at least 2 */
  const char* group; /* for messages; valid during create */
  const sherd_kv_v0* kv;
  int64_t deadline; /* for create */
} sherd_comm_config_v0;

typedef struct sherd_bytes_v0 {
  void* data;
  uint64_t size;
} sherd_bytes_v0;

/* One operation. P is the size of the group; lengths are bytes.
 *
 * SHERD_BARRIER       returns once every rank has posted it.
 * SHERD_BROADCAST     out[0, bytes) of rank root to out[0, bytes) of all.
 * SHERD_ALL_GATHER    in[0, bytes) of rank r to out[r * bytes, (r+1) * bytes)
 *                     of all. The host has written the rank's own block.
 * SHERD_ALL_TO_ALL_V  sends[r] goes to rank r, recvs[r] comes from rank r; P
 *                     entries each. Entries of size 0, and the rank's own, are
 *                     to be left alone.
 *
 * bytes is above 0 where it is used. Everything the struct points to stays
 * valid and unchanged until the operation ended. */
typedef struct sherd_op_v0 {
  uint32_t struct_size;
  int32_t op;
  int32_t root;
  uint32_t flags; /* none today */
  const void* in;
  void* out;
  uint64_t bytes;
  const sherd_bytes_v0* sends;
  const sherd_bytes_v0* recvs;
  uint64_t sequence; /* the same on all ranks, different for each operation */
  int64_t deadline;
} sherd_op_v0;

/* 128 bytes for the plugin's own use while an operation is in flight; owned
 * and aligned to a cache line by the host. */
typedef struct sherd_request_v0 {
  uint64_t words[16];
} sherd_request_v0;

typedef struct sherd_comm_v0 sherd_comm_v0; /* the plugin's */

/* Flags of a plugin. */
enum {
  /* post returns only once the operation ended. Otherwise it returns
   * SHERD_IN_PROGRESS, and test tells. */
  SHERD_COMPLETES_IN_POST = 1 << 0,
  /* Ranks are threads of one process. */
  SHERD_RANKS_ARE_THREADS = 1 << 1
};

typedef struct sherd_plugin_v0 {
  uint32_t struct_size;
  uint16_t major, minor;
  const void* next; /* extensions; null today */
  const char* name; /* as in the file's name */
  uint64_t operations;
  uint32_t flags;
  uint32_t reserved;

  /* Version of the vendor's library; may be null. */
  const char* (*library_version)(void);

  /* SHERD_OK if communicators can be made on this machine; initialises
   * nothing. */
  sherd_code (*probe)(sherd_error_v0* error);

  /* Connects this rank to the others; returns once all ranks called it. */
  sherd_code (*create)(const sherd_comm_config_v0* config, sherd_comm_v0** comm,
                       sherd_error_v0* error);

  /* Also while an operation of another rank still needs this one. */
  void (*destroy)(sherd_comm_v0* comm);

  /* One call of post or test at a time per communicator. After an error only
   * abort and destroy follow. */
  sherd_code (*post)(sherd_comm_v0* comm, const sherd_op_v0* op,
                     sherd_request_v0* request, sherd_error_v0* error);
  /* SHERD_IN_PROGRESS, SHERD_OK or an error. Null with COMPLETES_IN_POST. */
  sherd_code (*test)(sherd_comm_v0* comm, sherd_request_v0* request,
                     sherd_error_v0* error);

  /* Makes operations of this rank end with SHERD_ABORTED, and those of its
   * peers fail, soon. Any thread, at any time before destroy, repeatedly;
   * never waits. */
  void (*abort)(sherd_comm_v0* comm);
} sherd_plugin_v0;

/* Returns the plugin's table, which lives forever, or null if it cannot work
 * with this host. Called once per process. */
typedef const sherd_plugin_v0* (*sherd_get_plugin_v0_fn)(
    const sherd_host_v0* host);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SHERD_BACKENDS_BACKEND_ABI_H_ */
