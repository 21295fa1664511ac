// Writes the files of this build's format version: DIR/manifest.sherd, the
// encoding of SampleManifest(), DIR/lease.sherd, that of SampleLease(),
// DIR/increment_header.safetensors, that of SampleIncrement(),
// DIR/rewritten_….safetensors, DIR/../interop_… as we write them,
// DIR/sharded_tensor_metadata.binpb and DIR/sharding_spec_….binpb, those of
// sample_metadata.h, DIR/archive.sherd, that of SampleState(), and
// DIR/checkpoint, that of golden_checkpoint.h. For a new version only, and of
// what has changed: files of a version are never edited.
//
//     tools/bazel run //serialization:make_golden --
//     $PWD/serialization/testdata/vN

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/serialization/archive.h"
#include "sherd/serialization/checkpoint/lease.h"
#include "sherd/serialization/kits/golden_checkpoint.h"
#include "sherd/serialization/kits/rewrite_safetensors.h"
#include "sherd/serialization/kits/sample_archive.h"
#include "sherd/serialization/kits/sample_data_file.h"
#include "sherd/serialization/kits/sample_index.h"
#include "sherd/serialization/kits/sample_lease.h"
#include "sherd/serialization/kits/sample_manifest.h"
#include "sherd/serialization/kits/sample_metadata.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/metadata.h"
#include "sherd/serialization/store/index_table.h"
#include "sherd/testing/local_ranks.h"

namespace sherd {
namespace {

absl::Status Write(const std::string& path, absl::string_view bytes) {
  return WriteFileAtomically(
      FileSystem::Posix(), path,
      absl::MakeSpan(reinterpret_cast<const std::byte*>(bytes.data()),
                     bytes.size()));
}

absl::Status WriteMetadata(const std::string& directory) {
  SHERD_ASSIGN_OR_RETURN(std::string bytes,
                         SerializeMetadata(SampleMetadata()));
  SHERD_RETURN_IF_ERROR(
      Write(JoinPath(directory, "sharded_tensor_metadata.binpb"), bytes));
  int i = 0;
  for (const ShardingSpecPtr& spec : SampleSpecs()) {
    SHERD_ASSIGN_OR_RETURN(bytes, SerializeSpec(spec));
    SHERD_RETURN_IF_ERROR(Write(
        JoinPath(directory, absl::StrCat("sharding_spec_", i++, ".binpb")),
        bytes));
  }
  return absl::OkStatus();
}

absl::Status Main(const std::string& directory) {
  SHERD_RETURN_IF_ERROR(FileSystem::Posix().CreateDirectories(directory));
  SHERD_ASSIGN_OR_RETURN(const std::string manifest,
                         EncodeManifest(SampleManifest()));
  SHERD_RETURN_IF_ERROR(
      Write(JoinPath(directory, kManifestFileName), manifest));
  SHERD_RETURN_IF_ERROR(
      Write(JoinPath(directory, kLeaseFileName), EncodeLease(SampleLease())));
  const IndexTable index = SampleIndex();
  SHERD_RETURN_IF_ERROR(
      Write(JoinPath(directory, IndexObjectName(index.number)),
            EncodeIndexTable(index)));
  SHERD_ASSIGN_OR_RETURN(const std::string increment,
                         EncodeDataFileHeader(SampleIncrement()));
  SHERD_RETURN_IF_ERROR(
      Write(JoinPath(directory, "increment_header.safetensors"), increment));
  SHERD_RETURN_IF_ERROR(WriteMetadata(directory));
  for (const char* name : {"dtypes", "shapes", "special"}) {
    SHERD_RETURN_IF_ERROR(RewriteSafetensors(
        JoinPath(directory, absl::StrCat("../interop_", name, ".safetensors")),
        JoinPath(directory, absl::StrCat("rewritten_", name, ".safetensors"))));
  }
  SHERD_ASSIGN_OR_RETURN(const StateDict state, SampleState());
  SHERD_RETURN_IF_ERROR(Save(state, JoinPath(directory, "archive.sherd")));
  absl::Status statuses[kGoldenRanks];
  testing::RunLocalRanks(kGoldenRanks, [&](ProcessGroup& group) {
    statuses[group.rank()] =
        SaveGoldenCheckpoint(JoinPath(directory, "checkpoint"));
  });
  SHERD_RETURN_IF_ERROR(statuses[0]);
  return statuses[1];
}

}  // namespace
}  // namespace sherd

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_golden DIR\n");
    return 2;
  }
  const absl::Status status = sherd::Main(argv[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
