#ifndef SHERD_TOOLS_SHERD_CHECKPOINT_LAYOUT_PICTURE_H_
#define SHERD_TOOLS_SHERD_CHECKPOINT_LAYOUT_PICTURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "sherd/core/sharding/spec/placed_box.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {

// A tensor in pieces.
struct HeldTensor {
  std::string name;
  DType dtype = kFloat32;
  Dims shape;
  // The boxes and their holders.
  std::vector<PlacedBox> boxes;
};

// The placement of all tensors at one time.
struct HeldStage {
  // "saved by 4 ranks".
  std::string label;
  int ranks = 1;
  // The same names in the same order in every stage of a picture.
  std::vector<HeldTensor> tensors;
};

// The tensors that a picture shows, and their names.
struct PictureRow {
  // Position in HeldStage::tensors.
  int64_t tensor = 0;
  // "rows", "grid", …; may be empty.
  std::string kind;
};

struct LayoutPicture {
  std::string title;
  std::string subtitle;
  std::vector<HeldStage> stages;
  std::vector<PictureRow> rows;
};

// Bytes that move between ranks from one layout of a tensor to another:
// matrix[r][s] is the number that rank r sends to rank s; the diagonal stays in
// place. Ranks outside [0, from_ranks) or [0, to_ranks) do not occur.
std::vector<std::vector<int64_t>> MovedBytes(const HeldTensor& from,
                                             const HeldTensor& to,
                                             int from_ranks, int to_ranks);

// An SVG of the placements: for each row the tensor in each stage, arrows with
// the bytes that move in between, then the total of each rank, and the bytes
// between each pair of ranks.
std::string DrawTransitions(const LayoutPicture& picture);

// An SVG of one stage: a card for each kind of tensor (tensors with equal
// shape, dtype and boxes are one kind), and the total of each rank.
std::string DrawStage(const std::string& title, const std::string& subtitle,
                      const HeldStage& stage);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_CHECKPOINT_LAYOUT_PICTURE_H_
