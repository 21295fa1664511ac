#include "sherd/serialization/checkpoint/save/shard_writer.h"

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::IsOkAndHolds;
using sherd::testing::StatusIs;

constexpr int64_t kChunk = 256 << 10;

class ShardWriterTest : public ::testing::Test {
 protected:
  ShardWriterTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = JoinPath(::testing::TempDir(),
                     std::string("shard_writer_") + info->name());
    file_ = *FileSystem::Posix().Create(path_);
  }

  std::string Contents() {
    const auto contents = ReadFile(FileSystem::Posix(), path_, 1 << 30);
    EXPECT_THAT(contents, IsOk());
    return *contents;
  }

  std::string path_;
  std::unique_ptr<File> file_;
};

absl::Span<const std::byte> BytesOf(const Tensor& tensor) {
  return absl::MakeSpan(static_cast<const std::byte*>(tensor.data()),
                        tensor.nbytes());
}

// Of a tensor that is not part of a larger one.
BoxFingerprint WholeFingerprint(const Tensor& tensor) {
  return BoxFingerprint(tensor.sizes(), WholeBox(tensor.sizes()),
                        tensor.element_size());
}

ByteRange WholeRange(const Tensor& tensor) { return {0, tensor.nbytes()}; }

absl::Status NoProgress() { return absl::OkStatus(); }

Tensor Iota(absl::Span<const int64_t> sizes) {
  Tensor tensor = *Tensor::Empty(sizes, {.dtype = kInt32});
  std::iota(tensor.mutable_data_as<int32_t>(),
            tensor.mutable_data_as<int32_t>() + tensor.numel(), 17);
  return tensor;
}

TEST_F(ShardWriterTest, ShortDataIsGatheredIntoOneWrite) {
  const sherd::testing::CountPassages writes("file/write");
  SequentialWriter writer(*file_);
  std::string expected;
  for (int i = 0; i < 1000; ++i) {
    const std::string data(static_cast<size_t>(i % 50), static_cast<char>(i));
    expected += data;
    ASSERT_THAT(
        writer.Append(absl::MakeSpan(
            reinterpret_cast<const std::byte*>(data.data()), data.size())),
        IsOk());
    EXPECT_EQ(writer.position(), static_cast<int64_t>(expected.size()));
  }
  EXPECT_EQ(writes.count(), 0);
  ASSERT_THAT(writer.Flush(), IsOk());
  EXPECT_EQ(writes.count(), 1);
  EXPECT_EQ(Contents(), expected);
}

TEST_F(ShardWriterTest, LongAndShortDataStayInOrder) {
  SequentialWriter writer(*file_);
  std::string expected;
  for (const size_t size : {size_t{3}, size_t{40000}, size_t{0}, size_t{5},
                            size_t{30000}, size_t{32768}, size_t{1}}) {
    const std::string data(size, static_cast<char>('a' + expected.size() % 26));
    expected += data;
    ASSERT_THAT(
        writer.Append(absl::MakeSpan(
            reinterpret_cast<const std::byte*>(data.data()), data.size())),
        IsOk());
  }
  ASSERT_THAT(writer.Flush(), IsOk());
  EXPECT_EQ(Contents(), expected);
}

TEST_F(ShardWriterTest, ATensorIsWrittenWithTheCrcOfEachChunk) {
  // Two chunks and a bit.
  const Tensor tensor = Iota({3, 50000});
  std::vector<uint32_t> crcs(3, 0xdead);
  SequentialWriter writer(*file_);
  SHERD_ASSERT_OK_AND_ASSIGN(
      const uint32_t linear,
      AppendTensor(writer, tensor, WholeRange(tensor), kChunk,
                   WholeFingerprint(tensor), absl::MakeSpan(crcs)));
  ASSERT_THAT(writer.Flush(), IsOk());
  const auto bytes = BytesOf(tensor);
  const std::string contents = Contents();
  ASSERT_EQ(contents.size(), bytes.size());
  EXPECT_EQ(std::memcmp(contents.data(), bytes.data(), bytes.size()), 0);
  EXPECT_EQ(crcs[0], Crc32c(bytes.subspan(0, kChunk)));
  EXPECT_EQ(crcs[1], Crc32c(bytes.subspan(kChunk, kChunk)));
  EXPECT_EQ(crcs[2], Crc32c(bytes.subspan(2 * kChunk)));
  EXPECT_EQ(Crc32cFromLinear(linear, bytes.size()), Crc32c(bytes));
  EXPECT_THAT(Crc32cOfElements(tensor, NoProgress),
              IsOkAndHolds(Crc32c(bytes)));
}

TEST_F(ShardWriterTest, AStridedTensorIsWrittenRowMajor) {
  const Tensor base = Iota({700, 300});
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor transposed, base.Transpose(0, 1));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor expected, transposed.Clone());
  std::vector<uint32_t> crcs(4);
  SequentialWriter writer(*file_);
  SHERD_ASSERT_OK_AND_ASSIGN(
      const uint32_t linear,
      AppendTensor(writer, transposed, WholeRange(transposed), kChunk,
                   WholeFingerprint(transposed), absl::MakeSpan(crcs)));
  ASSERT_THAT(writer.Flush(), IsOk());
  const auto bytes = BytesOf(expected);
  const std::string contents = Contents();
  ASSERT_EQ(contents.size(), bytes.size());
  EXPECT_EQ(std::memcmp(contents.data(), bytes.data(), bytes.size()), 0);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(crcs[i], Crc32c(bytes.subspan(i * kChunk, kChunk)));
  }
  EXPECT_EQ(Crc32cFromLinear(linear, bytes.size()), Crc32c(bytes));
  EXPECT_THAT(Crc32cOfElements(transposed, NoProgress),
              IsOkAndHolds(Crc32c(bytes)));
}

TEST_F(ShardWriterTest, ReadingALongShardReportsProgress) {
  // 4 MiB, in one run and in runs of 4 bytes.
  const Tensor rows = Iota({1024, 1024});
  for (const Tensor& tensor : {rows, *rows.Transpose(0, 1)}) {
    int calls = 0;
    const auto progress = [&] {
      return ++calls < 3 ? absl::OkStatus() : absl::AbortedError("enough");
    };
    EXPECT_THAT(Crc32cOfElements(tensor, progress),
                StatusIs(absl::StatusCode::kAborted, "enough"));
    EXPECT_EQ(calls, 3);
  }
}

TEST_F(ShardWriterTest, BoxesOfATensorAddUpToItsFingerprint) {
  for (const Dims& sizes : std::vector<Dims>{
           {}, {1}, {7, 5}, {4, 6, 5}, {3, 1, 4, 5}, {2, 90000}, {400, 700}}) {
    const Tensor tensor = Iota(sizes);
    const auto bytes = BytesOf(tensor);
    // Cut in two along each dimension: up to 16 boxes, some of them contiguous.
    std::vector<Box> boxes = {WholeBox(sizes)};
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] == 1) continue;
      for (size_t i = boxes.size(); i-- > 0;) {
        Box upper = boxes[i];
        boxes[i].sizes[d] = sizes[d] / 2;
        upper.offsets[d] = sizes[d] / 2;
        upper.sizes[d] -= sizes[d] / 2;
        boxes.push_back(upper);
      }
    }
    uint32_t sum = 0;
    SequentialWriter writer(*file_);
    for (const Box& box : boxes) {
      SHERD_ASSERT_OK_AND_ASSIGN(const Tensor part,
                                 tensor.Narrow(box.offsets, box.sizes));
      // Chunks that end within a run.
      std::vector<uint32_t> crcs((part.nbytes() + 59) / 60);
      SHERD_ASSERT_OK_AND_ASSIGN(
          const uint32_t linear,
          AppendTensor(writer, part, WholeRange(part), 60,
                       BoxFingerprint(sizes, box, tensor.element_size()),
                       absl::MakeSpan(crcs)));
      sum ^= linear;
    }
    EXPECT_EQ(Crc32cFromLinear(sum, bytes.size()), Crc32c(bytes))
        << FormatDims(sizes);
  }
}

TEST_F(ShardWriterTest, RangesOfATensorAreThatOfTheWhole) {
  constexpr int64_t kSmallChunk = 64;
  for (const Dims& sizes :
       std::vector<Dims>{{}, {7, 5}, {9, 4, 16}, {3, 1, 4, 50}, {200, 30}}) {
    SCOPED_TRACE(FormatDims(sizes));
    const Tensor larger = Iota(sizes);
    // A box in the middle of each dimension: in most of them strided.
    Box box = WholeBox(sizes);
    for (size_t d = 0; d < sizes.size(); ++d) {
      box.offsets[d] = sizes[d] / 4;
      box.sizes[d] = sizes[d] - sizes[d] / 4 - sizes[d] / 5;
    }
    const BoxFingerprint fingerprint(sizes, box, larger.element_size());
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor part,
                               larger.Narrow(box.offsets, box.sizes));
    const int64_t bytes = part.nbytes();
    std::vector<uint32_t> all((bytes + kSmallChunk - 1) / kSmallChunk);
    std::vector<uint32_t> sums(all.size());
    SequentialWriter writer(*file_);
    SHERD_ASSERT_OK_AND_ASSIGN(
        const uint32_t total,
        AppendTensor(writer, part, WholeRange(part), kSmallChunk, fingerprint,
                     absl::MakeSpan(all), absl::MakeSpan(sums)));
    EXPECT_THAT(AppendTensor(writer, part, WholeRange(part), kSmallChunk,
                             fingerprint, absl::MakeSpan(all)),
                IsOkAndHolds(total));
    ASSERT_THAT(writer.Flush(), IsOk());
    const std::string whole = Contents().substr(bytes);
    // From each chunk to each later one.
    for (int64_t begin = 0; begin < bytes; begin += kSmallChunk) {
      uint32_t sum = 0;
      for (int64_t end = begin; end < bytes;) {
        sum ^= sums[end / kSmallChunk];
        end = std::min(end + kSmallChunk, bytes);
        std::vector<uint32_t> crcs((end - begin + kSmallChunk - 1) /
                                   kSmallChunk);
        SequentialWriter again(*file_);
        EXPECT_THAT(AppendTensor(again, part, {begin, end}, kSmallChunk,
                                 fingerprint, absl::MakeSpan(crcs)),
                    IsOkAndHolds(sum));
        ASSERT_THAT(again.Flush(), IsOk());
        EXPECT_EQ(Contents().substr(0, end - begin),
                  whole.substr(begin, end - begin));
        for (size_t i = 0; i < crcs.size(); ++i) {
          EXPECT_EQ(crcs[i], all[begin / kSmallChunk + i]);
        }
      }
      if (HasFailure()) return;
    }
  }
}

TEST_F(ShardWriterTest, AnErrorOfTheFileIsPassedOn) {
  const sherd::testing::FailFileOperation fault(
      "write", path_, absl::ResourceExhaustedError("disk full"), {.nth = 2});
  const Tensor tensor = Iota({200000});
  std::vector<uint32_t> crcs(4);
  SequentialWriter writer(*file_);
  EXPECT_THAT(AppendTensor(writer, tensor, WholeRange(tensor), kChunk,
                           WholeFingerprint(tensor), absl::MakeSpan(crcs)),
              StatusIs(absl::StatusCode::kResourceExhausted, "disk full"));
}

}  // namespace
}  // namespace sherd
