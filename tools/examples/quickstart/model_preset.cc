#include "sherd/tools/examples/quickstart/model_preset.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/logging.h"

namespace sherd {
namespace {

// Standard deviation 0.02, as GPT-2 is initialised.
constexpr double kSpread = 0.0346;

void Add(std::vector<ModelTensor>& model, std::string name, Dims shape,
         DType dtype = kFloat32) {
  const bool has_uniform = IsFloatingPoint(dtype) || IsComplex(dtype);
  model.push_back({{std::move(name), dtype, std::move(shape)},
                   has_uniform ? ModelFill::kUniform : ModelFill::kBits,
                   -kSpread,
                   kSpread});
}

// A normalisation's gain is near 1.
void AddNorm(std::vector<ModelTensor>& model, const std::string& name,
             int64_t width) {
  Add(model, name + ".weight", {width});
  model.back().low = 0.9;
  model.back().high = 1.1;
  Add(model, name + ".bias", {width});
}

void AddLinear(std::vector<ModelTensor>& model, const std::string& name,
               int64_t from, int64_t to) {
  Add(model, name + ".weight", {from, to});
  Add(model, name + ".bias", {to});
}

struct GptShape {
  int64_t vocabulary;
  int64_t positions;
  int64_t width;
  int64_t layers;
};

std::vector<ModelTensor> Gpt(const GptShape& shape) {
  std::vector<ModelTensor> model;
  Add(model, "wte.weight", {shape.vocabulary, shape.width});
  Add(model, "wpe.weight", {shape.positions, shape.width});
  for (int64_t i = 0; i < shape.layers; ++i) {
    const std::string layer = absl::StrCat("h.", i);
    AddNorm(model, layer + ".ln_1", shape.width);
    Add(model, layer + ".attn.bias", {1, 1, shape.positions, shape.positions});
    model.back().fill = ModelFill::kCausalMask;
    AddLinear(model, layer + ".attn.c_attn", shape.width, 3 * shape.width);
    AddLinear(model, layer + ".attn.c_proj", shape.width, shape.width);
    AddNorm(model, layer + ".ln_2", shape.width);
    AddLinear(model, layer + ".mlp.c_fc", shape.width, 4 * shape.width);
    AddLinear(model, layer + ".mlp.c_proj", 4 * shape.width, shape.width);
  }
  AddNorm(model, "ln_f", shape.width);
  return model;
}

std::vector<ModelTensor> Tiny() {
  std::vector<ModelTensor> model =
      Gpt({.vocabulary = 31, .positions = 8, .width = 6, .layers = 1});
  // Its contents never change.
  for (int i = 0; i < kNumComputedDTypes; ++i) {
    const DType dtype = static_cast<DType>(i);
    if (dtype == kComplex128) continue;  // The format has no name for it.
    Add(model, absl::StrCat("dtype.", Name(dtype)), {3, 5}, dtype);
  }
  Add(model, "scalar.step", {}, kInt64);
  Add(model, "scalar.scale", {});
  Add(model, "scalar.flag", {}, kBool);
  Add(model, "empty.rows", {0, 7});
  Add(model, "empty.columns", {5, 0});
  Add(model, "empty.vector", {0}, kBFloat16);
  Add(model, "small.one", {1});
  Add(model, "small.row", {1, 9});
  Add(model, "small.column", {2, 1});
  Add(model, "deep.3d", {3, 4, 5}, kFloat16);
  Add(model, "deep.5d", {2, 1, 3, 2, 4}, kInt16);
  return model;
}

}  // namespace

std::vector<std::string> ModelPresetNames() { return {"gpt2", "tiny"}; }

absl::StatusOr<std::vector<ModelTensor>> ModelPreset(absl::string_view name) {
  if (name == "gpt2") {
    return Gpt(
        {.vocabulary = 50257, .positions = 1024, .width = 768, .layers = 12});
  }
  if (name == "tiny") return Tiny();
  return absl::InvalidArgumentError(
      absl::StrCat("there is no preset \"", name, "\", expected one of ",
                   absl::StrJoin(ModelPresetNames(), ", ")));
}

int64_t ModelBytes(const std::vector<ModelTensor>& tensors) {
  int64_t total = 0;
  for (const ModelTensor& tensor : tensors) {
    const absl::StatusOr<int64_t> bytes =
        NumBytes(tensor.info.shape, tensor.info.dtype);
    SHERD_CHECK(bytes.ok()) << tensor.info.name;
    total += *bytes;
  }
  return total;
}

}  // namespace sherd
