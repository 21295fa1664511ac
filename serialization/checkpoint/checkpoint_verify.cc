#include "sherd/serialization/checkpoint_verify.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/checkpoint/shard_reader.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/manifest/manifest_v1.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/safetensors/safetensors_header.h"

namespace sherd {
namespace {

// Checks one checkpoint by several threads, which take units of work in turn:
// first the header of each file, then each shard, in the order of the files.
class Verifier {
 public:
  Verifier(const std::string& path, const ManifestV1& manifest,
           FileSystem& files)
      : path_(path), manifest_(manifest), files_(files) {
    for (const ManifestTensorV1& tensor : manifest.tensors) {
      for (const ManifestShardV1& shard : tensor.shards) {
        if (shard.file >= 0) shards_.push_back({&tensor, &shard});
      }
    }
    std::sort(shards_.begin(), shards_.end(),
              [](const SavedShard& a, const SavedShard& b) {
                return std::make_pair(a.shard->file, a.shard->file_offset) <
                       std::make_pair(b.shard->file, b.shard->file_offset);
              });
  }

  // Runs until no work is left.
  void Work() {
    ShardReader reader(path_, manifest_, files_);
    const size_t headers = manifest_.files.size();
    for (size_t unit = next_++; unit < headers + shards_.size();
         unit = next_++) {
      Report(unit, unit < headers ? CheckHeader(static_cast<int32_t>(unit))
                                  : reader.Verify(shards_[unit - headers]));
    }
    bytes_ += reader.bytes_read();
  }

  int64_t bytes() const { return bytes_; }

  absl::Status Result() {
    absl::MutexLock lock(&mutex_);
    if (problems_.empty()) return absl::OkStatus();
    // The first in the order of the files, whichever thread found it.
    const auto first = std::min_element(
        problems_.begin(), problems_.end(),
        [](const auto& a, const auto& b) { return a.first < b.first; });
    if (num_problems_ == 1) return first->second;
    return absl::Status(
        first->second.code(),
        absl::StrCat(first->second.message(), "; and ", num_problems_ - 1,
                     " more problem", num_problems_ == 2 ? "" : "s"));
  }

 private:
  static constexpr size_t kMaxKept = 1000;

  void Report(size_t unit, absl::Status status) {
    if (status.ok()) return;
    absl::MutexLock lock(&mutex_);
    ++num_problems_;
    if (problems_.size() < kMaxKept) {
      problems_.emplace_back(unit, std::move(status));
    }
  }

  // The shards of a file, by offset.
  absl::Span<const SavedShard> ShardsOf(int32_t file) const {
    const auto by_file = [](const SavedShard& shard, int32_t index) {
      return shard.shard->file < index;
    };
    const auto begin =
        std::lower_bound(shards_.begin(), shards_.end(), file, by_file);
    const auto end = std::lower_bound(begin, shards_.end(), file + 1, by_file);
    return absl::MakeConstSpan(shards_).subspan(begin - shards_.begin(),
                                                end - begin);
  }

  // Checks that the header is intact and agrees with the manifest.
  absl::Status CheckHeader(int32_t index) {
    const ManifestFileV1& expected = manifest_.files[index];
    // Checks the size, which bounds that of the header.
    ShardReader reader(path_, manifest_, files_);
    SHERD_ASSIGN_OR_RETURN(File * file, reader.FileAt(index));
    const std::string path = JoinPath(path_, expected.name);
    if (expected.data_begin < 8 ||
        expected.data_begin > 8 + kMaxSafetensorsHeaderBytes) {
      return absl::DataLossError(
          absl::StrCat(path, ": the manifest says that the data begins at ",
                       expected.data_begin));
    }
    std::string front(expected.data_begin, '\0');
    const auto bytes = absl::MakeSpan(
        reinterpret_cast<std::byte*>(front.data()), front.size());
    SHERD_RETURN_IF_ERROR(file->ReadAt(0, bytes));
    bytes_ += expected.data_begin;
    if (const uint32_t crc = Crc32c(bytes); crc != expected.header_crc32c) {
      return absl::DataLossError(absl::StrCat(
          path, ": the header is damaged: the bytes from offset 0 to ",
          front.size(), " have the CRC-32C ", absl::Hex(crc, absl::kZeroPad8),
          ", expected ", absl::Hex(expected.header_crc32c, absl::kZeroPad8)));
    }
    uint64_t length = 0;
    for (int i = 7; i >= 0; --i) {
      length = length << 8 | static_cast<unsigned char>(front[i]);
    }
    if (length != front.size() - 8) {
      return absl::DataLossError(
          absl::StrCat(path, ": the header claims at offset 0 to have ", length,
                       " bytes, the manifest says ", front.size() - 8));
    }
    SHERD_ASSIGN_OR_RETURN(
        const SafetensorsHeader header,
        ParseSafetensorsHeader(absl::string_view(front).substr(8),
                               expected.size - expected.data_begin, path));
    return CompareHeader(path, expected, header, ShardsOf(index));
  }

  absl::Status CompareHeader(const std::string& path,
                             const ManifestFileV1& expected,
                             const SafetensorsHeader& header,
                             absl::Span<const SavedShard> shards) const {
    if (header.entries.size() != shards.size()) {
      return absl::DataLossError(
          absl::StrCat(path, ": the header has ", header.entries.size(),
                       " tensors, the manifest ", shards.size()));
    }
    for (size_t i = 0; i < shards.size(); ++i) {
      const ManifestTensorV1& tensor = *shards[i].tensor;
      const ManifestShardV1& shard = *shards[i].shard;
      Dims shape = shard.sizes;
      if (tensor.dtype == kComplex128) shape.push_back(2);
      const std::string key = ShardKey(tensor.name, shard.offsets);
      const SafetensorsEntry& entry = header.entries[i];
      if (entry.name != key ||
          entry.dtype_name != SafetensorsDTypeName(tensor.dtype) ||
          entry.shape != shape ||
          expected.data_begin + entry.begin != shard.file_offset) {
        return absl::DataLossError(absl::StrCat(
            path, ": at offset ", shard.file_offset, " the manifest has ",
            Quoted(key), ", ", Name(tensor.dtype), " ", FormatDims(shard.sizes),
            ", but the header has ", Quoted(entry.name.substr(0, 200)), ", ",
            entry.dtype_name, " ", FormatDims(entry.shape), " at ",
            expected.data_begin + entry.begin));
      }
    }
    return absl::OkStatus();
  }

  const std::string& path_;
  const ManifestV1& manifest_;
  FileSystem& files_;
  // By file and offset.
  std::vector<SavedShard> shards_;
  std::atomic<size_t> next_ = 0;
  std::atomic<int64_t> bytes_ = 0;
  absl::Mutex mutex_;
  // With the unit of work that found each.
  std::vector<std::pair<size_t, absl::Status>> problems_
      ABSL_GUARDED_BY(mutex_);
  int64_t num_problems_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::StatusOr<VerifyReport> VerifyOnce(const std::string& path,
                                        const ManifestV1& manifest,
                                        FileSystem& files, int num_threads) {
  Verifier verifier(path, manifest, files);
  std::vector<std::thread> threads;
  for (int i = 1; i < num_threads; ++i) {
    threads.emplace_back([&] { verifier.Work(); });
  }
  verifier.Work();
  for (std::thread& thread : threads) thread.join();
  SHERD_RETURN_IF_ERROR(verifier.Result());
  VerifyReport report;
  report.tensors = static_cast<int64_t>(manifest.tensors.size());
  report.files = static_cast<int64_t>(manifest.files.size());
  report.bytes = verifier.bytes();
  return report;
}

}  // namespace

absl::StatusOr<VerifyReport> VerifyCheckpoint(const std::string& path,
                                              const VerifyOptions& options) {
  FileSystem& files =
      options.files != nullptr ? *options.files : FileSystem::Posix();
  SHERD_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(files, path));
  while (true) {
    absl::StatusOr<VerifyReport> report =
        VerifyOnce(path, ToV1(manifest), files, options.threads);
    if (!absl::IsDataLoss(report.status())) return report;
    // Perhaps a file is missing because the checkpoint was replaced meanwhile.
    SHERD_ASSIGN_OR_RETURN(Manifest current, ReadManifest(files, path));
    if (current.save_id == manifest.save_id) return report;
    manifest = std::move(current);
  }
}

}  // namespace sherd
