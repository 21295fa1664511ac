#include "sherd/tools/bench/cases/many_tensors.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

constexpr int64_t kUnit = kManyTensors * 100 * int64_t{sizeof(uint32_t)};

}  // namespace

std::string NameOfTensor(int64_t tensor) {
  return absl::StrFormat("layers.%05d.weight", tensor);
}

int64_t FitManyTensors(int64_t bytes) {
  return bytes < kUnit ? bytes : bytes / kUnit * kUnit;
}

absl::Status CheckManyTensors(int, int64_t bytes,
                              const std::string& directory) {
  if (bytes % kUnit != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("needs at least ", kUnit, " bytes"));
  }
  return CheckSpaceForThree(bytes, directory);
}

absl::Status CheckSpaceForThree(int64_t bytes, const std::string& directory) {
  SHERD_ASSIGN_OR_RETURN(const int64_t free_bytes,
                         FileSystem::Posix().FreeBytes(directory));
  if (free_bytes / 3 >= bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("needs three times as much space in ", directory, ", where ",
                   free_bytes, " bytes are free"));
}

}  // namespace sherd
