#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/tools/examples/quickstart/model_preset.h"
#include "sherd/tools/examples/quickstart/model_writer.h"
#include "sherd/tools/examples/quickstart/quickstart_files.h"
#include "sherd/tools/examples/quickstart/quickstart_job.h"
#include "sherd/tools/examples/quickstart/quickstart_report.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::RunLocalRanks;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

FileSystem& Files() { return FileSystem::Posix(); }

std::string Text(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(Files(), path, 1 << 26);
  EXPECT_THAT(text, IsOk());
  return text.value_or("");
}

void Overwrite(const std::string& path, const std::string& text) {
  ASSERT_THAT(
      WriteFileAtomically(
          Files(), path,
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                              text.size())),
      IsOk());
}

class QuickstartTest : public ::testing::Test {
 protected:
  QuickstartTest()
      : paths_(absl::StrCat(
            ::testing::TempDir(), "quick start ",
            ::testing::UnitTest::GetInstance()->current_test_info()->name())) {}

  void SetUp() override {
    ASSERT_THAT(Files().RemoveAll(paths_.directory), IsOk());
  }

  absl::StatusOr<std::string> Prepare(bool load_only = false) {
    return PrepareQuickstart(Files(), {.directory = paths_.directory,
                                       .load_only = load_only,
                                       .preset = "tiny"});
  }

  void SaveWith(int ranks) {
    RunLocalRanks(ranks, [&](ProcessGroup&) {
      EXPECT_THAT(QuickstartSave(Files(), Job()), IsOk());
    });
  }

  // What rank 0 found.
  absl::StatusOr<QuickstartVerdict> LoadWith(int ranks) {
    absl::StatusOr<QuickstartVerdict> verdict =
        absl::UnknownError("rank 0 did not come back");
    RunLocalRanks(ranks, [&](ProcessGroup& group) {
      absl::StatusOr<QuickstartVerdict> own = QuickstartLoad(Files(), Job());
      if (group.rank() == 0) verdict = std::move(own);
    });
    return verdict;
  }

  QuickstartJob Job() const {
    return {.paths = paths_, .model = paths_.model(), .group = *DefaultGroup()};
  }

  std::vector<std::string> DataFiles() const {
    std::vector<std::string> paths;
    const std::vector<std::string> names = *Files().List(paths_.checkpoint());
    for (const std::string& name : names) {
      if (name.ends_with(".safetensors")) {
        paths.push_back(JoinPath(paths_.checkpoint(), name));
      }
    }
    return paths;
  }

  const QuickstartFiles paths_;
};

TEST_F(QuickstartTest, AModelSurvivesAllSteps) {
  ASSERT_THAT(Prepare(), IsOkAndHolds(paths_.model()));
  SaveWith(4);
  const auto verdict = LoadWith(3);
  ASSERT_THAT(verdict, IsOk());
  const auto model = ModelPreset("tiny");
  EXPECT_EQ(verdict->tensors, static_cast<int64_t>(model->size()));
  EXPECT_EQ(verdict->bytes, ModelBytes(*model));

  const auto report = ParseReport(Text(paths_.report_json()), "report");
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->save_ranks, 4);
  EXPECT_EQ(report->load_ranks, 3);
  ASSERT_EQ(report->tensors.size(), model->size());
  int64_t moved = 0;
  for (const TensorResult& tensor : report->tensors) {
    EXPECT_EQ(tensor.moved_bytes, tensor.least_bytes) << tensor.name;
    EXPECT_FALSE(tensor.scattered.empty());
    EXPECT_FALSE(tensor.loaded.empty());
    moved += tensor.moved_bytes;
  }
  EXPECT_GT(moved, 0);
  EXPECT_THAT(Text(paths_.report_text()), HasSubstr("\ndeep.5d "));
  EXPECT_THAT(Text(paths_.picture()), AllOf(HasSubstr("scattered over 4 ranks"),
                                            HasSubstr("loaded by 3 ranks")));
}

TEST_F(QuickstartTest, OtherNumbersOfRanksWorkToo) {
  ASSERT_THAT(Prepare(), IsOk());
  for (const auto& [save, load] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 5}, {5, 2}}) {
    SaveWith(save);
    EXPECT_THAT(LoadWith(load), IsOk()) << save << " to " << load;
  }
}

TEST_F(QuickstartTest, AFlippedBitInAnyDataFileIsFoundAndNamed) {
  ASSERT_THAT(Prepare(), IsOk());
  SaveWith(4);
  ASSERT_EQ(DataFiles().size(), 4u);
  for (const std::string& path : DataFiles()) {
    const std::string sound = Text(path);
    std::string flipped = sound;
    flipped[flipped.size() - 2] ^= 0x10;
    Overwrite(path, flipped);
    EXPECT_THAT(LoadWith(3), StatusIs(absl::StatusCode::kDataLoss, path));
    Overwrite(path, sound);
  }
  EXPECT_THAT(LoadWith(3), IsOk());
}

TEST_F(QuickstartTest, AModelThatChangedMeanwhileIsFound) {
  ASSERT_THAT(Prepare(), IsOk());
  SaveWith(2);
  std::string model = Text(paths_.model());
  model.back() ^= 1;
  Overwrite(paths_.model(), model);
  EXPECT_THAT(LoadWith(2), StatusIs(absl::StatusCode::kDataLoss, "differs"));
}

TEST_F(QuickstartTest, ACheckpointOfAnotherModelIsRefused) {
  ASSERT_THAT(Prepare(), IsOk());
  SaveWith(2);
  auto model = *ModelPreset("tiny");
  const std::string name = model.back().info.name;
  model.pop_back();
  ASSERT_THAT(WriteModel(Files(), paths_.model(), model), IsOk());
  EXPECT_THAT(LoadWith(2),
              StatusIs(absl::StatusCode::kDataLoss,
                       absl::StrCat("tensor ", name, " is not in ")));
}

TEST_F(QuickstartTest, PreparingKeepsASoundModelAndReplacesAnother) {
  ASSERT_THAT(Prepare(), IsOk());
  const std::string made = Text(paths_.model());
  auto other = *ModelPreset("tiny");
  ASSERT_THAT(WriteModel(Files(), paths_.model(), other, {.seed = 8}), IsOk());
  const std::string reseeded = Text(paths_.model());
  ASSERT_THAT(Prepare(), IsOk());
  EXPECT_TRUE(Text(paths_.model()) == reseeded);
  Overwrite(paths_.model(), made.substr(0, made.size() - 1));
  ASSERT_THAT(Prepare(), IsOk());
  EXPECT_TRUE(Text(paths_.model()) == made);
}

TEST_F(QuickstartTest, PreparingRemovesOldResults) {
  ASSERT_THAT(Prepare(), IsOk());
  for (const std::string& path :
       {paths_.gathered(), paths_.picture(), paths_.failure()}) {
    Overwrite(path, "old");
  }
  ASSERT_THAT(Prepare(), IsOk());
  EXPECT_THAT(Files().Exists(paths_.gathered()), IsOkAndHolds(false));
  EXPECT_THAT(Files().Exists(paths_.picture()), IsOkAndHolds(false));
  EXPECT_THAT(Files().Exists(paths_.failure()), IsOkAndHolds(false));
  EXPECT_THAT(Files().Exists(paths_.model()), IsOkAndHolds(true));
}

TEST_F(QuickstartTest, LoadingAloneFindsTheModelThatWasSaved) {
  EXPECT_THAT(Prepare(/*load_only=*/true),
              StatusIs(absl::StatusCode::kNotFound, "no checkpoint here"));
  ASSERT_THAT(Prepare(), IsOk());
  SaveWith(2);
  const std::string saved = Text(paths_.save_report());
  EXPECT_THAT(Prepare(/*load_only=*/true), IsOkAndHolds(paths_.model()));
  EXPECT_EQ(Text(paths_.save_report()), saved);
  ASSERT_THAT(Files().Remove(paths_.model()), IsOk());
  EXPECT_THAT(Prepare(/*load_only=*/true),
              StatusIs(absl::StatusCode::kNotFound, "model.safetensors"));
}

TEST_F(QuickstartTest, ABadModelIsRefusedBeforeAnythingRuns) {
  EXPECT_THAT(
      PrepareQuickstart(
          Files(), {.directory = paths_.directory, .model = "/no/such/model"}),
      StatusIs(absl::StatusCode::kNotFound, "/no/such/model: no such file"));
  ASSERT_THAT(Files().CreateDirectories(paths_.directory), IsOk());
  const std::string text = JoinPath(paths_.directory, "text");
  Overwrite(text, "not a model at all");
  EXPECT_THAT(PrepareQuickstart(Files(),
                                {.directory = paths_.directory, .model = text}),
              StatusIs(absl::StatusCode::kDataLoss, text));
}

TEST_F(QuickstartTest, OnlyTheFirstFailureIsRecorded) {
  ASSERT_THAT(Files().CreateDirectories(paths_.directory), IsOk());
  RecordFailure(paths_, "first");
  RecordFailure(paths_, "second");
  EXPECT_EQ(Text(paths_.failure()), "first\n");
}

}  // namespace
}  // namespace sherd
