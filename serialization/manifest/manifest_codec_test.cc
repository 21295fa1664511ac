#include "sherd/serialization/manifest/manifest_codec.h"

#include <algorithm>
#include <cstdint>
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
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/layout_codec.h"
#include "sherd/serialization/manifest/manifest_sections.h"
#include "sherd/serialization/manifest/manifest_v1.h"
#include "sherd/serialization/manifest/number_reader.h"
#include "sherd/serialization/manifest/saved_layout.h"
#include "sherd/serialization/manifest/tensor_codec.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const absl::StatusCode kLoss = absl::StatusCode::kDataLoss;

// The bytes of a manifest that may be invalid.
std::string Unchecked(const Manifest& manifest) {
  std::string bytes = ManifestFront(2);
  MemoryBudget memory(kMaxManifestMemory);
  EXPECT_THAT(AppendSections(
                  manifest, [&](size_t i) { return manifest.tensors[i]; },
                  memory, bytes),
              IsOk());
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

TEST(ManifestCodecTest, RunsMayComeOneTensorAtATime) {
  const Manifest manifest = SampleManifest();
  Manifest without = manifest;
  for (ManifestTensor& tensor : without.tensors) tensor.runs.clear();
  size_t next = 0;
  const auto runs_of = [&](size_t t) {
    EXPECT_EQ(t, next++);
    return manifest.tensors[t].runs;
  };
  EXPECT_EQ(*EncodeManifest(without, runs_of), *EncodeManifest(manifest));
  EXPECT_EQ(next, manifest.tensors.size());

  size_t asked = 0;
  const auto none = [&asked](size_t) {
    ++asked;
    return SavedRuns();
  };
  EXPECT_THAT(EncodeManifest(without, none),
              StatusIs(absl::StatusCode::kInvalidArgument));
  // What is refused is not written, nor what follows.
  EXPECT_LT(asked, manifest.tensors.size());
}

TEST(ManifestCodecTest, EqualLayoutsInARowAreReadAsCopies) {
  const auto halves = [](int64_t rows, int64_t columns) {
    return SavedLayout::FromBoxes(
        {rows, columns},
        {{{0, 0}, {4, columns}}, {{4, 0}, {rows - 4, columns}}});
  };
  const auto boxes = [](int64_t columns) {
    return SavedLayout::Boxes({2, columns}, {{{0, 0}, {2, 1}},
                                             {{0, 1}, {1, columns - 1}},
                                             {{1, 1}, {1, columns - 1}}});
  };
  struct Case {
    SavedLayout layout;
    bool is_copy;
  };
  // Some have the numbers of the one before but other sizes, or the reverse.
  const std::vector<Case> cases = {{halves(7, 3), false},
                                   {halves(7, 3), true},
                                   {halves(8, 3), false},
                                   {halves(7, 3), false},
                                   {SavedLayout::Whole({2, 5}), false},
                                   {SavedLayout::Whole({2, 5}), true},
                                   {boxes(5), false},
                                   {boxes(5), true},
                                   {boxes(5), true},
                                   {boxes(6), false},
                                   {SavedLayout::Whole({2, 6}), false},
                                   {boxes(6), false}};
  std::vector<uint64_t> numbers;
  for (const Case& c : cases) AppendLayout(c.layout, numbers);
  NumberReader reader(numbers, "layout");
  MemoryBudget memory(kMaxManifestMemory);
  LayoutReader layouts(reader, memory);
  SavedLayout before;
  int64_t taken = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    const int64_t memory_before = memory.taken();
    SHERD_ASSERT_OK_AND_ASSIGN(const SavedLayout layout,
                               layouts.Take(cases[i].layout.sizes()));
    EXPECT_EQ(layout, cases[i].layout);
    EXPECT_EQ(i > 0 && layout.IsCopyOf(before), cases[i].is_copy);
    if (cases[i].is_copy) {
      EXPECT_EQ(memory.taken() - memory_before, taken);
    }
    taken = memory.taken() - memory_before;
    EXPECT_GT(taken, 0);
    before = layout;
  }
  EXPECT_THAT(reader.ExpectEmpty(), IsOk());
  EXPECT_THAT(layouts.Take({2, 6}), StatusIs(kLoss, "ends after"));
}

// A section of 128 MiB has room for millions of cuts and of runs: with a pass
// over the cuts for each run, even these take minutes.
TEST(ManifestCodecTest, ARunIsCheckedWithoutAPassOverTheCuts) {
  constexpr int64_t kShards = int64_t{1} << 19;
  SavedLayout::Axis axis = {.cells = kShards};
  ManifestTensor tensor;
  tensor.dtype = kUInt8;
  for (int64_t i = 0; i < kShards; ++i) {
    axis.cuts.push_back(i);
    tensor.runs.push_back(
        {.first = i,
         .placement = static_cast<int32_t>(i % 2),
         .extents = {{.data_offset = i, .bytes = 1, .first_chunk = i}}});
  }
  axis.cuts.push_back(kShards);
  tensor.layout = SavedLayout::Grid({kShards}, {axis});
  std::vector<uint64_t> numbers;
  AppendRuns(tensor, kChunkBytes, numbers);
  NumberReader reader(numbers, "run");
  MemoryBudget memory(kMaxManifestMemory);
  SHERD_ASSERT_OK_AND_ASSIGN(
      const SavedRuns runs,
      TakeRuns(tensor, kChunkBytes, 2, 1, reader, memory));
  EXPECT_TRUE(runs == tensor.runs);
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
         m.tensors[2].runs[0].extents[0].data_offset = (int64_t{1} << 62) - 8;
       },
       "offsets 4096 to 4129"},
      {"overflow",
       [](Manifest& m) {
         m.tensors[2].runs[0].extents[0].data_offset = int64_t{1} << 62;
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
      {"chunks of a file",
       [](Manifest& m) {
         m.files[1].chunks = kMaxFileChunks + 1;
         m.files[1].size += 5 * kMaxFileChunks;
       },
       "chunks, expected at most"},
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
