#include <dlfcn.h>

#include <set>
#include <string>

#include "gtest/gtest.h"
#include "sherd/backends/nccl/nccl_api.h"

namespace sherd::testing {
namespace {

// The functions of SHERD_NCCL_FUNCTIONS that a library lacks.
std::set<std::string> Missing(const char* file) {
  const std::string path = std::string("testing/emulated_gpu/") + file;
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {dlerror()};
  std::set<std::string> missing;
  const auto look = [&](const char* symbol, bool required) {
    if (dlsym(library, symbol) != nullptr) return;
    missing.insert(symbol);
    EXPECT_FALSE(required) << symbol;
  };
#define SHERD_LOOK(member, symbol, required) look(#symbol, required);
  SHERD_NCCL_FUNCTIONS(SHERD_LOOK)
#undef SHERD_LOOK
  return missing;
}

TEST(EmulatedNcclLibrary, HasAllThatIsCalled) {
  EXPECT_EQ(Missing("libsherd_emulated_gpu.so"), std::set<std::string>());
}

TEST(EmulatedNcclLibrary, TheOldLibraryLacksLaterFunctions) {
  EXPECT_EQ(
      Missing("libsherd_emulated_old_nccl.so"),
      (std::set<std::string>{"ncclCommDeregister", "ncclCommInitRankScalable",
                             "ncclCommRegister", "ncclCommRevoke",
                             "ncclCommShrink", "ncclMemAlloc", "ncclMemFree"}));
}

}  // namespace
}  // namespace sherd::testing
