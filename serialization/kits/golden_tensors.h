#ifndef SHERD_SERIALIZATION_KITS_GOLDEN_TENSORS_H_
#define SHERD_SERIALIZATION_KITS_GOLDEN_TENSORS_H_

#include <vector>

#include "sherd/serialization/kits/sample_tensors.h"

namespace sherd {

// The contents of the checkpoint under testdata/v1: tensor i has the elements
// of FillSample(kGoldenSeed + i). Never changed, like the files.
inline constexpr int kGoldenSeed = 7;

inline std::vector<SampleTensor> GoldenTensors() {
  return {{"block.0/weight", {6, 5}, kFloat32},
          {"empty", {0, 4}, kInt64},
          {"head", {3, 2, 2}, kComplex128},
          {"norm@1", {9}, kBFloat16},
          {"step", {}, kUInt64}};
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_GOLDEN_TENSORS_H_
