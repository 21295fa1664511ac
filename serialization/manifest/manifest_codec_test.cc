#include "sherd/serialization/manifest/manifest_codec.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/serialization/kits/sample_manifest.h"
#include "sherd/serialization/kits/sample_manifest_v1.h"
#include "sherd/serialization/manifest/manifest_sections.h"
#include "sherd/serialization/manifest/manifest_v1.h"
#include "sherd/serialization/proto/checkpoint_v2.pb.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/wire/little_endian.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

namespace proto = checkpoint::v2;

const absl::StatusCode kLoss = absl::StatusCode::kDataLoss;

// The bytes of a manifest that may be invalid.
std::string Unchecked(const Manifest& manifest) {
  std::string bytes = ManifestFront(2);
  EXPECT_THAT(AppendSections(manifest, bytes), IsOk());
  return bytes;
}

TEST(ManifestCodecTest, SurvivesEncodingAndDecoding) {
  const Manifest manifest = SampleManifest();
  EXPECT_THAT(ValidateManifest(manifest), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, EncodeManifest(manifest));
  EXPECT_EQ(*EncodeManifest(manifest), bytes);
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest again, DecodeManifest(bytes, "m"));
  EXPECT_EQ(again, manifest);
}

TEST(ManifestCodecTest, ManifestsWithoutTensorsOrFilesSurvive) {
  Manifest manifest;
  manifest.save_id = "0123456789abcdef";
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, EncodeManifest(manifest));
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest again, DecodeManifest(bytes, "m"));
  EXPECT_EQ(again, manifest);
}

TEST(ManifestCodecTest, Version1SurvivesAsLayoutsAndRuns) {
  const ManifestV1 old = SampleManifestV1();
  const Manifest manifest = FromV1(old);
  EXPECT_EQ(manifest.version, 1);
  EXPECT_TRUE(manifest.tensors[2].layout.is_grid());
  EXPECT_EQ(manifest.tensors[2].runs.size(), 2u);
  EXPECT_EQ(ToV1(manifest), old);
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, EncodeManifest(manifest));
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest again, DecodeManifest(bytes, "m"));
  EXPECT_EQ(again, manifest);
}

TEST(ManifestCodecTest, EveryBitFlipAndTruncationIsFoundAndNamed) {
  const std::string bytes = *EncodeManifest(SampleManifest());
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_THAT(DecodeManifest(absl::string_view(bytes).substr(0, i), "path/m"),
                StatusIs(kLoss, StartsWith("path/m: ")))
        << i;
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      const auto manifest = DecodeManifest(damaged, "path/m");
      ASSERT_FALSE(manifest.ok()) << i << " " << bit;
      EXPECT_THAT(std::string(manifest.status().message()),
                  StartsWith("path/m: "));
    }
  }
  EXPECT_THAT(DecodeManifest(bytes + "x", "m"), StatusIs(kLoss));
}

TEST(ManifestCodecTest, ReadsAndWritesTheGoldenFile) {
  std::ifstream file("serialization/testdata/v2/manifest.sherd",
                     std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest manifest,
                             DecodeManifest(bytes, "v2"));
  EXPECT_EQ(manifest, SampleManifest());
  EXPECT_EQ(*EncodeManifest(manifest), bytes);
}

TEST(ManifestCodecTest, ALaterVersionIsRefusedWithBothNumbers) {
  std::string bytes = *EncodeManifest(SampleManifest());
  bytes[8] = 3;
  EXPECT_THAT(DecodeManifest(bytes, "m"),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("version 3"), HasSubstr("1 to 2"))));
}

struct Defect {
  const char* what;
  std::function<void(Manifest&)> spoil;
  const char* message;
};

TEST(ManifestCodecTest, RefusesWhatIsNotConsistent) {
  const std::vector<Defect> defects = {
      {"overlap",
       [](Manifest& m) {
         m.tensors[2].runs[0].extents[0] = {1, 16, 8, 2};
       },
       "an overlap or a hole"},
      {"hole",
       [](Manifest& m) {
         ++m.files[0].chunks;
         m.files[0].size += 44;
       },
       "belong to no tensor"},
      {"chunk",
       [](Manifest& m) { m.tensors[2].runs[0].extents[0].first_chunk = 3; },
       "an overlap or a hole"},
      {"past the end",
       [](Manifest& m) { m.tensors[2].runs[0].extents[0].data_offset = 32; },
       "offsets 4096 to 4129"},
      {"far past the end",
       [](Manifest& m) {
         m.tensors[2].runs[0].extents[0].data_offset = int64_t{1} << 62;
       },
       "offsets 4096 to 4129"},
      {"overflow",
       [](Manifest& m) {
         m.tensors[2].runs[0].extents[0].data_offset = (int64_t{1} << 62) + 8;
       },
       "column run"},
      {"file", [](Manifest& m) { m.tensors[2].runs[0].extents[0].file = 3; },
       "column run"},
      {"files of a run",
       [](Manifest& m) { m.tensors[4].runs[0].extents[0].file = 2; },
       "ends past the last"},
      {"placement", [](Manifest& m) { m.tensors[2].runs[0].placement = 2; },
       "column run"},
      {"no place", [](Manifest& m) { m.tensors[2].runs[0].extents.clear(); },
       "has elements, but no place"},
      {"a place for nothing",
       [](Manifest& m) {
         m.tensors[0].runs[0].extents = {{0, 0, 0, 1}};
       },
       "is empty, but has a place"},
      {"bytes", [](Manifest& m) { --m.tensors[3].runs[0].extents[1].bytes; },
       "bytes less"},
      {"order", [](Manifest& m) { std::swap(m.tensors[0], m.tensors[1]); },
       "out of order"},
      {"twice", [](Manifest& m) { m.tensors[1].name = "empty"; },
       "out of order"},
      {"reserved", [](Manifest& m) { m.tensors[2].name = "sherd.crc32c"; },
       "a tensor name"},
      {"file name", [](Manifest& m) { m.files[0].name = "../x"; },
       "a file name"},
      {"file twice", [](Manifest& m) { m.files[0].name = m.files[1].name; },
       "appears twice"},
      {"table", [](Manifest& m) { m.files[1].chunks = 1 << 20; },
       "ends with the CRCs"},
      {"chunk bytes", [](Manifest& m) { m.chunk_bytes = 0; }, "chunks have"},
      {"world", [](Manifest& m) { m.world_size = 0; }, "world size"},
      {"boxes that overlap",
       [](Manifest& m) {
         m.tensors[1].layout = SavedLayout::Boxes({3, 3}, {{{0, 0}, {1, 3}},
                                                           {{0, 2}, {2, 1}},
                                                           {{2, 1}, {1, 2}},
                                                           {{1, 0}, {2, 1}},
                                                           {{1, 1}, {1, 1}}});
       },
       "overlap"},
      {"a grid too small",
       [](Manifest& m) {
         m.tensors[4].layout =
             SavedLayout::Grid({4, 6}, {{.cells = 2, .step = 1}, {}});
       },
       "which do not fill it"},
      {"a huge grid",
       [](Manifest& m) {
         m.tensors[4].layout = SavedLayout::Grid(
             {4, 6},
             {{.cells = 1 << 20, .step = 1}, {.cells = 1 << 20, .step = 1}});
       },
       "a grid has more than"}};
  for (const Defect& defect : defects) {
    Manifest manifest = SampleManifest();
    // Only its tensors have chunk_bytes 32 in mind.
    defect.spoil(manifest);
    if (manifest.chunk_bytes == 0) {
      EXPECT_THAT(EncodeManifest(manifest),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr(defect.message)));
      continue;
    }
    EXPECT_THAT(
        DecodeManifest(Unchecked(manifest), "m"),
        StatusIs(kLoss, AllOf(StartsWith("m: "), HasSubstr(defect.message))))
        << defect.what;
    EXPECT_THAT(ValidateManifest(manifest), StatusIs(kLoss)) << defect.what;
  }
}

// A manifest made of sections by hand.
class Sections {
 public:
  proto::Tree Add(const google::protobuf::MessageLite& message) {
    proto::Tree place;
    place.set_offset(bytes_.size());
    const std::string text = message.SerializeAsString();
    place.set_length(static_cast<uint32_t>(text.size()));
    place.set_crc32c(Crc32c(AsBytes(text)));
    bytes_ += text;
    return place;
  }

  // With the tree of tensors.
  std::string Finish(const proto::Tree& tensors) {
    proto::Root root;
    root.set_world_size(1);
    root.set_chunk_bytes(32);
    proto::Placements placements;
    placements.add_placement("rank:0/cpu");
    *root.mutable_placements() = Add(placements);
    root.mutable_placements()->set_count(1);
    *root.mutable_tensors() = tensors;
    const proto::Tree place = Add(root);
    std::string trailer;
    AppendLittleEndian<uint64_t>(place.offset(), trailer);
    AppendLittleEndian<uint32_t>(place.length(), trailer);
    AppendLittleEndian<uint32_t>(place.crc32c(), trailer);
    AppendLittleEndian<uint32_t>(Crc32c(AsBytes(trailer)), trailer);
    return bytes_ + trailer;
  }

  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }

 private:
  std::string bytes_ = ManifestFront(2);
};

// An empty tensor of one dimension.
proto::Tensors TensorsNamed(const std::vector<std::string>& names) {
  proto::Tensors tensors;
  for (const std::string& name : names) {
    tensors.add_name(name);
    tensors.add_dtype(1);
    tensors.add_rank(1);
    tensors.add_size(0);
    tensors.add_flags(0);
    tensors.add_cut(0);
    tensors.add_fingerprint(0);
    for (const int number : {1, 1}) tensors.add_layout(number);
    for (const int number : {0, 0}) tensors.add_run(number);
  }
  return tensors;
}

void AddEntry(const proto::Tree& place, const std::string& name,
              proto::Index& index) {
  index.add_first_name(name);
  index.add_offset(place.offset());
  index.add_length(place.length());
  index.add_crc32c(place.crc32c());
}

TEST(ManifestCodecTest, IndexesAreInOrderAndLeadBackward) {
  // Two sections below an index; `second` is the first name of the second.
  const auto make = [](const std::vector<std::string>& names,
                       const std::string& second, uint32_t level) {
    Sections sections;
    proto::Index index;
    AddEntry(sections.Add(TensorsNamed({"a", "b"})), "a", index);
    AddEntry(sections.Add(TensorsNamed(names)), second, index);
    proto::Tree top = sections.Add(index);
    top.set_level(level);
    top.set_count(4);
    return sections.Finish(top);
  };
  EXPECT_THAT(DecodeManifest(make({"c", "d"}, "c", 1), "m"), IsOk());
  for (const auto& [bytes, message] :
       {std::pair(make({"b", "c"}, "b", 1), "out of order"),
        std::pair(make({"c", "d"}, "d", 1), "out of order"),
        std::pair(make({"d", "c"}, "d", 1), "out of order"),
        std::pair(make({"c"}, "c", 1), "its root says 4"),
        std::pair(make({"c", "d"}, "a", 1), "entries are out of order"),
        std::pair(make({"c", "d"}, "c", 2), "index of level 1"),
        std::pair(make({"c", "d"}, "c", 9), "has 9 levels")}) {
    EXPECT_THAT(DecodeManifest(bytes, "m"),
                StatusIs(kLoss, HasSubstr(message)));
  }
}

TEST(ManifestCodecTest, IndexesThatLeadInACircleOrOutsideAreRefused) {
  for (const int64_t shift :
       {int64_t{0}, int64_t{100}, int64_t{1} << 40, int64_t{-1} << 62}) {
    Sections sections;
    proto::Index index;
    proto::Tree self;
    self.set_offset(static_cast<uint64_t>(sections.size() + shift));
    self.set_length(20);
    AddEntry(self, "a", index);
    proto::Tree top = sections.Add(index);
    top.set_level(2);
    top.set_count(1);
    EXPECT_THAT(DecodeManifest(sections.Finish(top), "m"), StatusIs(kLoss))
        << shift;
  }
  // A section that two entries lead to, and bytes that none leads to.
  Sections sections;
  const proto::Tree place = sections.Add(TensorsNamed({"a"}));
  sections.Add(TensorsNamed({"b"}));
  proto::Tree top = place;
  top.set_count(1);
  EXPECT_THAT(DecodeManifest(sections.Finish(top), "m"),
              StatusIs(kLoss, HasSubstr("belong to no section")));
}

TEST(ManifestCodecTest, MemoryIsBoundedBeforeItIsTaken) {
  Sections sections;
  proto::Tensors tensors = TensorsNamed({"a"});
  tensors.clear_layout();
  // 2^26 chunks of nothing, in one run.
  for (const int64_t number : {1, 1 << 26, 1}) tensors.add_layout(number);
  tensors.clear_run();
  for (const int number : {1 << 5, 0}) tensors.add_run(number);
  proto::Tree top = sections.Add(tensors);
  top.set_count(1);
  const std::string bytes = sections.Finish(top);
  EXPECT_THAT(DecodeManifest(bytes, "m", 1 << 20),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("1048576 bytes in memory")));
}

// A manifest of `tensors` tensors on `ranks` ranks, in chunks of dimension 0
// unless `layout` says otherwise, as a save would place them.
Manifest LargeManifest(
    int tensors, int ranks,
    const std::function<SavedLayout(int tensor, const Dims& sizes)>& layout,
    const std::function<Dims(int tensor)>& sizes) {
  Manifest manifest;
  manifest.save_id = "0123456789abcdef";
  manifest.world_size = ranks;
  manifest.files.resize(ranks);
  std::vector<std::vector<ShardInFile>> shards(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    manifest.placements.push_back(absl::StrCat("rank:", rank, "/cpu"));
    manifest.files[rank].name = absl::StrFormat(
        "shard-%05d-of-%05d.0123456789abcdef.safetensors", rank, ranks);
    // Headers differ in length.
    manifest.files[rank].data_begin = 4096 * (200 + rank / 100);
  }
  manifest.tensors.resize(tensors);
  std::vector<std::vector<int>> order(ranks);
  std::vector<SavedShardPlace> places;
  std::vector<std::vector<std::pair<int64_t, int64_t>>> at(tensors);
  for (int t = 0; t < tensors; ++t) {
    ManifestTensor& tensor = manifest.tensors[t];
    tensor.name = absl::StrFormat("model.layers.%05d.weight", t);
    tensor.fingerprint = 0x12345678 + t;
    tensor.layout = layout(t, sizes(t));
    at[t].resize(tensor.num_shards());
  }
  // By falling bytes, per rank: the order of a data file, nearly.
  for (int rank = 0; rank < ranks; ++rank) {
    for (int t = 0; t < tensors; ++t) {
      const ManifestTensor& tensor = manifest.tensors[t];
      if (rank < tensor.num_shards() && tensor.layout.VolumeAt(rank) > 0) {
        order[rank].push_back(t);
      }
    }
    std::stable_sort(order[rank].begin(), order[rank].end(), [&](int a, int b) {
      return manifest.tensors[a].ShardBytes(rank) >
             manifest.tensors[b].ShardBytes(rank);
    });
    ManifestFile& file = manifest.files[rank];
    int64_t offset = 0;
    for (const int t : order[rank]) {
      at[t][rank] = {offset, 1 + file.chunks};
      const int64_t bytes = manifest.tensors[t].ShardBytes(rank);
      offset += bytes;
      file.chunks += NumChunks(bytes, manifest.chunk_bytes);
    }
    file.size = file.data_begin + offset + CrcTableBytes(file.chunks);
  }
  for (int t = 0; t < tensors; ++t) {
    ManifestTensor& tensor = manifest.tensors[t];
    for (int rank = 0; rank < tensor.num_shards(); ++rank) {
      SavedShardPlace place = {.placement = rank};
      const int64_t bytes = tensor.ShardBytes(rank);
      if (bytes > 0) {
        place.extents.push_back(
            {rank, at[t][rank].first, bytes, at[t][rank].second});
      }
      AppendPlace(std::move(place), manifest.chunk_bytes, tensor.runs);
    }
  }
  return manifest;
}

SavedLayout Chunked(int ranks, const Dims& sizes) {
  const int64_t step = (sizes[0] + ranks - 1) / ranks;
  return SavedLayout::Grid(sizes, {{.cells = ranks, .step = step}, {}});
}

TEST(ManifestCodecTest, ChunksCostNothingPerShard) {
  // As 10000 tensors, of which 32 MiB are allowed.
  const auto even = [](int t) { return Dims{300 * (1 + t % 3), 16}; };
  const auto uneven = [](int t) { return Dims{250 + 17 * (t % 50), 16}; };
  for (const auto& sizes : {+even, +uneven}) {
    const Manifest manifest = LargeManifest(
        300, 300, [](int, const Dims& dims) { return Chunked(300, dims); },
        sizes);
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                               EncodeManifest(manifest));
    EXPECT_LE(bytes.size(), size_t{300 * ((32 << 20) / 10000)} + 300 * 100);
    SHERD_ASSERT_OK_AND_ASSIGN(const Manifest again,
                               DecodeManifest(bytes, "m"));
    EXPECT_EQ(again, manifest);
  }
}

TEST(ManifestCodecTest, OtherBoxesCostFewBytes) {
  constexpr int kRanks = 256;
  constexpr int kTensors = 8;
  std::mt19937 random(7);
  // Halves of a random box of the tensor at a random place, again and again.
  const auto irregular = [&](int, const Dims& sizes) {
    std::vector<Box> boxes = {WholeBox(sizes)};
    while (boxes.size() < kRanks) {
      const size_t i = std::max_element(boxes.begin(), boxes.end(),
                                        [](const Box& a, const Box& b) {
                                          return Volume(a) < Volume(b);
                                        }) -
                       boxes.begin();
      const size_t d = boxes[i].sizes[0] > boxes[i].sizes[1] ? 0 : 1;
      Box other = boxes[i];
      const int64_t half = 1 + random() % (other.sizes[d] - 1);
      boxes[i].sizes[d] = half;
      other.offsets[d] += half;
      other.sizes[d] -= half;
      boxes.insert(boxes.begin() + i + 1, other);
    }
    return SavedLayout::FromBoxes(sizes, boxes);
  };
  const Manifest manifest = LargeManifest(kTensors, kRanks, irregular, [](int) {
    return Dims{16384, 12288};
  });
  EXPECT_FALSE(manifest.tensors[0].layout.is_grid());
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, EncodeManifest(manifest));
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest again, DecodeManifest(bytes, "m"));
  EXPECT_EQ(again, manifest);
  // Without the files.
  const size_t files = 100 * kRanks;
  EXPECT_LE(bytes.size(), files + 16 * kRanks * kTensors);
}

}  // namespace
}  // namespace sherd
