#include "sherd/tools/sherd/checkpoint/inspection.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint_series.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/tools/examples/quickstart/model_preset.h"
#include "sherd/tools/examples/quickstart/model_writer.h"
#include "sherd/tools/sherd/checkpoint/recovery.h"
#include "sherd/tools/sherd/checkpoint/verification.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

FileSystem& Files() { return FileSystem::Posix(); }

// A folder for this test alone.
std::string TestFolder() {
  const auto* const info =
      ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string path =
      absl::StrCat(::testing::TempDir(), "/", info->name());
  EXPECT_THAT(Files().RemoveAll(path), IsOk());
  EXPECT_THAT(Files().CreateDirectories(path), IsOk());
  return path;
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  return WriteFileAtomically(
      Files(), path,
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                          text.size()));
}

void FlipBit(const std::string& path, int64_t from_end) {
  absl::StatusOr<std::string> bytes = ReadFile(Files(), path, 1 << 24);
  ASSERT_THAT(bytes, IsOk());
  ASSERT_GT(static_cast<int64_t>(bytes->size()), from_end);
  (*bytes)[bytes->size() - from_end] ^= 1;
  ASSERT_THAT(WriteText(path, *bytes), IsOk());
}

std::string TinyModel(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/tiny.safetensors");
  EXPECT_THAT(WriteModel(Files(), path, *ModelPreset("tiny")), IsOk());
  return path;
}

// Rows of "weight" on two of three ranks, "step" on the last one.
std::string SmallCheckpoint(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/checkpoint");
  RunLocalRanks(3, [&](ProcessGroup&) {
    const std::shared_ptr<ProcessGroup> group = *DefaultGroup();
    const ShardingSpecPtr rows =
        *ChunkShardingSpec::Create(0, {"rank:0/cpu", "rank:1/cpu"});
    const ShardingSpecPtr last =
        *EnumerableShardingSpec::Create({{.placement = "rank:2/cpu"}});
    auto weight = ShardedTensor::Full(rows, {5, 6}, 1.5);
    auto step = ShardedTensor::Full(last, {}, 7, {.dtype = kInt64});
    ASSERT_THAT(weight, IsOk());
    ASSERT_THAT(step, IsOk());
    EXPECT_THAT(
        SaveCheckpoint(path, {{"weight", *weight}, {"step", *step}}, group),
        IsOk());
  });
  return path;
}

std::vector<std::string> DataFiles(const std::string& checkpoint) {
  std::vector<std::string> paths;
  const std::vector<std::string> names = *Files().List(checkpoint);
  for (const std::string& name : names) {
    if (name.ends_with(".safetensors")) {
      paths.push_back(JoinPath(checkpoint, name));
    }
  }
  return paths;
}

TEST(InspectionTest, ASafetensorsFileIsListedInFull) {
  const std::string path = TinyModel(TestFolder());
  const auto inspection = Inspect(Files(), path);
  ASSERT_THAT(inspection, IsOk());
  EXPECT_FALSE(inspection->is_checkpoint);
  EXPECT_EQ(inspection->tensor_bytes(), ModelBytes(*ModelPreset("tiny")));
  const std::string text = FormatInspection(*inspection);
  EXPECT_THAT(text, HasSubstr(path + ": safetensors file\n"));
  EXPECT_THAT(text, HasSubstr("metadata format = pt\n"));
  const std::vector<ModelTensor> model = *ModelPreset("tiny");
  for (const ModelTensor& tensor : model) {
    EXPECT_THAT(text, HasSubstr("\n" + tensor.info.name + " "));
  }
  EXPECT_THAT(text, ::testing::ContainsRegex(
                        "\ndeep.3d +float16 +\\[3, 4, 5\\] +120 +1 "));
}

TEST(InspectionTest, ValuesOfAStateAreShown) {
  const std::string path = absl::StrCat(TestFolder(), "/checkpoint");
  RunLocalRanks(2, [&](ProcessGroup& group) {
    StateDict state;
    ASSERT_THAT(state.Set("step", 50), IsOk());
    ASSERT_THAT(state.Set("groups[0].lr", 0.5), IsOk());
    ASSERT_THAT(state.Set("bias", *Tensor::Scalar<float>(1)), IsOk());
    ASSERT_THAT(state.Set("rng", StateBytes{std::string(7, 'x')}), IsOk());
    ASSERT_THAT(state.Set("seed", 10 + group.rank()), IsOk());
    ASSERT_THAT(
        SaveCheckpoint(path, state, nullptr, {.per_rank = {"rng", "seed"}}),
        IsOk());
  });
  const auto inspection = Inspect(Files(), path);
  ASSERT_THAT(inspection, IsOk());
  const std::string text = FormatInspection(*inspection);
  EXPECT_THAT(text, HasSubstr("\nstate\n  step: 50\n  groups[0].lr: 0.5\n\n"
                              "state of rank 0\n  rng: 7 bytes\n  seed: 10\n"
                              "\nstate of rank 1\n"));
  const auto json = nlohmann::json::parse(InspectionToJson(*inspection));
  EXPECT_EQ(json["state"], nlohmann::json::parse(R"({
      "step": 50, "groups": [{"lr": 0.5}],
      "bias": {"tensor": "float32", "shape": []}})"));
  EXPECT_EQ(json["rank_states"]["1"],
            nlohmann::json::parse(R"({"rng": {"bytes": 7}, "seed": 11})"));
}

TEST(InspectionTest, ManyValuesAreCutShort) {
  const std::string path = absl::StrCat(TestFolder(), "/checkpoint");
  RunLocalRanks(1, [&](ProcessGroup&) {
    StateDict state;
    ASSERT_THAT(state.Set("losses", StateList(150, StateValue(1))), IsOk());
    ASSERT_THAT(SaveCheckpoint(path, state), IsOk());
  });
  const auto inspection = Inspect(Files(), path);
  ASSERT_THAT(inspection, IsOk());
  const std::string text = FormatInspection(*inspection);
  EXPECT_THAT(text, HasSubstr("losses[99]: 1\n  … and 50 more"));
}

// Possible contents of an untrusted file: colours, a bell, a line that looks
// like one of ours, and a name longer than the screen.
TEST(InspectionTest, NamesOfAFileAreEscapedAndShortened) {
  const std::string path = absl::StrCat(TestFolder(), "/hostile.safetensors");
  const std::string long_name(500, 'n');
  std::string header = absl::StrCat(
      R"({"__metadata__":{"k\nfake":"v\u0007\u001b[31m"},)",
      R"("w\u001b[2J\nx":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},")",
      long_name, R"(":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})");
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size() & 0xff);
  bytes[1] = static_cast<char>(header.size() >> 8);
  ASSERT_THAT(WriteText(path, absl::StrCat(bytes, header, "abcd")), IsOk());
  const auto inspection = Inspect(Files(), path);
  ASSERT_THAT(inspection, IsOk());
  const std::string text = FormatInspection(*inspection);
  EXPECT_THAT(text, HasSubstr("metadata k\\nfake = v\\x07\n"));
  EXPECT_THAT(text, HasSubstr("\nw\\nx "));
  EXPECT_THAT(text, HasSubstr("nnn…nnn"));
  for (const char c : text) EXPECT_TRUE(c == '\n' || (c & 0xe0) != 0) << +c;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    EXPECT_LT(line.size(), path.size() + 200) << line;
  }
}

TEST(InspectionTest, ACheckpointReportsTheHolderOfEachShard) {
  const std::string path = SmallCheckpoint(TestFolder());
  const auto inspection = Inspect(Files(), path);
  ASSERT_THAT(inspection, IsOk());
  EXPECT_EQ(inspection->world_size, 3);
  const std::string text = FormatInspection(*inspection);
  EXPECT_THAT(text, HasSubstr("checkpoint of 3 ranks"));
  EXPECT_THAT(text, HasSubstr("2 tensors, 128 bytes (128 B) in 3 files"));
  EXPECT_THAT(text, ::testing::ContainsRegex(
                        "\nweight +float32 +\\[5, 6\\] +120 +2 +0-1 +chunks of "
                        "dimension 0\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex(
                        "\nstep +int64 +\\[\\] +8 +1 +2 +one piece\n"));
}

TEST(InspectionTest, TheManifestItselfIsTheCheckpointToo) {
  const std::string path = SmallCheckpoint(TestFolder());
  const auto inspection = Inspect(Files(), path + "/manifest.sherd");
  ASSERT_THAT(inspection, IsOk());
  EXPECT_EQ(inspection->tensors.size(), 2u);
}

TEST(InspectionTest, JsonHoldsEveryShard) {
  const std::string path = SmallCheckpoint(TestFolder());
  const auto inspection = Inspect(Files(), path);
  ASSERT_THAT(inspection, IsOk());
  const auto json = nlohmann::json::parse(InspectionToJson(*inspection));
  EXPECT_EQ(json["kind"], "checkpoint");
  EXPECT_EQ(json["world_size"], 3);
  EXPECT_EQ(json["tensor_bytes"], 128);
  ASSERT_EQ(json["tensors"].size(), 2u);
  const auto& weight = json["tensors"][1];
  EXPECT_EQ(weight["name"], "weight");
  EXPECT_EQ(weight["shape"], (std::vector<int64_t>{5, 6}));
  // The CRC-32C of 30 times 1.5f, in whatever shards.
  EXPECT_EQ(weight["fingerprint"], "f8f269c9");
  ASSERT_EQ(weight["shards"].size(), 2u);
  EXPECT_EQ(weight["shards"][1]["offsets"], (std::vector<int64_t>{3, 0}));
  EXPECT_EQ(weight["shards"][1]["sizes"], (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(weight["shards"][1]["placement"], "rank:1/cpu");
  EXPECT_THAT(weight["shards"][1]["file"].get<std::string>(),
              MatchesRegex("shard-.*safetensors"));
}

// Of an increment: the manifest of a step names the files of former ones.
TEST(InspectionTest, JsonHoldsEveryExtentOfAShardInSeveral) {
  constexpr int64_t kChunk = 256 << 10;
  const std::string path = TestFolder() + "/steps";
  RunLocalRanks(1, [&](ProcessGroup&) {
    auto tensor =
        ShardedTensor::Zeros(*ChunkShardingSpec::Create(0, {"rank:0/cpu"}),
                             {3 * kChunk}, {.dtype = kUInt8});
    ASSERT_THAT(tensor, IsOk());
    auto series = CheckpointSeries::Open(path, nullptr, {.incremental = true});
    ASSERT_THAT(series, IsOk());
    ASSERT_THAT(series->Save(1, {{"weight", *tensor}}), IsOk());
    Tensor held = tensor->local_shards()[0].tensor;
    static_cast<char*>(held.data())[kChunk + 7] = 1;
    ASSERT_THAT(series->Save(2, {{"weight", *tensor}}), IsOk());
  });
  const auto json_of = [&](int64_t step) {
    const auto inspection = Inspect(Files(), PathOfStep(path, step));
    EXPECT_THAT(inspection, IsOk());
    return nlohmann::json::parse(InspectionToJson(*inspection));
  };
  const auto first = json_of(1)["tensors"][0]["shards"][0];
  EXPECT_FALSE(first.contains("extents"));
  const int64_t begin = first["file_offset"];
  const auto shard = json_of(2)["tensors"][0]["shards"][0];
  EXPECT_FALSE(shard.contains("file"));
  ASSERT_EQ(shard["extents"].size(), 3u);
  for (const int i : {0, 2}) {
    const auto& extent = shard["extents"][i];
    EXPECT_EQ(extent["file"], first["file"]);
    EXPECT_EQ(extent["file_offset"], begin + i * kChunk);
    EXPECT_EQ(extent["bytes"], kChunk);
  }
  EXPECT_NE(shard["extents"][1]["file"], first["file"]);
  EXPECT_EQ(shard["extents"][1]["bytes"], kChunk);
}

TEST(InspectionTest, ThePictureShowsBoxesAndShares) {
  const auto inspection = Inspect(Files(), SmallCheckpoint(TestFolder()));
  ASSERT_THAT(inspection, IsOk());
  EXPECT_THAT(*InspectionToSvg(*inspection),
              AllOf(HasSubstr("<svg"), HasSubstr("Who holds what: checkpoint"),
                    HasSubstr("rank 1: offsets [3, 0], sizes [2, 6], 48 B"),
                    HasSubstr("rank 2")));
}

TEST(InspectionTest, AMissingFileReportsWhatWasExpected) {
  const std::string folder = TestFolder();
  EXPECT_THAT(Inspect(Files(), folder + "/nothing"),
              StatusIs(absl::StatusCode::kNotFound,
                       "nothing: no such file or directory, expected a "
                       "safetensors file or a checkpoint directory"));
  EXPECT_THAT(Inspect(Files(), folder),
              StatusIs(absl::StatusCode::kNotFound,
                       "this directory is not a checkpoint: it has no "
                       "manifest.sherd, it is empty"));
  ASSERT_THAT(WriteText(folder + "/notes.txt", "hello"), IsOk());
  EXPECT_THAT(Inspect(Files(), folder),
              StatusIs(absl::StatusCode::kNotFound, "but notes.txt"));
  ASSERT_THAT(WriteText(folder + "/odd\n\x1b", "hello"), IsOk());
  EXPECT_THAT(Inspect(Files(), folder),
              StatusIs(absl::StatusCode::kNotFound, "odd\\n\\x1b"));
  EXPECT_THAT(Inspect(Files(), folder + "/notes.txt"),
              StatusIs(absl::StatusCode::kDataLoss, "notes.txt"));
  ASSERT_EQ(symlink("loop", (folder + "/loop").c_str()), 0);
  EXPECT_THAT(Inspect(Files(), folder + "/loop"),
              StatusIs(absl::StatusCode::kInternal, "loop"));
}

TEST(InspectionTest, APipeIsRefused) {
  const std::string folder = TestFolder();
  for (const std::string& path :
       {folder + "/model.safetensors", folder + "/manifest.sherd"}) {
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    const auto refused =
        StatusIs(absl::StatusCode::kInvalidArgument, "it is a pipe");
    EXPECT_THAT(Inspect(Files(), path), refused);
    EXPECT_THAT(Verify(Files(), path), refused);
  }
}

TEST(VerificationTest, SoundFilesSayWhatWasChecked) {
  const std::string folder = TestFolder();
  EXPECT_THAT(*Verify(Files(), TinyModel(folder)),
              AllOf(HasSubstr("tiny.safetensors: sound: "),
                    HasSubstr("header and sizes checked")));
  EXPECT_THAT(*Verify(Files(), SmallCheckpoint(folder)),
              AllOf(HasSubstr("checkpoint: sound: 2 tensors in 3 files"),
                    HasSubstr("checksums included")));
}

TEST(VerificationTest, AFlippedBitNamesFileAndTensor) {
  const std::string path = SmallCheckpoint(TestFolder());
  const std::vector<std::string> data = DataFiles(path);
  ASSERT_EQ(data.size(), 3u);
  const std::vector<std::string> tensors = {"weight", "weight", "step"};
  for (size_t i = 0; i < data.size(); ++i) {
    // Before the table of checksums.
    FlipBit(data[i], 15);
    EXPECT_THAT(Verify(Files(), path),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr(data[i]), HasSubstr(tensors[i]))));
    FlipBit(data[i], 15);
    EXPECT_THAT(Verify(Files(), path), IsOk());
  }
}

TEST(VerificationTest, ALostManifestCanBeRebuilt) {
  const std::string path = SmallCheckpoint(TestFolder());
  ASSERT_THAT(Files().Remove(path + "/manifest.sherd"), IsOk());
  const std::string advice = "`sherd recover " + path + "` rebuilds it";
  EXPECT_THAT(Verify(Files(), path),
              StatusIs(absl::StatusCode::kDataLoss, advice));
  // Of an earlier build, which did not mark what it had committed, or of a
  // first save that ended early.
  ASSERT_THAT(Files().Remove(path + "/committed.pin"), IsOk());
  EXPECT_THAT(Verify(Files(), path),
              StatusIs(absl::StatusCode::kNotFound, advice));
}

TEST(VerificationTest, AFlippedBitInTheManifestIsFound) {
  const std::string path = SmallCheckpoint(TestFolder());
  FlipBit(path + "/manifest.sherd", 9);
  EXPECT_THAT(Verify(Files(), path),
              StatusIs(absl::StatusCode::kDataLoss, "manifest.sherd"));
}

TEST(VerificationTest, ATruncatedSafetensorsFileIsFound) {
  const std::string path = TinyModel(TestFolder());
  absl::StatusOr<std::string> bytes = ReadFile(Files(), path, 1 << 24);
  ASSERT_THAT(bytes, IsOk());
  for (size_t length : {bytes->size() - 1, size_t{100}, size_t{7}, size_t{0}}) {
    ASSERT_THAT(WriteText(path, bytes->substr(0, length)), IsOk());
    EXPECT_THAT(Verify(Files(), path),
                StatusIs(absl::StatusCode::kDataLoss, path))
        << length;
  }
}

// Steps 1, 20 and 300, of which 20 is pinned.
std::string SmallSeries(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/series");
  RunLocalRanks(2, [&](ProcessGroup&) {
    auto series = CheckpointSeries::Open(path);
    ASSERT_THAT(series, IsOk());
    const auto tensor = ShardedTensor::Zeros(
        *ChunkShardingSpec::Create(0, {"rank:0/cpu", "rank:1/cpu"}), {5, 6});
    ASSERT_THAT(tensor, IsOk());
    for (const int64_t step : {1, 20, 300}) {
      ASSERT_THAT(series->Save(step, {{"weight", *tensor}}), IsOk());
    }
  });
  EXPECT_THAT(PinStep(path, 20), IsOk());
  return path;
}

TEST(SeriesCommandsTest, InspectListsStepsAndShowsOne) {
  const std::string path = SmallSeries(TestFolder());
  const std::string truncated = DataFiles(path)[0];
  ASSERT_THAT(WriteText(truncated, "short"), IsOk());
  auto inspection = Inspect(Files(), path);
  ASSERT_THAT(inspection, IsOk());
  EXPECT_THAT(FormatInspection(*inspection),
              AllOf(HasSubstr("series of 3 steps"),
                    ::testing::ContainsRegex(
                        "\n +1 +[0-9a-f]+ +[0-9,]+ +2 +- +.*has 5 bytes"),
                    ::testing::ContainsRegex(
                        "\n +20 +[0-9a-f]+ +[0-9,]+ +2 +yes +whole\n"),
                    ::testing::ContainsRegex(
                        "\n +300 +[0-9a-f]+ +[0-9,]+ +2 +- +whole\n")));
  const auto json = nlohmann::json::parse(InspectionToJson(*inspection));
  EXPECT_EQ(json["kind"], "series");
  ASSERT_EQ(json["steps"].size(), 3u);
  EXPECT_EQ(json["steps"][0]["whole"], false);
  EXPECT_THAT(json["steps"][0]["reason"].get<std::string>(),
              HasSubstr(truncated));
  const auto& pinned = json["steps"][1];
  EXPECT_EQ(pinned["step"], 20);
  EXPECT_EQ(pinned["pinned"], true);
  EXPECT_EQ(pinned["whole"], true);
  EXPECT_EQ(pinned["files"], 2);
  EXPECT_GT(pinned["bytes"], 5 * 6 * 4);
  EXPECT_EQ(pinned["save_id"].get<std::string>().size(), 16u);
  EXPECT_THAT(InspectionToSvg(*inspection),
              StatusIs(absl::StatusCode::kInvalidArgument, "--step"));
  const std::string step = PathOfStep(path, 300);
  EXPECT_EQ(step, path + "/step-00000000000000000300.sherd");
  EXPECT_EQ(PathOfStep(path, std::nullopt), path);
  inspection = Inspect(Files(), step);
  ASSERT_THAT(inspection, IsOk());
  EXPECT_TRUE(inspection->is_checkpoint);
  EXPECT_EQ(inspection->tensors.size(), 1u);
  EXPECT_THAT(Inspect(Files(), PathOfStep(path, 2)),
              StatusIs(absl::StatusCode::kNotFound, "no such file"));
}

TEST(SeriesCommandsTest, APlainCheckpointIsShownWithTheStepsBesideIt) {
  const std::string path = SmallSeries(TestFolder());
  RunLocalRanks(2, [&](ProcessGroup&) {
    const auto tensor = ShardedTensor::Zeros(
        *ChunkShardingSpec::Create(0, {"rank:0/cpu", "rank:1/cpu"}), {7});
    ASSERT_THAT(SaveCheckpoint(path, {{"bias", *tensor}}), IsOk());
  });
  const auto inspection = Inspect(Files(), path);
  ASSERT_THAT(inspection, IsOk());
  EXPECT_THAT(FormatInspection(*inspection),
              AllOf(HasSubstr("checkpoint of 2 ranks"), HasSubstr("\nbias "),
                    ::testing::ContainsRegex("\n +300 ")));
  EXPECT_EQ(nlohmann::json::parse(InspectionToJson(*inspection))["kind"],
            "checkpoint");
  EXPECT_THAT(*Verify(Files(), path),
              AllOf(HasSubstr("series: sound: "), HasSubstr("0020.sherd: ")));
}

TEST(SeriesCommandsTest, VerifyChecksEveryStepOrOne) {
  const std::string path = SmallSeries(TestFolder());
  EXPECT_THAT(*Verify(Files(), path),
              MatchesRegex(".*0001.sherd: sound: 1 tensors in 2 files.*\n"
                           ".*0020.sherd: sound: .*\n"
                           ".*0300.sherd: sound: .*"));
  const std::vector<std::string> data = DataFiles(path);
  ASSERT_EQ(data.size(), 6u);
  FlipBit(data[0], 15);
  EXPECT_THAT(Verify(Files(), path),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr(data[0]), HasSubstr("weight"))));
  EXPECT_THAT(Verify(Files(), PathOfStep(path, 300)), IsOk());
  EXPECT_THAT(Verify(Files(), PathOfStep(path, 1)),
              StatusIs(absl::StatusCode::kDataLoss, data[0]));
  FlipBit(PathOfStep(path, 20), 9);
  EXPECT_THAT(Verify(Files(), path),
              StatusIs(absl::StatusCode::kDataLoss, "and 1 more damaged step"));
}

TEST(SeriesCommandsTest, RecoverRebuildsEveryLostManifest) {
  const std::string path = SmallSeries(TestFolder());
  EXPECT_THAT(Recover(Files(), path).status,
              StatusIs(absl::StatusCode::kAlreadyExists));
  ASSERT_THAT(Files().Remove(PathOfStep(path, 20)), IsOk());
  ASSERT_THAT(WriteText(PathOfStep(path, 300), "damaged"), IsOk());
  Recovery recovery = Recover(Files(), path);
  EXPECT_THAT(recovery.status, IsOk());
  EXPECT_THAT(recovery.text,
              MatchesRegex(".*0020.sherd: recovered: save [0-9a-f]+, 1 tensors "
                           "in 2 files.*\n.*0300.sherd: recovered: .*\n"));
  EXPECT_THAT(Verify(Files(), path), IsOk());
  // One alone, and what can be had of several.
  ASSERT_THAT(Files().Remove(PathOfStep(path, 20)), IsOk());
  EXPECT_THAT(Recover(Files(), PathOfStep(path, 20)).status, IsOk());
  for (const int64_t step : {1, 20}) {
    ASSERT_THAT(Files().Remove(PathOfStep(path, step)), IsOk());
  }
  ASSERT_THAT(Files().Remove(DataFiles(path)[0]), IsOk());
  recovery = Recover(Files(), path);
  EXPECT_THAT(recovery.status,
              StatusIs(absl::StatusCode::kDataLoss, "missing"));
  EXPECT_THAT(recovery.text, HasSubstr("0020.sherd: recovered"));
}

}  // namespace
}  // namespace sherd
