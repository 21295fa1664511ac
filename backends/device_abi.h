#ifndef SHERD_BACKENDS_DEVICE_ABI_H_
#define SHERD_BACKENDS_DEVICE_ABI_H_

/* The ABI between Sherd and a device plugin, in C: device memory, and queues of
 * work on it.
 *
 * A device plugin is a shared object libsherd_device_NAME.so that exports one
 * function, sherd_get_device_v0, or the same code linked statically. Versions,
 * types, struct sizes, deadlines and errors are as in backend_abi.h.
 *
 * Errors of all functions: SHERD_SYSTEM if there is no driver or no device, or
 * if earlier work failed such that the vendor's library refuses every call;
 * SHERD_RESOURCE if memory ran out; SHERD_UNSUPPORTED for an operation that the
 * device, or a stream that is being captured, does not support;
 * SHERD_INVALID_ARGUMENT for addresses and devices that do not exist.
 *
 * Devices are numbered from 0, as the vendor's library numbers those that this
 * process may use. A stream is the vendor's handle of a queue (cudaStream_t);
 * null is the device's default stream. Queued work runs later, in the order of
 * its stream; the memory that it reads and writes stays valid until then. No
 * function waits for a device unless its comment states it. All may be called
 * from any thread, and leave the calling thread's current device as it was.
 */

#include <stdint.h>

#include "sherd/backends/backend_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A copy of a box of elements of `element_size` bytes; arrays have `rank`
 * entries, strides count elements. See core/tensor/kernels/strided_copy.h. */
typedef struct sherd_strided_copy_v0 {
  void* dst;
  const void* src;
  const int64_t* sizes;
  const int64_t* dst_strides;
  const int64_t* src_strides;
  int32_t rank; /* 0 to 64 */
  uint32_t element_size;
} sherd_strided_copy_v0;

/* Sets every element of a box to `value`. */
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

/* Random numbers as core/tensor/random.h draws them; uniform ones are bitwise
 * equal to those of the CPU. */
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
  /* The box's place in the tensor whose positions count; never null. */
  const int64_t* global_sizes;
  const int64_t* offsets;
} sherd_random_v0;

enum {
  SHERD_POOL_SUM = 0,
  SHERD_POOL_MEAN = 1,
  SHERD_POOL_MAX = 2,
  SHERD_POOL_NONE = 3
};

/* Gathers rows of a table and pools them, bag by bag:
 *
 *   out[b, c] = mode over k of weights[k] * table[rows[k], c]
 *
 * for 0 <= b < bags and 0 <= c < columns, over ends[b - 1] <= k < ends[b],
 * where ends[-1] is 0 and ends do not descend. A bag without rows is 0. The
 * mean is the sum divided by divisors[b], or without divisors by the number of
 * rows, where that is above 1; the maximum is NaN if one of the elements is.
 * With SHERD_POOL_NONE there are no ends: bag b is a copy of row rows[b].
 *
 * Addresses. Elements of a row are contiguous. Row i of the table begins
 * i * row_stride bytes after `table`, and row b of the result b * out_stride
 * bytes after `out`. With a null table and a stride of 1, `rows` are addresses
 * of rows, which may be parts of several tables.
 *
 * Values. Computed in float64 for float64 and otherwise in float32: the first
 * row of a bag, to which the others are added in the order of k, each
 * multiplied by its weight before, without fused operations; rounded once. The
 * same bits as on the host, but for those of a computed NaN. */
typedef struct sherd_pool_rows_v0 {
  uint32_t struct_size;
  int32_t mode;
  /* float64, float32, float16 or bfloat16. The two are equal, or one of them is
   * float32 and the other has 16 bits; equal with SHERD_POOL_NONE. */
  int32_t table_dtype;
  int32_t out_dtype;
  void* out;
  int64_t out_stride;
  const void* table;
  int64_t row_stride;
  /* A power of two by which the address of every row that is read is divisible,
   * at least the size of an element. Rows are read faster from 16 on. */
  uint64_t row_alignment;
  int64_t columns;
  int64_t bags;
  /* Arrays in memory that the device reaches, apart from the result. They are
   * data: they stay as they are until the work has run. */
  const int64_t* ends;
  const int64_t* rows;
  /* Only with SHERD_POOL_SUM: float64 for float64, otherwise float32. Null:
   * there are none. */
  const void* weights;
  /* Only with SHERD_POOL_MEAN. */
  const int64_t* divisors;
} sherd_pool_rows_v0;

/* Identifies memory of this process to another process of this host. Plain
 * bytes, which can be sent to another process as they are. */
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
  /* Bytes that are allocated, and bytes that the pool keeps. */
  uint64_t live_bytes, cached_bytes;
} sherd_device_memory_v0;

typedef struct sherd_device_v0 {
  uint32_t struct_size;
  uint16_t major, minor;
  const char* name;    /* as in the file's name */
  int32_t device_type; /* that of core/tensor/device.h */

  /* "driver 13.0 from libcuda.so.1"; null without a driver. */
  const char* (*library_version)(void);

  /* Returns SHERD_OK if there is a device that works; initialises no device. */
  sherd_code (*probe)(sherd_error_v0* error);

  sherd_code (*count)(int32_t* devices, sherd_error_v0* error);
  sherd_code (*describe)(int32_t device, sherd_device_info_v0* info,
                         sherd_error_v0* error);
  /* The calling thread's current device. */
  sherd_code (*get_current)(int32_t* device, sherd_error_v0* error);
  sherd_code (*set_current)(int32_t device, sherd_error_v0* error);

  /* Allocates memory of a device, aligned to 256 bytes, for use by work queued
   * on `stream` from now on. bytes above 0. Returns SHERD_RESOURCE if the
   * device has not enough memory. Does not wait once the pool has such a block;
   * may wait for the device when memory runs out. */
  sherd_code (*allocate)(int32_t device, uint64_t bytes, void* stream,
                         void** data, sherd_error_v0* error);
  /* Takes the memory back; work queued on `stream` before may still use it.
   * Returns SHERD_OK after the driver has shut down. */
  sherd_code (*deallocate)(int32_t device, void* data, uint64_t bytes,
                           void* stream, sherd_error_v0* error);
  /* Allocates host memory that devices reach; aligned to 4096 bytes, pooled. */
  sherd_code (*allocate_pinned)(uint64_t bytes, void** data,
                                sherd_error_v0* error);
  sherd_code (*deallocate_pinned)(void* data, uint64_t bytes,
                                  sherd_error_v0* error);
  sherd_code (*statistics)(int32_t device, sherd_device_memory_v0* memory,
                           sherd_error_v0* error);
  /* Returns the pools' unused memory to the system. May wait for the devices.
   */
  sherd_code (*trim)(sherd_error_v0* error);
  /* Sets *device to the device whose memory an address is, to -1 for host
   * memory that the device reaches, to -2 for other memory. */
  sherd_code (*locate)(const void* data, int32_t* device,
                       sherd_error_v0* error);

  /* Creates a stream that does not wait for the default stream. high_priority:
   * 0 or 1. */
  sherd_code (*create_stream)(int32_t device, int32_t high_priority,
                              void** stream, sherd_error_v0* error);
  sherd_code (*destroy_stream)(int32_t device, void* stream,
                               sherd_error_v0* error);
  /* Sets *capturing to 1 if work queued on the stream becomes part of a graph
   * instead of running; also for the default stream while nothing can be queued
   * on it because a stream that waits for it is being captured. */
  sherd_code (*is_capturing)(int32_t device, void* stream, int32_t* capturing,
                             sherd_error_v0* error);

  /* Events mark a place in a stream. They belong to the plugin, are not the
   * vendor's handles, and come from a pool: a list operation once it is warm.
   */
  sherd_code (*take_event)(int32_t device, void** event, sherd_error_v0* error);
  void (*return_event)(int32_t device, void* event);
  sherd_code (*record_event)(int32_t device, void* event, void* stream,
                             sherd_error_v0* error);
  /* Makes work queued on `stream` from now on run after the place in `event`.
   */
  sherd_code (*wait_event)(int32_t device, void* stream, void* event,
                           sherd_error_v0* error);
  /* Returns SHERD_OK once all work before that place has run, SHERD_IN_PROGRESS
   * before. May be called while another thread captures. */
  sherd_code (*query_event)(void* event, sherd_error_v0* error);

  /* Work on a stream. The caller may change arrays once the call has returned,
   * but not the data. */

  /* Copies between memory of any kind; waits if host memory is not pinned.
   */
  sherd_code (*copy_bytes)(int32_t device, void* stream, void* dst,
                           const void* src, uint64_t bytes,
                           sherd_error_v0* error);
  /* Copies boxes that do not overlap, in one launch. `device` reaches all
   * memory. */
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
  sherd_code (*pool_rows)(int32_t device, void* stream,
                          const sherd_pool_rows_v0* pool,
                          sherd_error_v0* error);

  /* Allocates memory of a device that export_memory can export, aligned to 256
   * bytes; pooled. The caller frees it only once no queued work uses it. */
  sherd_code (*allocate_shared)(int32_t device, uint64_t bytes, void** data,
                                sherd_error_v0* error);
  sherd_code (*deallocate_shared)(int32_t device, void* data, uint64_t bytes,
                                  sherd_error_v0* error);
  /* Makes a handle of data[0, bytes). Returns SHERD_UNSUPPORTED if other
   * processes cannot reach it, which may be so for memory from allocate. */
  sherd_code (*export_memory)(int32_t device, const void* data, uint64_t bytes,
                              sherd_device_handle_v0* handle,
                              sherd_error_v0* error);
  /* Maps the memory into this process, until close_memory has been called as
   * often as this. The handle is validated: returns SHERD_INVALID_ARGUMENT if
   * nothing can be opened with it. */
  sherd_code (*import_memory)(int32_t device,
                              const sherd_device_handle_v0* handle, void** data,
                              sherd_error_v0* error);
  void (*close_memory)(int32_t device, void* data);
  /* Lets work queued on `device` use the memory of `owner`, another device of
   * this process; sets *reachable to 0 if that is impossible, otherwise to 1.
   */
  sherd_code (*reach)(int32_t device, int32_t owner, int32_t* reachable,
                      sherd_error_v0* error);

  /* Names the calling thread's activity until pop_range, for profilers (NVTX).
   * Does nothing without a profiler. */
  void (*push_range)(const char* name);
  void (*pop_range)(void);
} sherd_device_v0;

/* Returns the plugin's table, which lives forever, or null if the plugin cannot
 * work with this host. Called once per process. */
typedef const sherd_device_v0* (*sherd_get_device_v0_fn)(
    const sherd_host_v0* host);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SHERD_BACKENDS_DEVICE_ABI_H_ */
