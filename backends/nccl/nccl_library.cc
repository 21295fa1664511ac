#include "sherd/backends/nccl/nccl_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <string>

#include "sherd/backends/plugin.h"

namespace sherd::internal {
namespace {

using plugin::Fail;

constexpr char kNcclFile[] = "libnccl.so.2";
constexpr char kDriverFile[] = "libcuda.so.1";

// Where NVIDIA's archives install it without configuring the dynamic linker.
constexpr const char* kNcclDirectories[] = {
    "/usr/local/cuda/lib64", "/opt/nvidia/nccl/lib", "/usr/local/lib"};

// The user's setting, or "".
std::string Setting(const sherd_host_v0& host, const char* name) {
  char value[4096] = {};
  if (host.setting(name, value, sizeof(value)) != SHERD_OK) return "";
  return value;
}

// Calls dlopen, and appends failures to `tried`.
void* Open(const std::string& path, int flags, std::string* tried) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
  if (handle != nullptr) return handle;
  const char* const reason = dlerror();
  if ((flags & RTLD_NOLOAD) != 0) return nullptr;
  if (!tried->empty()) *tried += "; ";
  *tried += reason != nullptr ? reason : path;
  return nullptr;
}

void* OpenNccl(const std::string& setting, std::string* tried) {
  if (!setting.empty()) {
    void* const handle = Open(setting, 0, tried);
    if (handle == nullptr) *tried += "; see SHERD_NCCL_LIBRARY";
    return handle;
  }
  void* handle = Open(kNcclFile, RTLD_NOLOAD, tried);
  if (handle == nullptr) handle = Open(kNcclFile, 0, tried);
  if (handle != nullptr) return handle;
  std::string searched;
  for (const char* directory : kNcclDirectories) {
    const std::string path = std::string(directory) + "/" + kNcclFile;
    if (access(path.c_str(), F_OK) == 0) {
      handle = Open(path, 0, tried);
      if (handle != nullptr) return handle;
    }
    searched += searched.empty() ? directory : std::string(", ") + directory;
  }
  *tried += "; nor in " + searched + "; SHERD_NCCL_LIBRARY can name it";
  return nullptr;
}

template <typename Function>
bool Find(void* handle, const char* symbol, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(handle, symbol));
  return *function != nullptr;
}

// The file that a function comes from.
std::string FileOf(const void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return "?";
  return info.dli_fname;
}

void FillNccl(void* handle, NcclLibrary* library) {
  std::string missing;
  NcclApi& api = library->api;
#define SHERD_FIND(member, symbol, required)               \
  if (!Find(handle, #symbol, &api.member) && (required)) { \
    missing += missing.empty() ? #symbol : ", " #symbol;   \
  }
  SHERD_NCCL_FUNCTIONS(SHERD_FIND)
#undef SHERD_FIND
  if (api.get_version == nullptr) {
    library->nccl_problem =
        "this is not NCCL: it has no ncclGetVersion; see SHERD_NCCL_LIBRARY";
    return;
  }
  const std::string file = FileOf(reinterpret_cast<void*>(api.get_version));
  const NcclResult result = api.get_version(&library->version);
  if (result != kNcclSuccess) {
    library->nccl_problem =
        file + ": ncclGetVersion failed with " + std::to_string(result);
    return;
  }
  library->description = NcclVersionText(library->version) + " from " + file;
  if (library->version < kOldestNccl) {
    library->nccl_problem = "NCCL " + library->description +
                            " is too old: need " +
                            NcclVersionText(kOldestNccl) + " or newer";
  } else if (!missing.empty()) {
    library->nccl_problem =
        "NCCL " + library->description + " lacks " + missing;
  }
}

void FillDriver(const std::string& setting, NcclLibrary* library) {
  const std::string name = setting.empty() ? kDriverFile : setting;
  std::string tried;
  void* const handle = Open(name, 0, &tried);
  if (handle == nullptr) {
    library->driver_problem =
        "no NVIDIA driver: " + tried +
        "; install it, or name its library by SHERD_CUDA_LIBRARY";
    return;
  }
  CudaContextApi& cuda = library->cuda;
  const bool complete =
      Find(handle, "cuInit", &cuda.init) &&
      Find(handle, "cuDeviceGetCount", &cuda.device_get_count) &&
      Find(handle, "cuGetErrorName", &cuda.get_error_name) &&
      Find(handle, "cuCtxGetCurrent", &cuda.ctx_get_current) &&
      Find(handle, "cuCtxSetCurrent", &cuda.ctx_set_current);
  if (!complete) {
    library->driver_problem =
        name + " is not an NVIDIA driver; see SHERD_CUDA_LIBRARY";
  }
}

// Advice for codes of machines without a working driver; the device plugin
// gives details.
const char* AdviceFor(int code) {
  switch (code) {
    case 34:
      return "; this is the toolkit's stub and no driver: see LD_LIBRARY_PATH "
             "and SHERD_CUDA_LIBRARY";
    case 35:
      return "; the driver is too old: update it";
    case 100:
      return "; no GPU is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES";
    default:
      return "; see nvidia-smi and the kernel's log";
  }
}

std::string DriverError(const CudaContextApi& cuda, const char* what,
                        int code) {
  const char* name = nullptr;
  if (cuda.get_error_name(code, &name) != 0) name = nullptr;
  return std::string(what) + " failed with " + std::to_string(code) +
         (name == nullptr ? "" : std::string(" (") + name + ")") +
         AdviceFor(code);
}

}  // namespace

std::string NcclVersionText(int version) {
  // Releases before 2.9 have another encoding.
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int rest = version < 10000 ? version % 1000 : version % 10000;
  return std::to_string(major) + "." + std::to_string(rest / 100) + "." +
         std::to_string(rest % 100);
}

NcclLibrary OpenNcclLibrary(const sherd_host_v0& host) {
  NcclLibrary library;
  std::string tried;
  void* const handle = OpenNccl(Setting(host, "nccl_library"), &tried);
  if (handle == nullptr) {
    library.nccl_problem = "no NCCL: " + tried;
  } else {
    FillNccl(handle, &library);
  }
  FillDriver(Setting(host, "cuda_library"), &library);
  return library;
}

sherd_code ProbeNccl(const NcclLibrary& library, sherd_error_v0* error) {
  if (!library.nccl_problem.empty()) {
    return Fail(error, SHERD_UNSUPPORTED, -1, library.nccl_problem.c_str());
  }
  if (!library.driver_problem.empty()) {
    return Fail(error, SHERD_UNSUPPORTED, -1, library.driver_problem.c_str());
  }
  const CudaContextApi& cuda = library.cuda;
  int code = cuda.init(0);
  if (code != 0) {
    error->native_code = code;
    return Fail(error, SHERD_UNSUPPORTED, -1,
                DriverError(cuda, "cuInit", code).c_str());
  }
  int devices = 0;
  code = cuda.device_get_count(&devices);
  if (code != 0) {
    error->native_code = code;
    return Fail(error, SHERD_UNSUPPORTED, -1,
                DriverError(cuda, "cuDeviceGetCount", code).c_str());
  }
  if (devices > 0) return SHERD_OK;
  return Fail(error, SHERD_UNSUPPORTED, -1,
              "this process may use no device: see CUDA_VISIBLE_DEVICES");
}

}  // namespace sherd::internal
