#include "sherd/serialization/manifest/section_tree.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/proto/checkpoint_v2.pb.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/wire/little_endian.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::StatusIs;
using ::testing::HasSubstr;

namespace proto = checkpoint::v2;

const absl::StatusCode kLoss = absl::StatusCode::kDataLoss;
const absl::StatusCode kExhausted = absl::StatusCode::kResourceExhausted;

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

  // With the trees of tensors and files.
  std::string Finish(const proto::Tree& tensors,
                     const proto::Tree& files = {}) {
    proto::Root root;
    root.set_world_size(1);
    root.set_chunk_bytes(32);
    proto::Placements placements;
    placements.add_placement("rank:0/cpu");
    *root.mutable_placements() = Add(placements);
    root.mutable_placements()->set_count(1);
    *root.mutable_tensors() = tensors;
    *root.mutable_files() = files;
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

TEST(SectionTreeTest, IndexesAreInOrderAndLeadBackward) {
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

TEST(SectionTreeTest, IndexesThatLeadInACircleOrOutsideAreRefused) {
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

TEST(SectionTreeTest, MemoryIsBoundedBeforeItIsTaken) {
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

// The tree of a manifest in memory.
SectionTree TreeOf(const std::string& bytes, MemoryBudget& memory) {
  return *SectionTree::Open(
      static_cast<int64_t>(bytes.size()),
      [&bytes](int64_t offset, int64_t length,
               std::string&) -> absl::StatusOr<absl::string_view> {
        return absl::string_view(bytes).substr(offset, length);
      },
      memory);
}

TEST(SectionTreeTest, AnIndexIsCheckedAgainstEachThatLeadsToIt) {
  Sections sections;
  proto::Files files;
  for (int f = 0; f < 10; ++f) {
    files.add_name(absl::StrCat("file-", f));
    files.add_size(8);
    files.add_data_begin(4);
    files.add_chunks(0);
    files.add_crc32c(0);
  }
  const auto add = [](const proto::Tree& place, uint64_t first,
                      proto::Index& index) {
    index.add_first_number(first);
    index.add_offset(place.offset());
    index.add_length(place.length());
    index.add_crc32c(place.crc32c());
  };
  proto::Index below, above;
  add(sections.Add(files), 0, below);
  const proto::Tree shared = sections.Add(below);
  add(shared, 0, above);
  add(shared, 10, above);
  proto::Tree top = sections.Add(above);
  top.set_level(2);
  top.set_count(20);
  const std::string bytes = sections.Finish({}, top);
  MemoryBudget memory(1 << 20);
  SectionTree tree = TreeOf(bytes, memory);
  // The first half is of no use to the second.
  SHERD_ASSERT_OK_AND_ASSIGN(const SectionPlace first,
                             tree.FindNumber(SectionKind::kFiles, 5, memory));
  EXPECT_EQ(first.first, 0);
  EXPECT_THAT(tree.FindNumber(SectionKind::kFiles, 15, memory),
              StatusIs(kLoss, "entries are of other sections"));
}

TEST(SectionTreeTest, AnIndexThatLeadsToNothingInItsOwnPlaceIsRefused) {
  Sections sections;
  proto::Index index;
  proto::Tree self;
  self.set_offset(static_cast<uint64_t>(sections.size()));
  AddEntry(self, "a", index);
  proto::Tree top = sections.Add(index);
  top.set_level(2);
  top.set_count(1);
  const std::string bytes = sections.Finish(top);
  MemoryBudget memory(1 << 20);
  SectionTree tree = TreeOf(bytes, memory);
  const auto refused = StatusIs(kLoss, HasSubstr("it leads to 0 bytes"));
  EXPECT_THAT(tree.FindTensor("a", memory), refused);
  EXPECT_THAT(tree.ReadAll(memory), refused);
}

TEST(SectionTreeTest, ListsOfShardsAreCounted) {
  constexpr int kShards = 1 << 16;
  Sections sections;
  proto::Tensors tensors = TensorsNamed({"a"});
  tensors.clear_layout();
  for (const int number : {1, kShards, 1}) tensors.add_layout(number);
  tensors.clear_run();
  for (const int number : {1 << 5, 0}) tensors.add_run(number);
  proto::Tree top = sections.Add(tensors);
  top.set_count(1);
  const std::string bytes = sections.Finish(top);
  EXPECT_THAT(DecodeManifest(bytes, "m", 63 * kShards), StatusIs(kExhausted));
  EXPECT_THAT(DecodeManifest(bytes, "m", 66 * kShards), IsOk());
}

TEST(SectionTreeTest, AMessageIsCountedBeforeItIsParsed) {
  Sections sections;
  proto::Tensors tensors;
  for (int i = 0; i < 1 << 16; ++i) tensors.add_run(1);
  proto::Tree top = sections.Add(tensors);
  top.set_count(1);
  const std::string bytes = sections.Finish(top);
  EXPECT_THAT(DecodeManifest(bytes, "m", 1 << 20), StatusIs(kExhausted));
  // What was taken for it is given back.
  MemoryBudget memory(8 << 20);
  SectionTree tree = TreeOf(bytes, memory);
  EXPECT_EQ(memory.taken(), 0);
  const SectionPlace place = *tree.FindTensor("", memory);
  EXPECT_THAT(ParseTensors(*tree.Read(place), place, tree.root(), memory),
              StatusIs(kLoss, "no tensors"));
  EXPECT_EQ(memory.taken(), 0);
}

// Tensors of boxes that are no grid, in the file of an earlier save.
Manifest ManyBoxes(int tensors, int layers) {
  Manifest manifest;
  manifest.save_id = "0123456789abcdef";
  manifest.placements = {"rank:0/cpu"};
  const int64_t bytes = int64_t{9} * tensors * layers;
  const int64_t chunks = int64_t{5} * tensors * layers;
  manifest.files = {{.name = "shard.x.safetensors",
                     .size = bytes + 4 * (1 + chunks),
                     .chunks = chunks}};
  std::vector<Box> boxes;
  for (int z = 0; z < layers; ++z) {
    boxes.push_back({{z, 0, 0}, {1, 1, 2}});
    boxes.push_back({{z, 0, 2}, {1, 2, 1}});
    boxes.push_back({{z, 2, 1}, {1, 1, 2}});
    boxes.push_back({{z, 1, 0}, {1, 2, 1}});
    boxes.push_back({{z, 1, 1}, {1, 1, 1}});
  }
  int64_t offset = 0;
  int64_t chunk = 1;
  for (int t = 0; t < tensors; ++t) {
    ManifestTensor& tensor = manifest.tensors.emplace_back();
    tensor.name = absl::StrCat("tensor", 1000 + t);
    tensor.dtype = kUInt8;
    tensor.layout = SavedLayout::FromBoxes({layers, 3, 3}, boxes);
    for (const Box& box : boxes) {
      AppendPlace({0, {{0, offset, Volume(box), chunk++}}},
                  manifest.chunk_bytes, tensor.runs);
      offset += Volume(box);
    }
  }
  return manifest;
}

TEST(SectionTreeTest, SectionsAreReadWithTheMemoryThatWritingAllowed) {
  const Manifest manifest = ManyBoxes(20, 10);
  const std::string bytes = *EncodeManifest(manifest);
  int64_t refused = 16 << 10;
  int64_t written = 16 << 20;
  while (written - refused > written / 64) {
    const int64_t limit = (refused + written) / 2;
    (EncodeManifest(manifest, limit).ok() ? written : refused) = limit;
  }
  EXPECT_THAT(EncodeManifest(manifest, refused), StatusIs(kExhausted));
  EXPECT_THAT(DecodeManifest(bytes, "m", written), IsOk());
  EXPECT_THAT(DecodeManifest(bytes, "m", refused), StatusIs(kExhausted));
  // What comparing boxes takes counts once, not for each tensor.
  EXPECT_LE(written, 20 * 50 * 700);
}

}  // namespace
}  // namespace sherd
