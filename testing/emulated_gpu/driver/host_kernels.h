#ifndef SHERD_TESTING_EMULATED_GPU_DRIVER_HOST_KERNELS_H_
#define SHERD_TESTING_EMULATED_GPU_DRIVER_HOST_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace sherd::internal {

// The kernels of kernels.cu as functions on the host, from the same headers:
// for emulated GPUs and for tests.

// An access of a launch to a range of memory, by the addresses in its
// parameters. Ranges of one launch may repeat; bytes outside of all ranges are
// not accessed.
struct KernelAccess {
  uint64_t address = 0;
  uint64_t bytes = 0;
  bool is_write = false;
};
using KernelAccessVisitor = void (*)(void* context, const KernelAccess& access);

// Translates an address in parameters, of any byte of some memory, to this
// process's address. The neighbours of the byte in that memory are its
// neighbours there, and the alignment is the same up to 16. Null: addresses are
// those of this process.
using AddressTranslator = void* (*)(void* context, uint64_t address);

struct HostKernel {
  const char* name;
  // The size of its one parameter: a launch copies so many bytes.
  size_t params_size;
  // Runs all blocks. Reads a table in the device's memory now. Ends the process
  // if the kernel accesses an address that is misaligned for a GPU.
  void (*run)(const void* params, uint32_t grid, AddressTranslator translate,
              void* context);
  // Calls visit(context, …) for all memory that `run` reads and writes. The
  // first call is for the table, which is read right after; so call this when
  // the launch is about to run and not when it is queued. `context` is that of
  // both functions.
  void (*visit_accesses)(const void* params, uint32_t grid,
                         AddressTranslator translate, KernelAccessVisitor visit,
                         void* context);
};

// The kernel of that name, or null. Names: kernel_params.h.
const HostKernel* FindHostKernel(absl::string_view name);

}  // namespace sherd::internal

#endif  // SHERD_TESTING_EMULATED_GPU_DRIVER_HOST_KERNELS_H_
