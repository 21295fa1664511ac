#ifndef SHERD_TOOLS_EXAMPLES_QUICKSTART_MODEL_WRITER_H_
#define SHERD_TOOLS_EXAMPLES_QUICKSTART_MODEL_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/tools/examples/quickstart/model_preset.h"

namespace sherd {

struct ModelWriterOptions {
  uint64_t seed = 0;
  int threads = 2;
  // Called after each piece, from one thread at a time.
  std::function<void(int64_t bytes, absl::string_view tensor)> on_progress;
};

// Computes the elements [first, first + count) of `tensor`, number `index` of
// its model, into `bytes`. A pure function of its arguments on every machine.
absl::Status FillModelPiece(const ModelTensor& tensor, int64_t index,
                            uint64_t seed, int64_t first, int64_t count,
                            absl::Span<std::byte> bytes);

// Writes the model as a safetensors file; the same arguments give the same
// bytes. The file appears whole or not at all.
//   kResourceExhausted  There is not enough space.
// Cost. A few MiB of memory per thread.
absl::Status WriteModel(FileSystem& files, const std::string& path,
                        const std::vector<ModelTensor>& model,
                        const ModelWriterOptions& options = {});

}  // namespace sherd

#endif  // SHERD_TOOLS_EXAMPLES_QUICKSTART_MODEL_WRITER_H_
