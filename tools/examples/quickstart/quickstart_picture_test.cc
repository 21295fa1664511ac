#include "sherd/tools/examples/quickstart/quickstart_picture.h"

#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/safetensors/safetensors_header.h"
#include "sherd/testing/matchers.h"
#include "sherd/tools/examples/quickstart/model_preset.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::testing::HasSubstr;

std::vector<SafetensorsEntry> EntriesOf(const std::string& preset) {
  std::vector<SafetensorsTensorInfo> infos;
  const std::vector<ModelTensor> model = *ModelPreset(preset);
  for (const ModelTensor& tensor : model) {
    infos.push_back(tensor.info);
  }
  const auto header = PlanSafetensors(infos);
  EXPECT_THAT(header, IsOk());
  return header->entries;
}

TEST(QuickstartPictureTest, HasARowForEveryWayOfCutting) {
  const LayoutPicture picture =
      MakeQuickstartPicture("m", EntriesOf("gpt2"), 4, 3);
  ASSERT_EQ(picture.rows.size(), 5u);
  std::set<std::string> first;
  for (const PictureRow& row : picture.rows) {
    first.insert(row.kind.substr(0, row.kind.find(" →")));
    EXPECT_GT(picture.stages[0].tensors[row.tensor].shape.size(), 1u);
  }
  EXPECT_THAT(first,
              ::testing::UnorderedElementsAre("rows", "columns", "grid",
                                              "uneven", "one rank empty"));
  ASSERT_EQ(picture.stages.size(), 3u);
  EXPECT_EQ(picture.stages[0].ranks, 4);
  EXPECT_EQ(picture.stages[2].ranks, 3);
  EXPECT_THAT(picture.subtitle, HasSubstr("160 tensors, 548 MB"));
}

TEST(QuickstartPictureTest, ScalarsAndEmptyTensorsCanBeDrawn) {
  LayoutPicture picture = MakeQuickstartPicture("m", EntriesOf("tiny"), 4, 3);
  picture.rows.clear();
  for (size_t t = 0; t < picture.stages[0].tensors.size(); ++t) {
    picture.rows.push_back({static_cast<int64_t>(t), ""});
  }
  const std::string svg = DrawTransitions(picture);
  EXPECT_THAT(svg, HasSubstr("scalar.step"));
  EXPECT_THAT(svg, HasSubstr("no elements"));
  EXPECT_THAT(svg, ::testing::Not(HasSubstr("nan")));
  EXPECT_THAT(svg, ::testing::Not(HasSubstr("inf\"")));
}

// To renew the picture that people see first: run tools/quickstart and copy
// sherd-quickstart/layout.svg.
TEST(QuickstartPictureTest, ThePictureOfTheReadmeIsThatOfTheProgram) {
  const auto golden = ReadFile(FileSystem::Posix(),
                               "tools/examples/testdata/layout.svg", 1 << 20);
  ASSERT_THAT(golden, IsOk());
  EXPECT_TRUE(*golden == DrawTransitions(MakeQuickstartPicture(
                             "model.safetensors", EntriesOf("gpt2"), 4, 3)));
}

}  // namespace
}  // namespace sherd
