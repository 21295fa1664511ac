#ifndef SHERD_SERIALIZATION_CHECKPOINT_DATA_FILE_CHECK_H_
#define SHERD_SERIALIZATION_CHECKPOINT_DATA_FILE_CHECK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/safetensors/safetensors_header.h"

namespace sherd {

// Data files of version 2, each checked by what it says about itself.

// A file that was read and found sound.
struct CheckedDataFile {
  // As a manifest would have it; the name is without the directory.
  ManifestFile file;
  DataFileContents contents;
  // Of contents.shards, by position: where each is, and what it adds to the
  // fingerprint of its tensor (BoxFingerprint), or the part of it that is here.
  std::vector<SavedExtent> extents;
  std::vector<uint32_t> fingerprints;
};

// Whether a safetensors file claims to be a data file of version 2 or later.
bool IsDataFile(const SafetensorsHeader& header);

// Reads and checks a whole file. Needs no manifest. `after_read` is called
// after each read of a chunk; its error ends the work.
//   kDataLoss  The message has file, tensor and offset.
//   others     As SafetensorsFile::Open and ParseDataFileHeader.
absl::StatusOr<CheckedDataFile> CheckDataFile(
    FileSystem& files, const std::string& path,
    const std::function<absl::Status()>& after_read = nullptr);

// Reads the bytes before the data, which are `data_begin`, and checks that they
// have the CRC, and that they claim to be so many.
//   kDataLoss  They have not; or `data_begin` is not one that a file can have.
absl::StatusOr<std::string> ReadHeaderChecked(File& file, int64_t data_begin,
                                              uint32_t crc32c);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_DATA_FILE_CHECK_H_
