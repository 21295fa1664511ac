#ifndef SHERD_SERIALIZATION_MANIFEST_EMPTY_BOXES_H_
#define SHERD_SERIALIZATION_MANIFEST_EMPTY_BOXES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sherd/serialization/manifest/saved_layout.h"

namespace sherd {

// Which boxes of a layout have no elements, one after another: O(1) each for a
// grid, where SavedLayout::VolumeAt is O(d). A manifest of a few bytes may say
// that it has 2^26 boxes of 64 dimensions.
class EmptyBoxes {
 public:
  // At box `first`; `layout` outlives it.
  EmptyBoxes(const SavedLayout& layout, int64_t first);

  // Whether the box has no elements.
  bool is_empty() const {
    return layout_.is_grid() ? empty_cells_ > 0 : layout_.VolumeAt(box_) == 0;
  }

  // To the next box, if there is one.
  void Next();

 private:
  // A dimension of a grid that is cut.
  struct Digit {
    size_t dim = 0;
    int64_t cell = 0;
    bool is_empty = false;
  };

  bool IsEmpty(size_t dim, int64_t cell) const;
  void Set(Digit& digit, int64_t cell);

  const SavedLayout& layout_;
  int64_t box_;
  // The last dimension first: its cells follow one another.
  std::vector<Digit> digits_;
  // Of the box, and the dimensions that are not cut.
  int64_t empty_cells_ = 0;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_EMPTY_BOXES_H_
