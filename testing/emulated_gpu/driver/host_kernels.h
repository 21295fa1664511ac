#ifndef SHERD_TESTING_EMULATED_GPU_DRIVER_HOST_KERNELS_H_
#define SHERD_TESTING_EMULATED_GPU_DRIVER_HOST_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace sherd::internal {

// The kernels of kernels.cu as functions on the host, from the same headers:
// for emulated GPUs and for tests.

// What a launch does with a range of memory, by its addresses in parameters.
// Ranges of one launch may repeat; a byte that is in none is not touched.
struct MemoryAccess {
  uint64_t address = 0;
  uint64_t bytes = 0;
  bool is_write = false;
};
using MemoryAccessVisitor = void (*)(void* context, const MemoryAccess& access);

// Where this process reaches what is at `address`, an address in parameters:
// that of any byte of some memory. The neighbours of that byte in that memory
// are its neighbours there, and the alignment is the same up to 16. Null:
// addresses are those of this process.
using AddressTranslator = void* (*)(void* context, uint64_t address);

struct HostKernel {
  const char* name;
  // Of its one parameter. What launches copies so many bytes.
  size_t params_size;
  // Runs all blocks. A table in the device's memory is read now. Ends the
  // process if the kernel touches what is not aligned as a GPU wants it.
  void (*run)(const void* params, uint32_t grid, AddressTranslator translate,
              void* context);
  // Calls visit(context, …) for all memory that run reads and writes. First for
  // the table, which is read right after; so call it when the launch is about
  // to run and not when it is queued. `context` is that of both functions.
  void (*visit_accesses)(const void* params, uint32_t grid,
                         AddressTranslator translate, MemoryAccessVisitor visit,
                         void* context);
};

// The kernel of that name, or null. Names: kernel_params.h.
const HostKernel* FindHostKernel(absl::string_view name);

}  // namespace sherd::internal

#endif  // SHERD_TESTING_EMULATED_GPU_DRIVER_HOST_KERNELS_H_
