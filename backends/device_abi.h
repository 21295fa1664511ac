#ifndef SHERD_BACKENDS_DEVICE_ABI_H_
#define SHERD_BACKENDS_DEVICE_ABI_H_

/* The ABI between Sherd and a device plugin, in C: memory that is not the
 * host's, and queues of work on it.
 *
 * A device plugin is a shared object libsherd_device_NAME.so that exports one
 * function, sherd_get_device_v0, or the same code linked statically. Versions,
 * types, struct sizes, deadlines and errors are as in backend_abi.h.
 *
 * Errors of all functions: SHERD_SYSTEM if there is no driver or no device, or
 * if work that ran before failed in such a way that the vendor's library
 * refuses everything; SHERD_RESOURCE without memory; SHERD_UNSUPPORTED for what
 * a device or a stream that is captured cannot do; SHERD_INVALID_ARGUMENT for
 * addresses and devices that there are not.
 *
 * Devices are numbered from 0, as the vendor's library numbers what this
 * process may use. A stream is the vendor's handle of a queue (cudaStream_t);
 * null is the device's default stream. Work that is queued runs later, in the
 * order of its stream; what it reads and writes stays valid until then. No
 * function waits for a device unless it says so. All may be called from any
 * thread, and leave the calling thread's current device as it was.
 */

#include <stdint.h>

#include "sherd/backends/backend_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of a box of elements of `element_size` bytes; arrays have `rank` entries,
 * strides count elements. As core/tensor/kernels/strided_copy.h says. */
typedef struct sherd_strided_copy_v0 {
  void* dst;
  const void* src;
  const int64_t* sizes;
  const int64_t* dst_strides;
  const int64_t* src_strides;
  int32_t rank; /* 0 to 64 */
  uint32_t element_size;
} sherd_strided_copy_v0;

/* Every element of a box becomes `value`. */
typedef struct sherd_fill_v0 {
  uint32_t struct_size;
  int32_t rank;
  void* data;
  const int64_t* sizes;
  const int64_t* strides;
  uint32_t element_size; /* 1, 2, 4, 8 or 16 */
  uint8_t value[16];
} sherd_fill_v0;

enum { SHERD_UNIFORM = 0, SHERD_NORMAL = 1 };

/* Random numbers as core/tensor/random.h draws them: bit by bit those of the
 * CPU where they are uniform. */
typedef struct sherd_random_v0 {
  uint32_t struct_size;
  int32_t distribution;
  int32_t dtype;
  int32_t rank;
  /* Low and high, or mean and standard deviation. */
  double a, b;
  uint64_t seed, position;
  void* data;
  const int64_t* sizes;
  const int64_t* strides;
  /* The place of the box in the tensor whose positions count; never null. */
  const int64_t* global_sizes;
  const int64_t* offsets;
} sherd_random_v0;

/* Names memory of this process to another process of this host. Plain bytes:
 * it travels as it lies in memory. */
typedef struct sherd_device_handle_v0 {
  uint64_t words[12];
} sherd_device_handle_v0;

typedef struct sherd_device_info_v0 {
  uint32_t struct_size;
  int32_t multiprocessors;
  int32_t compute_major, compute_minor;
  /* free_bytes is 0 unless this process has used the device. */
  uint64_t total_bytes, free_bytes;
  char name[96];
  /* "0000:41:00.0": the same for one device in every process of a host. */
  char bus_id[32];
} sherd_device_info_v0;

typedef struct sherd_device_memory_v0 {
  uint32_t struct_size;
  /* Handed out, and kept by the pool. */
  uint64_t live_bytes, cached_bytes;
} sherd_device_memory_v0;

typedef struct sherd_device_v0 {
  uint32_t struct_size;
  uint16_t major, minor;
  const char* name;    /* as in the file's name */
  int32_t device_type; /* that of core/tensor/device.h */

  /* "driver 13.0 from libcuda.so.1"; null if there is none. */
  const char* (*library_version)(void);

  /* SHERD_OK if there is a device that works; initialises no device. */
  sherd_code (*probe)(sherd_error_v0* error);

  sherd_code (*count)(int32_t* devices, sherd_error_v0* error);
  sherd_code (*describe)(int32_t device, sherd_device_info_v0* info,
                         sherd_error_v0* error);
  /* The calling thread's. */
  sherd_code (*get_current)(int32_t* device, sherd_error_v0* error);
  sherd_code (*set_current)(int32_t device, sherd_error_v0* error);

  /* Memory of a device, aligned to 256 bytes, that may be used by what is
   * queued on `stream` from now on. bytes above 0. SHERD_RESOURCE: there is not
   * that much. Does not wait once the pool has such a block; may wait for the
   * device when memory runs out. */
  sherd_code (*allocate)(int32_t device, uint64_t bytes, void* stream,
                         void** data, sherd_error_v0* error);
  /* Takes it back: what was queued on `stream` before may still use it. OK
   * after the driver has shut down. */
  sherd_code (*deallocate)(int32_t device, void* data, uint64_t bytes,
                           void* stream, sherd_error_v0* error);
  /* Host memory that devices reach; aligned to 4096. Pooled. */
  sherd_code (*allocate_pinned)(uint64_t bytes, void** data,
                                sherd_error_v0* error);
  sherd_code (*deallocate_pinned)(void* data, uint64_t bytes,
                                  sherd_error_v0* error);
  sherd_code (*statistics)(int32_t device, sherd_device_memory_v0* memory,
                           sherd_error_v0* error);
  /* Gives what the pools keep unused back to the system. May wait for the
   * devices. */
  sherd_code (*trim)(sherd_error_v0* error);
  /* Whose memory an address is: a device, -1 for host memory that the device
   * reaches, -2 for other. */
  sherd_code (*locate)(const void* data, int32_t* device,
                       sherd_error_v0* error);

  /* A stream that does not wait for the default stream. high_priority: 0 or
   * 1. */
  sherd_code (*create_stream)(int32_t device, int32_t high_priority,
                              void** stream, sherd_error_v0* error);
  sherd_code (*destroy_stream)(int32_t device, void* stream,
                               sherd_error_v0* error);
  /* 1 if what is queued on it becomes part of a graph instead of running; also
   * of the default stream where nothing can be queued because a stream that
   * waits for it is captured. */
  sherd_code (*is_capturing)(int32_t device, void* stream, int32_t* capturing,
                             sherd_error_v0* error);

  /* Events mark a place in a stream. They are the plugin's, not the vendor's
   * handles, and come from a pool: no more than a list operation once warm. */
  sherd_code (*take_event)(int32_t device, void** event, sherd_error_v0* error);
  void (*return_event)(int32_t device, void* event);
  sherd_code (*record_event)(int32_t device, void* event, void* stream,
                             sherd_error_v0* error);
  /* What is queued on `stream` after this runs after the place in `event`. */
  sherd_code (*wait_event)(int32_t device, void* stream, void* event,
                           sherd_error_v0* error);
  /* SHERD_OK once everything before that place has run; SHERD_IN_PROGRESS. Also
   * while another thread captures. */
  sherd_code (*query_event)(void* event, sherd_error_v0* error);

  /* Work on a stream. Arrays may be changed once the call returned; data may
   * not. */

  /* Between memory of any kind; host memory that is not pinned is waited for.
   */
  sherd_code (*copy_bytes)(int32_t device, void* stream, void* dst,
                           const void* src, uint64_t bytes,
                           sherd_error_v0* error);
  /* Boxes that do not overlap, in one launch. All memory can be reached by
   * `device`. */
  sherd_code (*copy)(int32_t device, void* stream,
                     const sherd_strided_copy_v0* copies, uint64_t num_copies,
                     sherd_error_v0* error);
  sherd_code (*fill)(int32_t device, void* stream, const sherd_fill_v0* fill,
                     sherd_error_v0* error);
  sherd_code (*random)(int32_t device, void* stream,
                       const sherd_random_v0* random, sherd_error_v0* error);
  /* As sherd_host_v0.reduce. */
  sherd_code (*reduce)(int32_t device, void* stream, int32_t dtype,
                       int32_t reduction, void* out, const void* const* ins,
                       int32_t num_ins, uint64_t count, int32_t divisor,
                       sherd_error_v0* error);

  /* Memory of a device that export_memory can export, aligned to 256 bytes;
   * pooled. What is queued anywhere has stopped using what is taken back. */
  sherd_code (*allocate_shared)(int32_t device, uint64_t bytes, void** data,
                                sherd_error_v0* error);
  sherd_code (*deallocate_shared)(int32_t device, void* data, uint64_t bytes,
                                  sherd_error_v0* error);
  /* A handle of data[0, bytes). SHERD_UNSUPPORTED if other processes cannot
   * reach it, as may be the case with what came from allocate. */
  sherd_code (*export_memory)(int32_t device, const void* data, uint64_t bytes,
                              sherd_device_handle_v0* handle,
                              sherd_error_v0* error);
  /* Where it lies in this process, until as many calls of close_memory as of
   * this. The handle may be anything: SHERD_INVALID_ARGUMENT if nothing can be
   * opened with it. */
  sherd_code (*import_memory)(int32_t device,
                              const sherd_device_handle_v0* handle, void** data,
                              sherd_error_v0* error);
  void (*close_memory)(int32_t device, void* data);
  /* Lets what is queued on `device` use the memory of `owner`, another device
   * of this process; *reachable is 0 if it never can, otherwise 1. */
  sherd_code (*reach)(int32_t device, int32_t owner, int32_t* reachable,
                      sherd_error_v0* error);

  /* Names what the calling thread does until pop_range, for profilers (NVTX).
   * Nothing where none listens. */
  void (*push_range)(const char* name);
  void (*pop_range)(void);
} sherd_device_v0;

/* Returns the plugin's table, which lives forever, or null if it cannot work
 * with this host. Called once per process. */
typedef const sherd_device_v0* (*sherd_get_device_v0_fn)(
    const sherd_host_v0* host);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SHERD_BACKENDS_DEVICE_ABI_H_ */
