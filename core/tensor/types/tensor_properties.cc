#include "sherd/core/tensor/types/tensor_properties.h"

#include "absl/strings/str_cat.h"

namespace sherd {

absl::string_view Name(Layout layout) {
  switch (layout) {
    case Layout::kStrided:
      return "strided";
    case Layout::kSparseCoo:
      return "sparse_coo";
    case Layout::kSparseCsr:
      return "sparse_csr";
  }
  return "invalid";
}

absl::string_view Name(MemoryFormat format) {
  switch (format) {
    case MemoryFormat::kContiguous:
      return "contiguous";
    case MemoryFormat::kChannelsLast:
      return "channels_last";
    case MemoryFormat::kPreserve:
      return "preserve";
  }
  return "invalid";
}

std::string TensorProperties::ToString() const {
  return absl::StrCat("TensorProperties(dtype=", Name(dtype),
                      ", layout=", Name(layout),
                      ", requires_grad=", requires_grad ? "true" : "false",
                      ", memory_format=", Name(memory_format),
                      ", pin_memory=", pin_memory ? "true" : "false", ")");
}

std::ostream& operator<<(std::ostream& out,
                         const TensorProperties& properties) {
  return out << properties.ToString();
}

}  // namespace sherd
