#include "sherd/serialization/safetensors.h"

#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/file.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/kits/rewrite_safetensors.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::IsOkAndHolds;
using sherd::testing::StatusIs;
using sherd::testing::TensorBitwiseEq;
using ::testing::HasSubstr;

constexpr char kTestData[] = "serialization/testdata/";

class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = JoinPath(::testing::TempDir(),
                          std::string("safetensors_") + info->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }

  std::string Path(const std::string& name) const {
    return JoinPath(directory_, name);
  }

  std::string WriteBytes(const std::string& name, const std::string& bytes) {
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }

  // A file with this header text and `data_bytes` bytes of data.
  std::string WriteFile(const std::string& name, const std::string& json,
                        size_t data_bytes, uint64_t claimed_length) {
    std::string bytes(8, '\0');
    for (int i = 0; i < 8; ++i) {
      bytes[i] = static_cast<char>(claimed_length >> (8 * i));
    }
    return WriteBytes(name, bytes + json + std::string(data_bytes, 'd'));
  }

  FileSystem& files_ = FileSystem::Posix();
  std::string directory_;
};

// Element i of the tensors in interop_dtypes.safetensors is 5 i mod 8.
template <typename T>
void ExpectPattern(const Tensor& tensor) {
  ASSERT_EQ(tensor.numel(), 15);
  for (int i = 0; i < 15; ++i) {
    const float value = static_cast<float>(i * 5 % 8);
    EXPECT_EQ(static_cast<float>(tensor.data_as<T>()[i]), value) << i;
  }
}

TEST_F(SafetensorsTest, ReadsEveryDTypeThatThePythonPackageWrote) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const SafetensorsFile file,
      SafetensorsFile::Open(
          files_, std::string(kTestData) + "interop_dtypes.safetensors"));
  ASSERT_EQ(file.entries().size(), 16u);
  for (const SafetensorsEntry& entry : file.entries()) {
    SCOPED_TRACE(entry.name);
    EXPECT_EQ(entry.name, Name(entry.dtype));
    EXPECT_EQ(entry.shape, (Dims{3, 5}));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor,
                               file.ReadTensor(entry.name));
    EXPECT_EQ(tensor.dtype(), entry.dtype);
    if (entry.dtype == kBool) {
      for (int i = 0; i < 15; ++i) {
        EXPECT_EQ(tensor.data_as<bool>()[i], i * 5 % 8 % 2 != 0);
      }
    } else if (entry.dtype == kComplex64) {
      for (int i = 0; i < 15; ++i) {
        EXPECT_EQ(tensor.data_as<std::complex<float>>()[i],
                  std::complex<float>(i * 5 % 8, i * 3 % 8));
      }
    } else {
      DispatchDType(entry.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        if constexpr (std::is_convertible_v<T, float> ||
                      std::is_constructible_v<float, T>) {
          ExpectPattern<T>(tensor);
        }
      });
    }
  }
}

TEST_F(SafetensorsTest, ReadsShapesNamesAndMetadataOfThePythonPackage) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const SafetensorsFile file,
      SafetensorsFile::Open(
          files_, std::string(kTestData) + "interop_shapes.safetensors"));
  EXPECT_EQ(file.metadata().at("format"), "np");
  EXPECT_EQ(file.metadata().at("note"), "ä \xe2\x80\xa8 \"x\"\n");
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor scalar, file.ReadTensor("scalar"));
  EXPECT_EQ(scalar.dim(), 0);
  EXPECT_EQ(*scalar.At<float>({}), 2.5f);
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor empty,
                             file.ReadTensor("empty_middle"));
  EXPECT_EQ(Dims(empty.sizes().begin(), empty.sizes().end()), (Dims{2, 0, 3}));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor deep, file.ReadTensor("deep"));
  EXPECT_EQ(deep.dim(), 32);
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor named,
                             file.ReadTensor("naïve/名前 \"quoted\"\\"));
  EXPECT_EQ(*named.At<double>({3}), 7.0);
}

TEST_F(SafetensorsTest, ReadsTheBitsOfSpecialFloats) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const SafetensorsFile file,
      SafetensorsFile::Open(
          files_, std::string(kTestData) + "interop_special.safetensors"));
  const auto bits = [&](const char* name, auto zero) {
    const auto tensor = file.ReadTensor(name);
    std::vector<decltype(zero)> out(10);
    EXPECT_THAT(tensor, IsOk());
    std::memcpy(out.data(), tensor->data(), tensor->nbytes());
    return out;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(bits("bfloat16", uint16_t{0}),
              ElementsAre(0, 0x8000, 0x3f80, 0xbf80, 0x7f80, 0xff80, 0x7fc0,
                          0x43e0, 0x4760, 0x3b00));
  EXPECT_THAT(
      bits("float8_e4m3fn", uint8_t{0}),
      ElementsAre(0, 0x80, 0x38, 0xb8, 0x7f, 0xff, 0x7f, 0x7e, 0x7f, 0x01));
  EXPECT_THAT(
      bits("float8_e5m2", uint8_t{0}),
      ElementsAre(0, 0x80, 0x3c, 0xbc, 0x7c, 0xfc, 0x7e, 0x5f, 0x7b, 0x18));
  EXPECT_EQ(bits("float64", uint64_t{0})[1], uint64_t{1} << 63);
}

TEST_F(SafetensorsTest, ReadsTheCarriedDTypesThatThePythonPackageWrote) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const SafetensorsFile file,
      SafetensorsFile::Open(
          files_, std::string(kTestData) + "interop_carried.safetensors"));
  ASSERT_EQ(file.entries().size(), 3u);
  for (const SafetensorsEntry& entry : file.entries()) {
    EXPECT_EQ(entry.name, Name(entry.dtype));
    EXPECT_TRUE(IsCarried(entry.dtype)) << entry.name;
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor tensor,
                               file.ReadTensor(entry.name));
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor bits, tensor.ViewAs(kUInt8));
    ASSERT_EQ(bits.numel(), 256);
    for (int i = 0; i < 256; ++i) EXPECT_EQ(bits.data_as<uint8_t>()[i], i);
  }
}

// The safetensors package reads these files: see testdata/read_back.py.
TEST_F(SafetensorsTest, WritesTheBytesOfTheGoldenFilesOfVersion1) {
  for (const std::string name : {"dtypes", "shapes", "special"}) {
    const std::string path = Path(name);
    ASSERT_THAT(RewriteSafetensors(
                    kTestData + ("interop_" + name) + ".safetensors", path),
                IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string ours,
                               ReadFile(files_, path, 1 << 20));
    SHERD_ASSERT_OK_AND_ASSIGN(
        const std::string golden,
        ReadFile(files_, kTestData + ("v1/rewritten_" + name) + ".safetensors",
                 1 << 20));
    EXPECT_EQ(ours, golden) << name;
  }
}

TEST_F(SafetensorsTest, ReadsBackAndMapsWhatItWrote) {
  std::vector<SafetensorsTensorInfo> infos;
  std::map<std::string, Tensor> tensors;
  for (int d = 0; d < kNumDTypes; ++d) {
    const DType dtype = static_cast<DType>(d);
    const std::string name(Name(dtype));
    SHERD_ASSERT_OK_AND_ASSIGN(Tensor tensor,
                               Tensor::Empty({3, 7}, {.dtype = dtype}));
    auto* bytes = static_cast<uint8_t*>(tensor.data());
    for (int64_t i = 0; i < tensor.nbytes(); ++i) {
      bytes[i] = dtype == kBool ? i % 2 : 17 * i + d;
    }
    infos.push_back({name, dtype, {3, 7}});
    tensors.emplace(name, tensor);
  }
  const std::string path = Path("all.safetensors");
  SHERD_ASSERT_OK_AND_ASSIGN(
      auto writer,
      SafetensorsWriter::Create(files_, path, infos, {{"k", "v"}}));
  for (const auto& [name, tensor] : tensors) {
    ASSERT_THAT(writer->Write(name, tensor), IsOk());
  }
  EXPECT_THAT(files_.Exists(path), IsOkAndHolds(false))
      << "appeared before Finish";
  ASSERT_THAT(writer->Finish(), IsOk());

  SHERD_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file,
                             SafetensorsFile::Open(files_, path));
  EXPECT_EQ(file.data_begin() % 4096, 0);
  EXPECT_EQ(file.metadata().at("k"), "v");
  for (const auto& [name, tensor] : tensors) {
    SCOPED_TRACE(name);
    SHERD_ASSERT_OK_AND_ASSIGN(Tensor read, file.ReadTensor(name));
    SHERD_ASSERT_OK_AND_ASSIGN(Tensor mapped, file.MapTensor(name));
    EXPECT_THAT(read, TensorBitwiseEq(mapped));
    if (tensor.dtype() == kComplex128) {
      SHERD_ASSERT_OK_AND_ASSIGN(read, read.ViewAsComplex());
    } else if (tensor.dtype() == kComplex32) {
      // Of which there is no view.
      EXPECT_EQ(read.dtype(), kFloat16);
      EXPECT_THAT(read.sizes(), ::testing::ElementsAre(3, 7, 2));
      EXPECT_EQ(std::memcmp(read.data(), tensor.data(),
                            static_cast<size_t>(tensor.nbytes())),
                0);
      continue;
    }
    EXPECT_THAT(read, TensorBitwiseEq(tensor));
  }
}

TEST_F(SafetensorsTest, StridedTensorsAreWrittenAndReadElementByElement) {
  // Larger than the staging buffer in every direction.
  SHERD_ASSERT_OK_AND_ASSIGN(Tensor base, Tensor::Empty({700, 300}));
  std::iota(base.mutable_data_as<float>(),
            base.mutable_data_as<float>() + base.numel(), 1.0f);
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor transposed, base.Transpose(0, 1));
  const std::string path = Path("t.safetensors");
  SHERD_ASSERT_OK_AND_ASSIGN(
      auto writer,
      SafetensorsWriter::Create(files_, path, {{"t", kFloat32, {300, 700}}}));
  ASSERT_THAT(writer->Write("t", transposed), IsOk());
  ASSERT_THAT(writer->Finish(/*sync=*/false), IsOk());

  SHERD_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file,
                             SafetensorsFile::Open(files_, path));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor read, file.ReadTensor("t"));
  EXPECT_TRUE(read.Equal(transposed));
  SHERD_ASSERT_OK_AND_ASSIGN(Tensor back, Tensor::Zeros({700, 300}));
  SHERD_ASSERT_OK_AND_ASSIGN(Tensor into, back.Transpose(0, 1));
  ASSERT_THAT(file.ReadTensorInto("t", into), IsOk());
  EXPECT_TRUE(back.Equal(base));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const Tensor repeated,
      Tensor::FromStorageStrided(back.storage(), 0, {300, 700}, {0, 1},
                                 kFloat32));
  EXPECT_THAT(file.ReadTensorInto("t", repeated),
              StatusIs(absl::StatusCode::kInvalidArgument, "coincide"));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor slice,
                             file.ReadSlice("t", {7, 11}, {100, 13}));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor expected,
                             transposed.Narrow({7, 11}, {100, 13}));
  EXPECT_TRUE(slice.Equal(expected));
  EXPECT_THAT(file.ReadSlice("t", {250, 0}, {51, 1}),
              StatusIs(absl::StatusCode::kOutOfRange, "not inside"));
  EXPECT_THAT(file.ReadSlice("t", {0}, {1}),
              StatusIs(absl::StatusCode::kInvalidArgument, "2 dimensions"));
}

TEST_F(SafetensorsTest, SeveralThreadsWriteAtOffsets) {
  constexpr int kThreads = 4;
  constexpr int kPerThread = 10007;
  std::vector<int32_t> values(kThreads * kPerThread);
  std::iota(values.begin(), values.end(), -5);
  const std::string path = Path("threads.safetensors");
  SHERD_ASSERT_OK_AND_ASSIGN(
      auto writer, SafetensorsWriter::Create(
                       files_, path, {{"v", kInt32, {kThreads, kPerThread}}}));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto* begin =
          reinterpret_cast<const std::byte*>(values.data() + t * kPerThread);
      EXPECT_THAT(writer->WriteAt("v", 4 * t * kPerThread,
                                  absl::MakeSpan(begin, 4 * kPerThread)),
                  IsOk());
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_THAT(writer->Finish(), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file,
                             SafetensorsFile::Open(files_, path));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor read, file.ReadTensor("v"));
  EXPECT_EQ(std::memcmp(read.data(), values.data(), 4 * values.size()), 0);
}

TEST_F(SafetensorsTest, AnUnfinishedFileDoesNotAppearAndIsRemoved) {
  const std::string path = Path("partial.safetensors");
  {
    SHERD_ASSERT_OK_AND_ASSIGN(
        auto writer,
        SafetensorsWriter::Create(files_, path, {{"a", kUInt8, {3}}}));
    EXPECT_THAT(writer->Finish(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "0 bytes of tensors were written, expected 3"));
    SHERD_ASSERT_OK_AND_ASSIGN(const auto during, files_.List(directory_));
    EXPECT_EQ(during.size(), 1u);
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const auto after, files_.List(directory_));
  EXPECT_TRUE(after.empty());
}

TEST_F(SafetensorsTest, WritingChecksNamesShapesAndRanges) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      auto writer,
      SafetensorsWriter::Create(files_, Path("w"), {{"a", kFloat32, {2, 3}}}));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor other, Tensor::Zeros({3, 2}));
  EXPECT_THAT(writer->Write("b", other),
              StatusIs(absl::StatusCode::kNotFound, "\"b\""));
  EXPECT_THAT(writer->Write("a", other),
              StatusIs(absl::StatusCode::kInvalidArgument, "F32 [2, 3]"));
  const std::vector<std::byte> bytes(10);
  EXPECT_THAT(writer->WriteAt("a", 16, bytes),
              StatusIs(absl::StatusCode::kOutOfRange, "past tensor"));
  EXPECT_THAT(writer->WriteAt("a", -1, bytes),
              StatusIs(absl::StatusCode::kOutOfRange));
}

TEST_F(SafetensorsTest, AFileAppearsOnlyIfItWasClosed) {
  const std::string path = Path("f");
  SHERD_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<SafetensorsWriter> writer,
      SafetensorsWriter::Create(files_, path, {{"a", kUInt8, {1}}}));
  ASSERT_THAT(writer->WriteAt("a", 0, std::vector<std::byte>(1)), IsOk());
  SetFaultHandler([](const FaultPassage& passage) {
    return passage.point == FaultPoint::kFileClose
               ? absl::ResourceExhaustedError("quota")
               : absl::OkStatus();
  });
  EXPECT_THAT(writer->Finish(),
              StatusIs(absl::StatusCode::kResourceExhausted, "quota"));
  SetFaultHandler(nullptr);
  EXPECT_THAT(files_.Exists(path), IsOkAndHolds(false));
}

TEST_F(SafetensorsTest, AFileThatMayNotLastIsDistinguishedFromAFailure) {
  const std::string path = Path("f");
  SHERD_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<SafetensorsWriter> writer,
      SafetensorsWriter::Create(files_, path, {{"a", kUInt8, {1}}}));
  ASSERT_THAT(writer->WriteAt("a", 0, std::vector<std::byte>(1)), IsOk());
  SetFaultHandler([](const FaultPassage& passage) {
    return passage.point == FaultPoint::kFileSyncDirectory
               ? absl::InternalError("Input/output error")
               : absl::OkStatus();
  });
  EXPECT_THAT(writer->Finish(), StatusIs(absl::StatusCode::kUnknown, path));
  SetFaultHandler(nullptr);
  EXPECT_THAT(SafetensorsFile::Open(files_, path), IsOk());
}

TEST_F(SafetensorsTest, MoreThanTheDiskHoldsIsRefusedWithBothNumbers) {
  EXPECT_THAT(
      SafetensorsWriter::Create(files_, Path("huge"),
                                {{"a", kUInt8, {int64_t{1} << 60}}}),
      StatusIs(absl::StatusCode::kResourceExhausted, "1152921504606846976"));
  EXPECT_THAT(SafetensorsWriter::Create(
                  files_, Path("huge"),
                  {{"a", kUInt8, {std::numeric_limits<int64_t>::max()}}}),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(SafetensorsTest, BadFilesAreRefusedByNameAndOffset) {
  const auto kLoss = absl::StatusCode::kDataLoss;
  EXPECT_THAT(SafetensorsFile::Open(files_, Path("none")),
              StatusIs(absl::StatusCode::kNotFound, "none"));
  EXPECT_THAT(SafetensorsFile::Open(files_, directory_),
              StatusIs(absl::StatusCode::kInvalidArgument, "directory"));
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(SafetensorsFile::Open(files_, Path("pipe")),
              StatusIs(absl::StatusCode::kInvalidArgument, "pipe"));
  EXPECT_THAT(SafetensorsFile::Open(files_, WriteBytes("empty", "")),
              StatusIs(kLoss, "has 0 bytes"));
  EXPECT_THAT(SafetensorsFile::Open(files_, WriteBytes("short", "1234567")),
              StatusIs(kLoss, "has 7 bytes"));
  EXPECT_THAT(SafetensorsFile::Open(files_, WriteFile("past", "{}", 0, 3)),
              StatusIs(kLoss, "claims at offset 0"));
  EXPECT_THAT(
      SafetensorsFile::Open(files_, WriteFile("huge", "{}", 0, 100'000'001)),
      StatusIs(kLoss, "expected at most 100000000"));
  EXPECT_THAT(
      SafetensorsFile::Open(files_, WriteFile("max", "{}", 0, ~uint64_t{0})),
      StatusIs(kLoss, "expected at most 100000000"));
  EXPECT_THAT(
      SafetensorsFile::Open(files_, WriteFile("null", "{}", 0, uint64_t{0})),
      StatusIs(kLoss, "does not begin"));
  const std::string json =
      "{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
  EXPECT_THAT(
      SafetensorsFile::Open(files_, WriteFile("ok", json, 8, json.size())),
      IsOk());
  EXPECT_THAT(
      SafetensorsFile::Open(files_, WriteFile("cut", json, 7, json.size())),
      StatusIs(kLoss, HasSubstr("only 7 data bytes")));
  EXPECT_THAT(
      SafetensorsFile::Open(files_, WriteFile("more", json, 9, json.size())),
      StatusIs(kLoss, HasSubstr("1 bytes follow")));
}

TEST_F(SafetensorsTest, AMissingTensorIsNamedWithSomeThatExist) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const SafetensorsFile file,
      SafetensorsFile::Open(
          files_, std::string(kTestData) + "interop_special.safetensors"));
  EXPECT_THAT(file.ReadTensor("weight"),
              StatusIs(absl::StatusCode::kNotFound,
                       "no tensor \"weight\"; it has 6, among them float64"));
}

TEST_F(SafetensorsTest, AFileThatShrankAfterOpeningIsDataLoss) {
  const std::string json =
      "{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
  const std::string path = WriteFile("shrinks", json, 8, json.size());
  SHERD_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file,
                             SafetensorsFile::Open(files_, path));
  std::filesystem::resize_file(path, 8 + json.size() + 3);
  EXPECT_THAT(file.ReadTensor("t"), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(file.MapTensor("t"), StatusIs(absl::StatusCode::kDataLoss));
}

}  // namespace
}  // namespace sherd
