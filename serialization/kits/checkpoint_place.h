#ifndef SHERD_SERIALIZATION_KITS_CHECKPOINT_PLACE_H_
#define SHERD_SERIALIZATION_KITS_CHECKPOINT_PLACE_H_

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/testing/matchers.h"

namespace sherd {

// Where the tests of this program keep checkpoints, which the program decides
// by what it links: in directories, or in directories that are object stores.
// So one source is a test of both.

// The path of the checkpoint, or series, in the directory.
std::string CheckpointPlace(const std::string& directory);

// Whether that is the directory: tests may change its files in place.
bool PlacesAreDirectories();

// Removes a file, or all that is below a path, of either.
inline void RemovePlaced(const std::string& path) {
  EXPECT_THAT(CheckpointFiles().Remove(path), testing::IsOk());
}
inline void RemoveAllPlaced(const std::string& path) {
  EXPECT_THAT(CheckpointFiles().RemoveAll(path), testing::IsOk());
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_CHECKPOINT_PLACE_H_
