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
  // Who holds what.
  std::vector<PlacedBox> boxes;
};

// One place where all tensors are at a time.
struct HeldStage {
  // "saved by 4 ranks".
  std::string label;
  int ranks = 1;
  // The same names in the same order in every stage of a picture.
  std::vector<HeldTensor> tensors;
};

// Which tensors a picture shows, and how they are called.
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

// Bytes that change their rank between two layouts of one tensor: matrix[r][s]
// is what rank r hands to rank s; the diagonal stays where it is. Ranks outside
// [0, from_ranks) or [0, to_ranks) do not occur.
std::vector<std::vector<int64_t>> MovedBytes(const HeldTensor& from,
                                             const HeldTensor& to,
                                             int from_ranks, int to_ranks);

// An SVG of who holds what: for each row the tensor in each stage, arrows with
// the bytes that move in between, then what each rank holds in all, and who
// hands how much to whom.
std::string DrawTransitions(const LayoutPicture& picture);

// An SVG of one stage: a card for each kind of tensor, those with equal shape,
// dtype and boxes being one kind, and what each rank holds in all.
std::string DrawStage(const std::string& title, const std::string& subtitle,
                      const HeldStage& stage);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_CHECKPOINT_LAYOUT_PICTURE_H_
