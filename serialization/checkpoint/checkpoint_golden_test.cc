// Every later build reads what version 1 wrote.

#include <string>

#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/checkpoint_verify.h"
#include "sherd/serialization/kits/golden_tensors.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;

constexpr char kPath[] = "serialization/testdata/v1/checkpoint";

TEST(CheckpointGoldenTest, Version1IsReadAndSound) {
  SHERD_ASSERT_OK_AND_ASSIGN(const VerifyReport report,
                             VerifyCheckpoint(kPath));
  EXPECT_EQ(report.tensors, 5);
  EXPECT_EQ(report.files, 2);
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(kPath));
  EXPECT_EQ(reader.manifest().summary().world_size, 2);
  int i = 0;
  for (const SampleTensor& sample : GoldenTensors()) {
    SCOPED_TRACE(sample.name);
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor,
                               reader.ReadTensor(sample.name));
    EXPECT_EQ(tensor.dtype(), sample.dtype);
    EXPECT_EQ(Dims(tensor.sizes().begin(), tensor.sizes().end()), sample.size);
    const Dims zeros(sample.size.size(), 0);
    EXPECT_EQ(CountWrong(tensor, zeros, sample.size, kGoldenSeed + i++), 0);
  }
}

TEST(CheckpointGoldenTest, ItsDataFilesAreReadAsSafetensors) {
  SHERD_ASSERT_OK_AND_ASSIGN(const CheckpointReader reader,
                             CheckpointReader::Open(kPath));
  SHERD_ASSERT_OK_AND_ASSIGN(const Manifest manifest,
                             reader.manifest().ReadAll());
  for (const ManifestFile& file : manifest.files) {
    EXPECT_THAT(
        SafetensorsFile::Open(FileSystem::Posix(), JoinPath(kPath, file.name)),
        IsOk());
  }
}

}  // namespace
}  // namespace sherd
