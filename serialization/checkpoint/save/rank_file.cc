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
  RankFileWriter(const SavePlan& plan, absl::Span<const NamedTensor> tensors,
                 ShardElementsFn elements, absl::Span<uint32_t> sums)
      : plan_(plan), tensors_(tensors), elements_(elements), sums_(sums) {}

  absl::StatusOr<FileReport> Write(
      File& file, const std::string& save_id, const RankFileOptions& options,
      const std::function<absl::Status()>& progress) {
    DataFileContents contents = plan_.contents;
    contents.save_id = save_id;
    SHERD_ASSIGN_OR_RETURN(const std::string header,
                           EncodeDataFileHeader(contents));
    report_.data_begin = static_cast<int64_t>(header.size());
    report_.chunks = plan_.chunks;
    const PlannedShard& last = plan_.shards.back();
    report_.size = report_.data_begin + last.data_offset + BytesOf(last) +
                   CrcTableBytes(plan_.chunks);
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
  const NamedTensor& NamedOf(const PlannedShard& shard) const {
    return tensors_[static_cast<size_t>(shard.tensor)];
  }

  int64_t BytesOf(const PlannedShard& shard) const {
    return Volume(shard.box) *
           static_cast<int64_t>(SizeOf(NamedOf(shard).tensor->dtype()));
  }

  // The header, the shards, and the CRCs of both.
  absl::Status AppendAll(SequentialWriter& writer, const std::string& header) {
    std::vector<uint32_t> crcs(static_cast<size_t>(1 + plan_.chunks));
    crcs[0] = Crc32c(AsBytes(header));
    SHERD_RETURN_IF_ERROR(writer.Append(AsBytes(header)));
    for (const PlannedShard& shard : plan_.shards) {
      SHERD_CHECK(writer.position() == report_.data_begin + shard.data_offset);
      const NamedTensor& named = NamedOf(shard);
      SHERD_ASSIGN_OR_RETURN(const Tensor part, elements_(shard));
      const absl::StatusOr<uint32_t> sum = AppendTensor(
          writer, part, kChunkBytes,
          absl::MakeSpan(crcs).subspan(static_cast<size_t>(shard.first_chunk),
                                       static_cast<size_t>(shard.chunks)),
          BoxFingerprint(named.tensor->size(), shard.box, part.element_size()));
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
  const absl::Span<const NamedTensor> tensors_;
  const ShardElementsFn elements_;
  const absl::Span<uint32_t> sums_;
  FileReport report_;
};

}  // namespace

absl::StatusOr<FileReport> WriteRankFile(
    FileSystem& files, const std::string& path, const SavePlan& plan,
    const std::string& save_id, absl::Span<const NamedTensor> tensors,
    ShardElementsFn elements, const RankFileOptions& options,
    const std::function<absl::Status()>& progress, absl::Span<uint32_t> sums) {
  if (plan.shards.empty()) return FileReport();
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.Create(path));
  return RankFileWriter(plan, tensors, elements, sums)
      .Write(*file, save_id, options, progress);
}

}  // namespace sherd
