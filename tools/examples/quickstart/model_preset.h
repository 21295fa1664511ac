#ifndef SHERD_TOOLS_EXAMPLES_QUICKSTART_MODEL_PRESET_H_
#define SHERD_TOOLS_EXAMPLES_QUICKSTART_MODEL_PRESET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/serialization/safetensors.h"

namespace sherd {

enum class ModelFill {
  // Uniform in [low, high); floating-point and complex tensors.
  kUniform,
  // 1 where the last index is not above the one before, otherwise 0: GPT-2's
  // attention mask.
  kCausalMask,
  // Random bits, for integers; 0 or 1 for bool.
  kBits,
};

struct ModelTensor {
  SafetensorsTensorInfo info;
  ModelFill fill = ModelFill::kUniform;
  double low = 0;
  double high = 1;
};

// The names of all presets.
std::vector<std::string> ModelPresetNames();

// The tensors of a model, in the order in which its modules hold them.
//   "gpt2"  The 160 tensors of GPT-2 small, named and shaped as in the file
//           model.safetensors that is published with it.
//   "tiny"  A few kB with every dtype of the format, empty tensors, scalars,
//           dimensions smaller than any number of ranks and up to five of them.
//
//   kInvalidArgument  There is no such preset; the message lists all.
absl::StatusOr<std::vector<ModelTensor>> ModelPreset(absl::string_view name);

// Bytes of the elements of all tensors.
int64_t ModelBytes(const std::vector<ModelTensor>& tensors);

}  // namespace sherd

#endif  // SHERD_TOOLS_EXAMPLES_QUICKSTART_MODEL_PRESET_H_
