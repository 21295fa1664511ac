#include "sherd/serialization/kits/checkpoint_place.h"

namespace sherd {

std::string CheckpointPlace(const std::string& directory) {
  return "objects:" + directory;
}

bool PlacesAreDirectories() { return false; }

}  // namespace sherd
