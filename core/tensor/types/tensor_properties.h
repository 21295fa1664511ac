#ifndef SHERD_CORE_TENSOR_TYPES_TENSOR_PROPERTIES_H_
#define SHERD_CORE_TENSOR_TYPES_TENSOR_PROPERTIES_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/strings/string_view.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd {

enum class Layout : int32_t { kStrided = 0, kSparseCoo = 1, kSparseCsr = 2 };

// The numbers are part of file formats.
enum class MemoryFormat : int32_t {
  kContiguous = 0,
  kChannelsLast = 1,
  kPreserve = 2,
};

absl::string_view Name(Layout layout);
absl::string_view Name(MemoryFormat format);

// The properties that all shards of a tensor share besides the global size.
// Sharded tensors accept only the layout kStrided and the memory format
// kContiguous; the other values exist so that they can be refused by name.
struct TensorProperties {
  DType dtype = kFloat32;
  Layout layout = Layout::kStrided;
  bool requires_grad = false;
  MemoryFormat memory_format = MemoryFormat::kContiguous;
  bool pin_memory = false;

  // "TensorProperties(dtype=float32, layout=strided, …)".
  std::string ToString() const;

  friend bool operator==(const TensorProperties&,
                         const TensorProperties&) = default;
};

std::ostream& operator<<(std::ostream& out, const TensorProperties& properties);

}  // namespace sherd

#endif  // SHERD_CORE_TENSOR_TYPES_TENSOR_PROPERTIES_H_
