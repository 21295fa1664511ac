#ifndef SHERD_TOOLS_SHERD_CHECKPOINT_INSPECTION_H_
#define SHERD_TOOLS_SHERD_CHECKPOINT_INSPECTION_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/core/base/file.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/box.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/checkpoint_series.h"
#include "sherd/tools/sherd/checkpoint/layout_picture.h"

namespace sherd {

// Bytes of a shard that lie together.
struct InspectedExtent {
  std::string file;
  int64_t file_offset = 0;
  int64_t bytes = 0;

  friend bool operator==(const InspectedExtent&,
                         const InspectedExtent&) = default;
};

struct InspectedShard : Box {
  // "rank:0/cpu"; empty in a file that one process wrote.
  std::string placement;
  // The same as a number for pictures: the rank, or the index in the list of
  // placements if there is no rank.
  int holder = 0;
  // Where the bytes are, in their order; none for a shard without elements.
  std::vector<InspectedExtent> extents;

  friend bool operator==(const InspectedShard&,
                         const InspectedShard&) = default;
};

struct InspectedTensor {
  std::string name;
  DType dtype = kFloat32;
  Dims shape;
  int64_t bytes = 0;
  // "one piece", "chunks of dimension 0", "boxes".
  std::string layout;
  std::vector<InspectedShard> shards;
  // Of a checkpoint: the CRC-32C of all elements, which no layout changes.
  std::optional<uint32_t> fingerprint;
};

struct InspectedFile {
  std::string name;
  int64_t bytes = 0;
};

// The contents of a safetensors file, a checkpoint or a series, without
// elements.
struct Inspection {
  std::string path;
  bool is_checkpoint = false;
  // Of a directory: its steps, ascending. It may be a checkpoint as well;
  // otherwise the members below are empty.
  std::vector<SeriesStep> steps;
  // Of a checkpoint: the program that wrote it, and the number of ranks.
  std::string writer;
  int world_size = 1;
  // Of a safetensors file.
  std::map<std::string, std::string> metadata;
  std::vector<InspectedFile> files;
  std::vector<InspectedTensor> tensors;
  // Of a checkpoint of a state, without elements: what ranks share, and what
  // each rank has of its own.
  StateDict state;
  std::map<int, StateDict> rank_states;

  int64_t tensor_bytes() const;
};

// Reads headers only, and values of a state: of the checkpoint of which `path`
// is the directory or the manifest, which may be that of a step, and of the
// steps in a directory; otherwise of a safetensors file.
//   kNotFound  There is nothing at `path`, or a directory without a manifest;
//              the message states what was expected.
//   Otherwise as SafetensorsFile::Open and CheckpointReader::Open.
absl::StatusOr<Inspection> Inspect(FileSystem& files, const std::string& path);

// The path to inspect or verify for a step in a directory, or, without one, for
// all of it.
std::string PathOfStep(const std::string& directory,
                       std::optional<int64_t> step);

// A heading, a table with a line per tensor, the first values of a state, and a
// table with a line per step.
std::string FormatInspection(const Inspection& inspection);

// The whole inspection as one JSON object, shards included.
std::string InspectionToJson(const Inspection& inspection);

// A picture of the boxes and their holders.
//   kInvalidArgument  There are steps alone: one must be chosen.
absl::StatusOr<std::string> InspectionToSvg(const Inspection& inspection);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_CHECKPOINT_INSPECTION_H_
