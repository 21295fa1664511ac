#include "sherd/serialization/safetensors/box_pieces.h"

#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/core/tensor/kernels/strided_copy.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

std::byte* Address(std::vector<int32_t>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

// Copies a box out of an array piece by piece, as a reader of a file would;
// returns the number of pieces.
int CopyBox(const std::vector<int32_t>& array, const BoxInArray& box,
            int64_t max_scattered_bytes) {
  int pieces = 0;
  int64_t position = 0;
  const auto* bytes = reinterpret_cast<const std::byte*>(array.data());
  const absl::Status status =
      ForEachPiece(box, max_scattered_bytes, [&](const BoxPiece& piece) {
        ++pieces;
        EXPECT_GE(piece.offset, position) << "not ascending";
        position = piece.offset + piece.bytes;
        EXPECT_LE(position, static_cast<int64_t>(4 * array.size()));
        EXPECT_TRUE(piece.contiguous || piece.bytes <= max_scattered_bytes);
        StridedCopy(piece.data, piece.strides, bytes + piece.offset,
                    ContiguousStrides(piece.sizes), piece.sizes, 4);
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  return pieces;
}

TEST(BoxPiecesTest, RandomBoxesAreCopiedElementByElement) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    const size_t rank = random() % 5;
    Dims array_sizes, offsets, sizes;
    for (size_t d = 0; d < rank; ++d) {
      array_sizes.push_back(1 + random() % 6);
      sizes.push_back(random() % 3 == 0 ? array_sizes[d]
                                        : 1 + random() % array_sizes[d]);
      offsets.push_back(random() % (array_sizes[d] - sizes[d] + 1));
    }
    std::vector<int32_t> array(*NumElements(array_sizes));
    std::iota(array.begin(), array.end(), 1);
    // The memory is contiguous, transposed, or part of something wider.
    Dims strides = ContiguousStrides(sizes);
    const int layout = static_cast<int>(random() % 3);
    if (layout == 1) {
      int64_t stride = 1;
      for (size_t d = 0; d < rank; ++d) {
        strides[d] = stride;
        stride *= sizes[d];
      }
    } else if (layout == 2) {
      for (int64_t& stride : strides) stride *= 2;
    }
    std::vector<int32_t> memory(2 * *NumElements(sizes) + 1, 0);
    BoxInArray box{{offsets, sizes}, array_sizes, 4, Address(memory), strides};
    CopyBox(array, box, 4 + static_cast<int64_t>(random() % 60));

    const Dims array_strides = ContiguousStrides(array_sizes);
    std::vector<int32_t> expected(memory.size(), 0);
    const int64_t n = *NumElements(sizes);
    for (int64_t i = 0; i < n; ++i) {
      int64_t rest = i, from = 0, to = 0;
      for (size_t d = rank; d-- > 0;) {
        const int64_t x = rest % sizes[d];
        rest /= sizes[d];
        from += (offsets[d] + x) * array_strides[d];
        to += x * strides[d];
      }
      expected[to] = array[from];
    }
    ASSERT_EQ(memory, expected)
        << FormatDims(array_sizes) << FormatDims(offsets) << FormatDims(sizes)
        << FormatDims(strides);
  }
}

TEST(BoxPiecesTest, WholeRowsIntoContiguousMemoryAreOnePiece) {
  std::vector<int32_t> array(60), memory(60);
  const Dims array_sizes = {5, 4, 3}, offsets = {1, 0, 0}, sizes = {3, 4, 3};
  const Dims strides = ContiguousStrides(sizes);
  BoxInArray box{{offsets, sizes}, array_sizes, 4, Address(memory), strides};
  EXPECT_EQ(CopyBox(array, box, 4), 1);
  EXPECT_EQ(RunBytes(array_sizes, sizes, 4), 3 * 4 * 3 * 4);
}

TEST(BoxPiecesTest, ColumnsAreOnePiecePerRow) {
  std::vector<int32_t> array(60), memory(60);
  const Dims array_sizes = {10, 6}, offsets = {2, 3}, sizes = {7, 2};
  const Dims strides = ContiguousStrides(sizes);
  BoxInArray box{{offsets, sizes}, array_sizes, 4, Address(memory), strides};
  EXPECT_EQ(CopyBox(array, box, 4), 7);
  EXPECT_EQ(RunBytes(array_sizes, sizes, 4), 8);
}

TEST(BoxPiecesTest, AnEmptyBoxHasNoPieces) {
  std::vector<int32_t> array(6), memory(6);
  const Dims array_sizes = {2, 3}, offsets = {1, 3}, sizes = {1, 0};
  const Dims strides = ContiguousStrides(sizes);
  BoxInArray box{{offsets, sizes}, array_sizes, 4, Address(memory), strides};
  EXPECT_EQ(CopyBox(array, box, 4), 0);
  EXPECT_EQ(RunBytes(array_sizes, sizes, 4), 0);
}

TEST(BoxPiecesTest, AnErrorEndsTheWalk) {
  std::vector<int32_t> memory(60);
  const Dims array_sizes = {10, 6}, offsets = {0, 0}, sizes = {10, 2};
  const Dims strides = ContiguousStrides(sizes);
  BoxInArray box{{offsets, sizes}, array_sizes, 4, Address(memory), strides};
  int calls = 0;
  const absl::Status status =
      ForEachPiece(box, 64, [&](const BoxPiece&) -> absl::Status {
        return ++calls == 3 ? absl::DataLossError("third") : absl::OkStatus();
      });
  EXPECT_EQ(status.message(), "third");
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace sherd
