#include "sherd/backends/nccl/nccl_library.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"

namespace sherd::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The setting of the "user".
std::string nccl_setting;
std::string cuda_setting;

sherd_code Setting(const char* name, char* value, uint64_t capacity) {
  const std::string& text =
      std::string(name) == "nccl_library" ? nccl_setting : cuda_setting;
  if (text.size() >= capacity) return SHERD_RESOURCE;
  std::memcpy(value, text.c_str(), text.size() + 1);
  return SHERD_OK;
}

NcclLibrary Open(const std::string& nccl, const std::string& cuda) {
  nccl_setting = nccl;
  cuda_setting = cuda;
  return OpenNcclLibrary({.struct_size = sizeof(sherd_host_v0),
                          .major = SHERD_ABI_MAJOR,
                          .minor = SHERD_ABI_MINOR,
                          .setting = Setting});
}

std::string FakeNccl(int number) {
  return absl::StrCat("backends/nccl/libfake_nccl_", number, ".so");
}

std::string Probe(const NcclLibrary& library) {
  sherd_error_v0 error = {.struct_size = sizeof(error)};
  const sherd_code code = ProbeNccl(library, &error);
  if (code == SHERD_OK) return "";
  EXPECT_EQ(code, SHERD_UNSUPPORTED);
  return error.text;
}

TEST(NcclLibraryTest, ReportsWhichFileItCouldNotOpen) {
  const NcclLibrary library = Open("/nowhere/libnccl.so.2", "libm.so.6");
  EXPECT_THAT(
      library.nccl_problem,
      AllOf(HasSubstr("no NCCL: "), HasSubstr("/nowhere/libnccl.so.2"),
            HasSubstr("No such file"), HasSubstr("SHERD_NCCL_LIBRARY")));
  EXPECT_EQ(Probe(library), library.nccl_problem);
}

TEST(NcclLibraryTest, ReportsWhyALibraryIsUnusable) {
  const struct {
    std::string file;
    std::string text;
  } cases[] = {
      {"libm.so.6", "this is not NCCL: it has no ncclGetVersion"},
      {FakeNccl(1), "is too old: need 2.19.4 or newer"},
      {FakeNccl(2), "is too old: need 2.19.4 or newer"},
      {FakeNccl(3),
       " lacks ncclGetErrorString, ncclGetUniqueId, "
       "ncclCommSplit, ncclCommFinalize"},
      {FakeNccl(4), "ncclGetVersion failed with 3"},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.file);
    const NcclLibrary library = Open(test.file, "");
    EXPECT_THAT(library.nccl_problem, HasSubstr(test.text));
    EXPECT_THAT(Probe(library), HasSubstr(test.text));
  }
  EXPECT_THAT(Open(FakeNccl(1), "").nccl_problem, HasSubstr("NCCL 2.7.8 from"));
  EXPECT_THAT(Open(FakeNccl(2), "").description,
              AllOf(HasSubstr("2.17.5 from "), HasSubstr("libfake_nccl_2.so")));
}

// On any machine: the library is found, or the error lists the places.
TEST(NcclLibraryTest, SearchesTheUsualPlaces) {
  const NcclLibrary library = Open("", "");
  if (library.nccl_problem.empty()) {
    EXPECT_GE(library.version, kOldestNccl);
    EXPECT_THAT(library.description, HasSubstr(" from "));
  } else {
    EXPECT_THAT(library.nccl_problem,
                AllOf(HasSubstr("libnccl.so.2"), HasSubstr("/usr/local/lib"),
                      HasSubstr("SHERD_NCCL_LIBRARY")));
  }
}

TEST(NcclLibraryTest, ReportsThatThereIsNoDriver) {
  NcclLibrary library = Open("libm.so.6", "/nowhere/libcuda.so.1");
  library.nccl_problem.clear();
  EXPECT_THAT(Probe(library), AllOf(HasSubstr("no NVIDIA driver: "),
                                    HasSubstr("/nowhere/libcuda.so.1"),
                                    HasSubstr("SHERD_CUDA_LIBRARY")));
  library = Open("libm.so.6", "libm.so.6");
  library.nccl_problem.clear();
  EXPECT_EQ(Probe(library),
            "libm.so.6 is not an NVIDIA driver; see SHERD_CUDA_LIBRARY");
}

int init_code = 0;
int count_code = 0;
int devices = 0;

// A driver that answers as above.
NcclLibrary WithDriver(int init, int count, int number) {
  init_code = init;
  count_code = count;
  devices = number;
  NcclLibrary library;
  library.cuda.init = [](unsigned int) { return init_code; };
  library.cuda.device_get_count = [](int* n) {
    *n = devices;
    return count_code;
  };
  library.cuda.get_error_name = [](int code, const char** name) {
    if (code == 999) return 1;
    *name = code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OTHER";
    return 0;
  };
  return library;
}

TEST(NcclLibraryTest, ProbesTheDriver) {
  EXPECT_EQ(Probe(WithDriver(0, 0, 1)), "");
  EXPECT_EQ(Probe(WithDriver(100, 0, 0)),
            "cuInit failed with 100 (CUDA_ERROR_NO_DEVICE); no GPU is visible: "
            "see nvidia-smi and CUDA_VISIBLE_DEVICES");
  EXPECT_THAT(Probe(WithDriver(34, 0, 0)), HasSubstr("the toolkit's stub"));
  EXPECT_THAT(Probe(WithDriver(35, 0, 0)), HasSubstr("too old: update it"));
  EXPECT_EQ(Probe(WithDriver(999, 0, 0)),
            "cuInit failed with 999; see nvidia-smi and the kernel's log");
  EXPECT_EQ(Probe(WithDriver(0, 3, 0)),
            "cuDeviceGetCount failed with 3 (CUDA_ERROR_OTHER); see nvidia-smi "
            "and the kernel's log");
  EXPECT_THAT(Probe(WithDriver(0, 0, 0)), HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST(NcclLibraryTest, WritesVersionsAsTheirReleasesDo) {
  EXPECT_EQ(NcclVersionText(2708), "2.7.8");
  EXPECT_EQ(NcclVersionText(21801), "2.18.1");
  EXPECT_EQ(NcclVersionText(22809), "2.28.9");
}

}  // namespace
}  // namespace sherd::internal
