// How a load reads pieces that are neighbours in the file, and that what it
// reads is checked whatever order the reads end in.

#include "sherd/serialization/checkpoint/load/piece_reader.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/kits/forwarding_files.h"
#include "sherd/serialization/kits/sample_tensors.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/random_layouts.h"

namespace sherd {
namespace {

using sherd::testing::IsOk;
using sherd::testing::LeaveOutSyncs;
using sherd::testing::RunLocalRanks;
using sherd::testing::StatusIs;
using ::testing::HasSubstr;

// Data files whose reads of one call end in the opposite order, of which one
// may fail or return a byte that is not in the file.
class ReversedFiles final : public ForwardingFiles {
 public:
  enum class Fault { kNone, kError, kWrongByte };

  absl::StatusOr<std::unique_ptr<File>> OpenForRead(
      const std::string& path) override {
    SHERD_ASSIGN_OR_RETURN(std::unique_ptr<File> file,
                           ForwardingFiles::OpenForRead(path));
    if (!absl::EndsWith(path, ".safetensors")) return file;
    return std::make_unique<ReversedFile>(*this, std::move(file));
  }

  // At the nth read of data from here on.
  void Arm(Fault fault, int64_t nth) {
    fault_ = fault;
    until_fault_ = nth;
    reads_ = 0;
    calls_ = 0;
  }
  bool has_happened() const {
    return fault_ != Fault::kNone && until_fault_ <= 0;
  }
  // Of data, and in how many calls.
  int64_t reads() const { return reads_; }
  int64_t calls() const { return calls_; }

 private:
  class ReversedFile final : public File {
   public:
    ReversedFile(ReversedFiles& files, std::unique_ptr<File> file)
        : File(file->path()), files_(files), file_(std::move(file)) {}

    absl::Status ReadAt(int64_t offset, absl::Span<std::byte> buffer) override {
      ++files_.calls_;
      return Read(offset, buffer);
    }
    absl::Status ReadMany(
        absl::Span<const FileRead> reads,
        absl::FunctionRef<absl::Status(size_t)> done) override {
      ++files_.calls_;
      for (size_t i = reads.size(); i-- > 0;) {
        SHERD_RETURN_IF_ERROR(Read(reads[i].offset, reads[i].buffer));
        SHERD_RETURN_IF_ERROR(done(i));
      }
      return absl::OkStatus();
    }
    absl::Status WriteAt(int64_t, absl::Span<const std::byte>) override {
      return absl::UnimplementedError("opened for reading");
    }
    absl::StatusOr<int64_t> Size() override { return file_->Size(); }
    absl::Status Reserve(int64_t) override { return absl::OkStatus(); }
    absl::Status Sync() override { return absl::OkStatus(); }
    absl::Status Close() override { return file_->Close(); }

   private:
    absl::Status Read(int64_t offset, absl::Span<std::byte> buffer) {
      ++files_.reads_;
      SHERD_RETURN_IF_ERROR(file_->ReadAt(offset, buffer));
      if (--files_.until_fault_ != 0) return absl::OkStatus();
      if (files_.fault_ == Fault::kError) {
        return absl::InternalError("bad sector");
      }
      if (files_.fault_ == Fault::kWrongByte) {
        buffer[buffer.size() / 2] ^= std::byte{8};
      }
      return absl::OkStatus();
    }

    ReversedFiles& files_;
    const std::unique_ptr<File> file_;
  };

  Fault fault_ = Fault::kNone;
  std::atomic<int64_t> until_fault_ = 0;
  std::atomic<int64_t> reads_ = 0;
  std::atomic<int64_t> calls_ = 0;
};

class PieceReaderTest : public ::testing::Test {
 protected:
  using Tensors = std::map<std::string, ShardedTensor>;

  PieceReaderTest()
      : path_(
            JoinPath(::testing::TempDir(),
                     absl::StrCat("pieces_", ::testing::UnitTest::GetInstance()
                                                 ->current_test_info()
                                                 ->name()))) {
    std::filesystem::remove_all(path_);
  }

  Tensors Make(const std::vector<int64_t>& rows, int ranks, bool fill) const {
    Tensors tensors;
    const auto spec = ChunkShardingSpec::Create(0, PlacementsOnRanks(ranks));
    EXPECT_THAT(spec, IsOk());
    for (size_t i = 0; i < rows.size(); ++i) {
      auto tensor =
          ShardedTensor::Zeros(*spec, {rows[i], 64}, {.dtype = kFloat32});
      EXPECT_THAT(tensor, IsOk());
      if (fill) FillSample(*tensor, static_cast<int>(i));
      tensors.emplace(absl::StrCat("t", 1000 + i), *std::move(tensor));
    }
    return tensors;
  }

  // Tensors of so many rows of 256 bytes.
  void Save(const std::vector<int64_t>& rows, int ranks) {
    RunLocalRanks(ranks, [&](ProcessGroup&) {
      ASSERT_THAT(SaveCheckpoint(path_, Make(rows, ranks, /*fill=*/true)),
                  IsOk());
    });
  }

  // Loads each of them, or every second one.
  absl::Status Load(const std::vector<int64_t>& rows, int ranks,
                    size_t step = 1) {
    absl::Status status;
    RunLocalRanks(ranks, [&](ProcessGroup& group) {
      Tensors tensors = Make(rows, ranks, /*fill=*/false);
      std::map<std::string, ShardedTensor*> into;
      size_t number = 0;
      for (auto& [name, tensor] : tensors) {
        if (number++ % step == 0) into[name] = &tensor;
      }
      const absl::Status loaded = LoadCheckpointInto(
          path_, into, nullptr, {.files = &files_, .threads = 1});
      if (group.rank() == 0) status = loaded;
      if (!loaded.ok()) return;
      int seed = 0;
      for (const auto& [name, tensor] : tensors) {
        if (into.contains(name)) {
          EXPECT_EQ(CountWrong(tensor, seed), 0) << name;
        }
        ++seed;
      }
    });
    return status;
  }

  const LeaveOutSyncs no_syncs_;
  const std::string path_;
  ReversedFiles files_;
};

TEST_F(PieceReaderTest, NeighboursInTheFileAreReadTogether) {
  const std::vector<int64_t> rows(200, 64);  // 16 KiB each
  Save(rows, 1);
  files_.Arm(ReversedFiles::Fault::kNone, 0);
  ASSERT_THAT(Load(rows, 1), IsOk());
  EXPECT_GE(files_.reads(), 200);
  // 3200 KiB, 256 KiB at once, and the header's and checksums' reads.
  EXPECT_LE(files_.calls(), 13 + 4);
}

// Together they would be asked for in the page cache, one by one.
TEST_F(PieceReaderTest, PiecesApartAreReadsOfTheirOwn) {
  const std::vector<int64_t> rows(40, 64);
  Save(rows, 1);
  files_.Arm(ReversedFiles::Fault::kNone, 0);
  ASSERT_THAT(Load(rows, 1, 2), IsOk());
  EXPECT_GE(files_.calls(), 20);
}

TEST_F(PieceReaderTest, PiecesOfAnyLengthGoWhereTheyBelong) {
  const uint64_t seed = sherd::testing::RandomSeed();
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < sherd::testing::CaseCount(20); ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", case ", i));
    // From a row to four long pieces, and some without any.
    std::vector<int64_t> rows;
    for (uint64_t n = 1 + random() % 60; n-- > 0;) {
      rows.push_back(static_cast<int64_t>(random() % (1 << (random() % 11))));
    }
    const int saved = 1 + static_cast<int>(random() % 3);
    const int loaded = 1 + static_cast<int>(random() % 3);
    std::filesystem::remove_all(path_);
    Save(rows, saved);
    files_.Arm(ReversedFiles::Fault::kNone, 0);
    ASSERT_THAT(Load(rows, loaded), IsOk());
  }
}

TEST_F(PieceReaderTest, AnErrorOrAWrongByteOfAnyReadIsFound) {
  const std::vector<int64_t> rows(40, 48);  // 12 KiB each
  Save(rows, 1);
  int64_t wrong = 0;
  for (const auto fault :
       {ReversedFiles::Fault::kError, ReversedFiles::Fault::kWrongByte}) {
    bool happened = true;
    for (int64_t nth = 1; happened; ++nth) {
      SCOPED_TRACE(nth);
      files_.Arm(fault, nth);
      const absl::Status status = Load(rows, 1);
      happened = files_.has_happened();
      if (!happened) {
        EXPECT_THAT(status, IsOk());
      } else if (fault == ReversedFiles::Fault::kError) {
        EXPECT_THAT(status,
                    StatusIs(absl::StatusCode::kInternal, "bad sector"));
      } else {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss));
        if (absl::StrContains(status.message(), "tensor \"t10")) ++wrong;
      }
    }
  }
  EXPECT_EQ(wrong, 40) << "each names its tensor";
}

}  // namespace
}  // namespace sherd
