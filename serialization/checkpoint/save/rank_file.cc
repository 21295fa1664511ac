#include "sherd/serialization/checkpoint/save/rank_file.h"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/checkpoint/save/shard_writer.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/safetensors/tensor_fingerprint.h"
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

  absl::StatusOr<FileReport> Write(
      File& file, const std::string& save_id, const RankFileOptions& options,
      const std::function<absl::Status()>& progress) {
    file_.contents.save_id = save_id;
    SHERD_ASSIGN_OR_RETURN(const std::string header,
                           EncodeDataFileHeader(file_.contents));
    report_.data_begin = static_cast<int64_t>(header.size());
    report_.chunks = file_.chunks;
    report_.size =
        report_.data_begin + file_.data_bytes + CrcTableBytes(file_.chunks);
    SHERD_RETURN_IF_ERROR(file.Reserve(report_.size));
    int64_t started = 0;
    int64_t synced = 0;
    SequentialWriter writer(file, [&](int64_t written) -> absl::Status {
      // Otherwise the data would wait in memory for the sync.
      if (options.sync && written - started >= kWritebackBytes) {
        SHERD_RETURN_IF_ERROR(file.StartWriteback(started, written - started));
        started = written;
      }
      if (options.sync && written - synced >= options.max_unsynced_bytes) {
        SHERD_RETURN_IF_ERROR(file.Sync());
        synced = written;
      }
      return progress();
    });
    SHERD_RETURN_IF_ERROR(AppendAll(writer, header));
    SHERD_CHECK(writer.position() == report_.size);
    SHERD_RETURN_IF_ERROR(writer.Flush());
    if (options.sync) SHERD_RETURN_IF_ERROR(file.Sync());
    SHERD_RETURN_IF_ERROR(file.Close());
    return report_;
  }

 private:
  // The header, the parts, and the CRCs of both.
  absl::Status AppendAll(SequentialWriter& writer, const std::string& header) {
    std::vector<uint32_t> crcs(static_cast<size_t>(1 + file_.chunks));
    crcs[0] = Crc32c(AsBytes(header));
    SHERD_RETURN_IF_ERROR(writer.Append(AsBytes(header)));
    for (const FilePart& part : file_.parts) {
      SHERD_CHECK(writer.position() == report_.data_begin + part.data_offset);
      const PlannedShard& shard = plan_.shards[part.shard];
      const NamedTensor& named = tensors_[static_cast<size_t>(shard.tensor)];
      SHERD_ASSIGN_OR_RETURN(const Tensor elements, elements_(shard));
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
          absl::MakeSpan(crcs).subspan(first, chunks), fingerprints);
      if (!sum.ok()) {
        return Annotate(sum.status(),
                        absl::StrCat("tensor ", Quoted(*named.name)));
      }
      sums_[static_cast<size_t>(shard.tensor)] ^= *sum;
    }
    const std::string table = EncodeCrcTable(crcs);
    report_.crc32c = Crc32c(AsBytes(table));
    return writer.Append(AsBytes(table));
  }

  const SavePlan& plan_;
  FileParts file_;
  const absl::Span<const NamedTensor> tensors_;
  const ShardElementsFn elements_;
  const absl::Span<uint32_t> sums_;
  std::vector<uint32_t>* const fingerprints_;
  FileReport report_;
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

absl::StatusOr<FileReport> WriteRankFile(
    FileSystem& files, const std::string& path, const SavePlan& plan,
    FileParts parts, const std::string& save_id,
    absl::Span<const NamedTensor> tensors, ShardElementsFn elements,
    const RankFileOptions& options,
    const std::function<absl::Status()>& progress, absl::Span<uint32_t> sums,
    std::vector<uint32_t>* fingerprints) {
  if (plan.shards.empty()) return FileReport();
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.Create(path));
  return RankFileWriter(plan, std::move(parts), tensors, elements, sums,
                        fingerprints)
      .Write(*file, save_id, options, progress);
}

}  // namespace sherd
