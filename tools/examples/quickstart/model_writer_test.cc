#include "sherd/tools/examples/quickstart/model_writer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;

std::string TestPath(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "/", name);
}

uint32_t FileCrc(const std::string& path) {
  const absl::StatusOr<std::string> bytes =
      ReadFile(FileSystem::Posix(), path, 1 << 24);
  EXPECT_THAT(bytes, IsOk());
  if (!bytes.ok()) return 0;
  return Crc32c(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(bytes->data()), bytes->size()));
}

TEST(ModelPresetTest, Gpt2IsWhatIsPublished) {
  const auto model = ModelPreset("gpt2");
  ASSERT_THAT(model, IsOk());
  EXPECT_EQ(model->size(), 160u);
  // 124,439,808 parameters and twelve masks of 1024 x 1024.
  EXPECT_EQ(ModelBytes(*model), 4 * (124'439'808 + 12 * 1024 * 1024));
  const auto shape_of = [&](const std::string& name) {
    for (const ModelTensor& tensor : *model) {
      EXPECT_EQ(tensor.info.dtype, kFloat32);
      if (tensor.info.name == name) return tensor.info.shape;
    }
    ADD_FAILURE() << "no tensor " << name;
    return Dims{};
  };
  EXPECT_EQ(shape_of("wte.weight"), (Dims{50257, 768}));
  EXPECT_EQ(shape_of("wpe.weight"), (Dims{1024, 768}));
  EXPECT_EQ(shape_of("h.11.attn.bias"), (Dims{1, 1, 1024, 1024}));
  EXPECT_EQ(shape_of("h.0.attn.c_attn.weight"), (Dims{768, 2304}));
  EXPECT_EQ(shape_of("h.0.attn.c_attn.bias"), (Dims{2304}));
  EXPECT_EQ(shape_of("h.5.attn.c_proj.weight"), (Dims{768, 768}));
  EXPECT_EQ(shape_of("h.5.mlp.c_fc.weight"), (Dims{768, 3072}));
  EXPECT_EQ(shape_of("h.5.mlp.c_proj.weight"), (Dims{3072, 768}));
  EXPECT_EQ(shape_of("h.5.ln_2.bias"), (Dims{768}));
  EXPECT_EQ(shape_of("ln_f.weight"), (Dims{768}));
}

TEST(ModelPresetTest, AnUnknownNameIsRefusedWithTheKnownOnes) {
  EXPECT_THAT(ModelPreset("gpt3"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "no preset \"gpt3\", expected one of gpt2, tiny"));
}

TEST(ModelWriterTest, PiecesOfATensorAreTheWhole) {
  const std::vector<ModelTensor> tensors = {
      {{"uniform", kFloat32, {7, 11}}, ModelFill::kUniform, -1, 1},
      {{"half", kBFloat16, {77}}, ModelFill::kUniform, -1, 1},
      {{"mask", kFloat32, {1, 1, 11, 11}}, ModelFill::kCausalMask},
      {{"bits", kInt32, {77}}, ModelFill::kBits},
  };
  for (size_t t = 0; t < tensors.size(); ++t) {
    const int64_t count = *NumElements(tensors[t].info.shape);
    const int64_t size = SizeOf(tensors[t].info.dtype);
    std::vector<std::byte> whole(count * size), pieces(count * size);
    ASSERT_THAT(
        FillModelPiece(tensors[t], t, 9, 0, count, absl::MakeSpan(whole)),
        IsOk());
    for (int64_t first = 0; first < count; first += 5) {
      const int64_t n = std::min<int64_t>(5, count - first);
      ASSERT_THAT(FillModelPiece(
                      tensors[t], t, 9, first, n,
                      absl::MakeSpan(pieces).subspan(first * size, n * size)),
                  IsOk());
    }
    EXPECT_EQ(whole, pieces) << tensors[t].info.name;
    std::vector<std::byte> other(count * size);
    ASSERT_THAT(
        FillModelPiece(tensors[t], t, 10, 0, count, absl::MakeSpan(other)),
        IsOk());
    EXPECT_EQ(whole == other, tensors[t].fill == ModelFill::kCausalMask);
  }
}

TEST(ModelWriterTest, TheCausalMaskIsLowerTriangular) {
  const ModelTensor mask = {{"mask", kFloat32, {1, 1, 4, 4}},
                            ModelFill::kCausalMask};
  std::vector<float> values(16, -1);
  ASSERT_THAT(FillModelPiece(mask, 0, 1, 0, 16,
                             {reinterpret_cast<std::byte*>(values.data()), 64}),
              IsOk());
  EXPECT_THAT(values, ::testing::ElementsAre(1, 0, 0, 0,  //
                                             1, 1, 0, 0,  //
                                             1, 1, 1, 0,  //
                                             1, 1, 1, 1));
}

TEST(ModelWriterTest, ContentsDoNotDependOnTheNumberOfThreads) {
  const auto model = ModelPreset("tiny");
  ASSERT_THAT(model, IsOk());
  const std::string path = TestPath("threads.safetensors");
  std::vector<uint32_t> crcs;
  for (int threads : {1, 2, 5}) {
    ASSERT_THAT(WriteModel(FileSystem::Posix(), path, *model,
                           {.seed = 3, .threads = threads}),
                IsOk());
    crcs.push_back(FileCrc(path));
  }
  EXPECT_EQ(crcs[0], crcs[1]);
  EXPECT_EQ(crcs[0], crcs[2]);
}

TEST(ModelWriterTest, TheTinyModelReadsBackWithItsGoldenContents) {
  const auto model = ModelPreset("tiny");
  ASSERT_THAT(model, IsOk());
  const std::string path = TestPath("golden.safetensors");
  int64_t reported = 0;
  ASSERT_THAT(WriteModel(FileSystem::Posix(), path, *model,
                         {.on_progress =
                              [&](int64_t bytes, absl::string_view) {
                                reported += bytes;
                              }}),
              IsOk());
  EXPECT_EQ(reported, ModelBytes(*model));

  const auto file = SafetensorsFile::Open(FileSystem::Posix(), path);
  ASSERT_THAT(file, IsOk());
  EXPECT_EQ(file->entries().size(), model->size());
  uint32_t crc = 0;
  for (const ModelTensor& tensor : *model) {
    const auto read = file->ReadTensor(tensor.info.name);
    ASSERT_THAT(read, IsOk());
    EXPECT_EQ(read->dtype(), tensor.info.dtype);
    EXPECT_EQ(Dims(read->sizes().begin(), read->sizes().end()),
              tensor.info.shape);
    crc = Crc32c({static_cast<const std::byte*>(read->data()),
                  static_cast<size_t>(read->nbytes())},
                 crc);
  }
  // The same on every machine and in every version: people compare results.
  EXPECT_EQ(crc, 2105899654u);
}

TEST(ModelWriterTest, AFolderThatIsNotThereIsNamed) {
  const auto model = ModelPreset("tiny");
  ASSERT_THAT(model, IsOk());
  EXPECT_THAT(WriteModel(FileSystem::Posix(),
                         TestPath("nowhere/model.safetensors"), *model),
              StatusIs(absl::StatusCode::kNotFound, "nowhere"));
}

}  // namespace
}  // namespace sherd
