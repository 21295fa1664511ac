#ifndef SHERD_SERIALIZATION_KITS_REWRITE_SAFETENSORS_H_
#define SHERD_SERIALIZATION_KITS_REWRITE_SAFETENSORS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/safetensors.h"

namespace sherd {

// For tests: reads all of the safetensors file `from` and writes it as `to`.
inline absl::Status RewriteSafetensors(const std::string& from,
                                       const std::string& to) {
  FileSystem& files = FileSystem::Posix();
  SHERD_ASSIGN_OR_RETURN(const SafetensorsFile file,
                         SafetensorsFile::Open(files, from));
  std::vector<SafetensorsTensorInfo> infos;
  for (const SafetensorsEntry& entry : file.entries()) {
    infos.push_back({entry.name, entry.dtype, entry.shape});
  }
  SHERD_ASSIGN_OR_RETURN(
      auto writer,
      SafetensorsWriter::Create(files, to, std::move(infos), file.metadata()));
  for (const SafetensorsEntry& entry : file.entries()) {
    SHERD_ASSIGN_OR_RETURN(const Tensor tensor, file.ReadTensor(entry.name));
    SHERD_RETURN_IF_ERROR(writer->Write(entry.name, tensor));
  }
  return writer->Finish();
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_REWRITE_SAFETENSORS_H_
