#ifndef SHERD_TOOLS_EXAMPLES_QUICKSTART_MODEL_COMPARISON_H_
#define SHERD_TOOLS_EXAMPLES_QUICKSTART_MODEL_COMPARISON_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/file.h"

namespace sherd {

struct ModelComparison {
  int64_t tensors = 0;
  // Bytes of all elements, compared one by one.
  int64_t bytes = 0;
};

// Compares two safetensors files tensor by tensor: name, dtype, shape and every
// byte. Where a tensor lies in its file does not matter. `on_progress` may be
// empty.
//   kDataLoss  They differ; names file, tensor, and for data the element and
//              its bytes in both.
//   Otherwise as SafetensorsFile::Open.
// Cost. Two buffers of 4 MiB.
absl::StatusOr<ModelComparison> CompareModels(
    FileSystem& files, const std::string& expected_path,
    const std::string& actual_path,
    const std::function<void(int64_t bytes, absl::string_view tensor)>&
        on_progress);

}  // namespace sherd

#endif  // SHERD_TOOLS_EXAMPLES_QUICKSTART_MODEL_COMPARISON_H_
