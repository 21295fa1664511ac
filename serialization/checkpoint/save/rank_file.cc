#include "sherd/serialization/checkpoint/save/rank_file.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/parallel_run.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/checkpoint/phase_clock.h"
#include "sherd/serialization/checkpoint/save/shard_writer.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/safetensors/tensor_fingerprint.h"
#include "sherd/serialization/safetensors/tensors_on_host.h"
#include "sherd/serialization/wire/little_endian.h"

namespace sherd {
namespace {

// The disk is given data in pieces of this size while the next is written.
constexpr int64_t kWritebackBytes = int64_t{8} << 20;

class RankFileWriter {
 public:
  RankFileWriter(const SavePlan& plan, FileParts parts,
                 absl::Span<const NamedTensor> tensors,
                 ShardElementsFn elements, absl::Span<uint32_t> sums,
                 std::vector<uint32_t>* fingerprints)
      : plan_(plan),
        file_(std::move(parts)),
        tensors_(tensors),
        elements_(elements),
        sums_(sums),
        fingerprints_(fingerprints) {
    if (fingerprints_ != nullptr) {
      fingerprints_->resize(static_cast<size_t>(file_.chunks));
    }
  }

  absl::StatusOr<RankFileReport> Write(
      File& file, const RankFileOptions& options,
      const std::function<absl::Status()>& progress) {
    file_.contents.save_id = options.save_id;
    file_.contents.step = options.step;
    SHERD_ASSIGN_OR_RETURN(const std::string header,
                           EncodeDataFileHeader(file_.contents));
    report_.data_begin = static_cast<int64_t>(header.size());
    report_.chunks = file_.chunks;
    report_.size =
        report_.data_begin + file_.data_bytes + CrcTableBytes(file_.chunks);
    SHERD_RETURN_IF_ERROR(file.Reserve(report_.size));
    SHERD_RETURN_IF_ERROR(WriteAll(file, header, options, progress));
    PhaseClock clock;
    if (options.sync) SHERD_RETURN_IF_ERROR(file.Sync());
    SHERD_RETURN_IF_ERROR(file.Close());
    if (options.sync) clock.End(report_.sync);
    return report_;
  }

 private:
  // Consecutive parts, which one thread writes.
  struct Stretch {
    std::vector<FilePart> parts;
    // By tensor, what the parts add to fingerprints.
    std::vector<std::pair<int32_t, uint32_t>> sums;
  };

  // The header, the parts, and the CRCs of both.
  absl::Status WriteAll(File& file, const std::string& header,
                        const RankFileOptions& options,
                        const std::function<absl::Status()>& progress) {
    crcs_.resize(static_cast<size_t>(1 + file_.chunks));
    crcs_[0] = Crc32c(AsBytes(header));
    std::vector<Stretch> stretches = Divide(options.threads);
    ParallelRun run({.threads = options.threads,
                     .name = "sherd-write",
                     .progress = progress});
    const auto write = [&](int64_t i) -> absl::Status {
      Stretch& stretch = stretches[static_cast<size_t>(i)];
      const int64_t begin =
          i == 0 ? 0 : report_.data_begin + stretch.parts[0].data_offset;
      SequentialWriter writer(file,
                              AfterWrite(file, begin, options,
                                         [&run] { return run.MadeProgress(); }),
                              begin);
      if (i == 0) SHERD_RETURN_IF_ERROR(writer.Append(AsBytes(header)));
      SHERD_RETURN_IF_ERROR(AppendParts(stretch, options.ahead, writer));
      if (stretches.size() == 1) return AppendTable(stretches, writer);
      return writer.Flush();
    };
    SHERD_RETURN_IF_ERROR(
        run.Run(static_cast<int64_t>(stretches.size()), write));
    if (stretches.size() == 1) return absl::OkStatus();
    SequentialWriter last(file, nullptr, report_.data_begin + file_.data_bytes);
    return AppendTable(stretches, last);
  }

  // The parts for up to so many threads, about as many bytes for each. Parts
  // are divided between chunks.
  std::vector<Stretch> Divide(int threads) const {
    const int64_t count = std::clamp<int64_t>(
        file_.data_bytes / kMinThreadBytes, 1, std::max(threads, 1));
    std::vector<Stretch> stretches(1);
    for (FilePart part : file_.parts) {
      const int64_t end = part.data_offset + part.range.size();
      while (stretches.size() < static_cast<size_t>(count)) {
        const int64_t cut =
            static_cast<int64_t>(stretches.size()) * file_.data_bytes / count;
        if (cut >= end) break;
        const int64_t chunks =
            std::max<int64_t>(cut - part.data_offset, 0) / kChunkBytes;
        if (chunks > 0) {
          FilePart first = part;
          first.range.end = first.range.begin + chunks * kChunkBytes;
          first.chunks = chunks;
          stretches.back().parts.push_back(first);
          part.range.begin = first.range.end;
          part.data_offset += chunks * kChunkBytes;
          part.first_chunk += chunks;
          part.chunks -= chunks;
        }
        stretches.emplace_back();
      }
      stretches.back().parts.push_back(part);
    }
    return stretches;
  }

  // What is done after each write of a thread that began at `begin`.
  SequentialWriter::AfterWrite AfterWrite(File& file, int64_t begin,
                                          const RankFileOptions& options,
                                          std::function<absl::Status()> next) {
    return [this, &file, &options, next = std::move(next), started = begin,
            counted = begin](int64_t written) mutable -> absl::Status {
      // Otherwise the data would wait in memory for the sync.
      if (options.sync && written - started >= kWritebackBytes) {
        SHERD_RETURN_IF_ERROR(file.StartWriteback(started, written - started));
        started = written;
      }
      const int64_t bytes = written - std::exchange(counted, written);
      if (options.sync && IsSyncDue(bytes, options.max_unsynced_bytes)) {
        SHERD_RETURN_IF_ERROR(file.Sync());
      }
      return next();
    };
  }

  // Counts bytes that were written. Whether the thread is to sync the file,
  // since all together have written so many.
  bool IsSyncDue(int64_t bytes, int64_t max_unsynced_bytes) {
    int64_t unsynced = (unsynced_ += bytes);
    while (unsynced >= max_unsynced_bytes) {
      if (unsynced_.compare_exchange_weak(unsynced, 0)) return true;
    }
    return false;
  }

  absl::Status AppendParts(Stretch& stretch, bool ahead,
                           SequentialWriter& writer) {
    const auto elements_of = [&](size_t i) {
      return elements_(plan_.shards[stretch.parts[i].shard]);
    };
    TensorsOnHost on_host(stretch.parts.size(), elements_of, ahead);
    for (size_t i = 0; i < stretch.parts.size(); ++i) {
      const FilePart& part = stretch.parts[i];
      SHERD_CHECK(writer.position() == report_.data_begin + part.data_offset);
      const PlannedShard& shard = plan_.shards[part.shard];
      const NamedTensor& named = tensors_[static_cast<size_t>(shard.tensor)];
      SHERD_ASSIGN_OR_RETURN(const Tensor elements, on_host.At(i));
      const size_t first = static_cast<size_t>(part.first_chunk);
      const size_t chunks = static_cast<size_t>(part.chunks);
      absl::Span<uint32_t> fingerprints;
      if (fingerprints_ != nullptr) {
        fingerprints =
            absl::MakeSpan(*fingerprints_).subspan(first - 1, chunks);
      }
      const absl::StatusOr<uint32_t> sum = AppendTensor(
          writer, elements, part.range, kChunkBytes,
          BoxFingerprint(named.tensor->size(), shard.box,
                         elements.element_size()),
          absl::MakeSpan(crcs_).subspan(first, chunks), fingerprints);
      if (!sum.ok()) {
        return Annotate(sum.status(),
                        absl::StrCat("tensor ", Quoted(*named.name)));
      }
      stretch.sums.emplace_back(shard.tensor, *sum);
    }
    return absl::OkStatus();
  }

  // After all parts.
  absl::Status AppendTable(absl::Span<const Stretch> stretches,
                           SequentialWriter& writer) {
    for (const Stretch& stretch : stretches) {
      for (const auto& [tensor, sum] : stretch.sums) {
        sums_[static_cast<size_t>(tensor)] ^= sum;
      }
    }
    const std::string table = EncodeCrcTable(crcs_);
    report_.crc32c = Crc32c(AsBytes(table));
    SHERD_RETURN_IF_ERROR(writer.Append(AsBytes(table)));
    SHERD_CHECK(writer.position() == report_.size);
    return writer.Flush();
  }

  const SavePlan& plan_;
  FileParts file_;
  const absl::Span<const NamedTensor> tensors_;
  const ShardElementsFn elements_;
  const absl::Span<uint32_t> sums_;
  std::vector<uint32_t>* const fingerprints_;
  // That of the header, then those of the chunks.
  std::vector<uint32_t> crcs_;
  // Written by all threads since the last sync.
  std::atomic<int64_t> unsynced_ = 0;
  RankFileReport report_;
};

}  // namespace

int64_t ShardBytes(const SavePlan& plan, size_t shard) {
  const DataFileShard& box = plan.contents.shards[shard];
  return Volume(box) *
         static_cast<int64_t>(SizeOf(plan.contents.tensors[box.tensor].dtype));
}

FileParts AllParts(const SavePlan& plan) {
  FileParts file;
  file.contents = plan.contents;
  file.chunks = plan.chunks;
  file.parts.reserve(plan.shards.size());
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    const PlannedShard& shard = plan.shards[i];
    const int64_t bytes = ShardBytes(plan, i);
    file.parts.push_back({.shard = i,
                          .range = {0, bytes},
                          .data_offset = shard.data_offset,
                          .first_chunk = shard.first_chunk,
                          .chunks = shard.chunks});
    file.data_bytes = shard.data_offset + bytes;
  }
  return file;
}

absl::StatusOr<RankFileReport> WriteRankFile(
    FileSystem& files, const std::string& path, const SavePlan& plan,
    FileParts parts, absl::Span<const NamedTensor> tensors,
    ShardElementsFn elements, const RankFileOptions& options,
    const std::function<absl::Status()>& progress, absl::Span<uint32_t> sums,
    std::vector<uint32_t>* fingerprints) {
  if (plan.shards.empty()) return RankFileReport();
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.Create(path));
  return RankFileWriter(plan, std::move(parts), tensors, elements, sums,
                        fingerprints)
      .Write(*file, options, progress);
}

}  // namespace sherd
