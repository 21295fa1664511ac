#include "sherd/serialization/checkpoint_verify.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/base/parallel_run.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/serialization/checkpoint/data_file_check.h"
#include "sherd/serialization/checkpoint/extent_reader.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/manifest/data_file.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_reader.h"
#include "sherd/serialization/manifest/memory_budget.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/safetensors/safetensors_header.h"
#include "sherd/serialization/safetensors/tensor_fingerprint.h"

namespace sherd {
namespace {

// An extent of a shard.
struct Piece {
  SavedExtent extent;
  int64_t tensor = 0;
  int64_t shard = 0;
  // In the shard, and of how many; and its first byte there.
  int32_t number = 0;
  int32_t count = 1;
  int64_t begin = 0;
};

// Checks one checkpoint by several threads: first the header of each file, then
// each shard, in the order of the files.
class Verifier {
 public:
  Verifier(const ManifestReader& manifest_reader, const Manifest& manifest,
           FileSystem& files, SoundChunks* known)
      : manifest_(manifest),
        files_(files),
        reader_(manifest_reader, files),
        known_(manifest.version == 1 ? nullptr : known),
        sums_(manifest.tensors.size()),
        unsound_(manifest.files.size()) {
    static_assert(sizeof(Piece) <= kPerListedShard);
    int64_t extents = 0;
    for (const ManifestTensor& tensor : manifest.tensors) {
      extents += tensor.num_extents();
    }
    pieces_.reserve(static_cast<size_t>(extents));
    for (size_t t = 0; t < manifest.tensors.size(); ++t) {
      for (int64_t i = 0; i < manifest.tensors[t].num_shards(); ++i) {
        const SavedShardPlace place =
            manifest.tensors[t].PlaceOf(i, manifest.chunk_bytes);
        int64_t begin = 0;
        for (size_t k = 0; k < place.extents.size(); ++k) {
          pieces_.push_back({place.extents[k], static_cast<int64_t>(t), i,
                             static_cast<int32_t>(k),
                             static_cast<int32_t>(place.extents.size()),
                             begin});
          begin += place.extents[k].bytes;
        }
      }
    }
    std::sort(pieces_.begin(), pieces_.end(),
              [](const Piece& a, const Piece& b) {
                return std::tie(a.extent.file, a.extent.data_offset) <
                       std::tie(b.extent.file, b.extent.data_offset);
              });
  }

  // Returns the first problem in the order of the files, whichever thread found
  // it, and how many more there are.
  absl::Status Run(const VerifyOptions& verify) {
    const ParallelOptions options = {.threads = verify.threads,
                                     .name = "sherd-verify",
                                     .progress = verify.progress};
    const auto headers = static_cast<int64_t>(manifest_.files.size());
    SHERD_RETURN_IF_ERROR(
        ParallelRun(options).Run(headers, [this](int64_t file) {
          const auto index = static_cast<size_t>(file);
          absl::Status status = CheckHeader(static_cast<int32_t>(file));
          if (!status.ok()) unsound_[index] = true;
          Report(index, std::move(status));
          return absl::OkStatus();
        }));
    // Now it is known which files are sound.
    ParallelRun shards(options);
    SHERD_RETURN_IF_ERROR(
        shards.Run(static_cast<int64_t>(pieces_.size()), [&](int64_t piece) {
          Report(static_cast<size_t>(headers + piece),
                 CheckShard(pieces_[static_cast<size_t>(piece)], shards));
          return absl::OkStatus();
        }));
    return Result();
  }

  int64_t bytes() const { return header_bytes_ + reader_.bytes_read(); }

 private:
  static constexpr size_t kMaxKept = 1000;

  absl::Status Result() {
    // Where bytes are damaged, so is the fingerprint.
    if (num_problems() == 0) CheckFingerprints();
    absl::MutexLock lock(&mutex_);
    if (problems_.empty()) return absl::OkStatus();
    const auto first = std::min_element(
        problems_.begin(), problems_.end(),
        [](const auto& a, const auto& b) { return a.first < b.first; });
    if (num_problems_ == 1) return first->second;
    return absl::Status(
        first->second.code(),
        absl::StrCat(first->second.message(), "; and ", num_problems_ - 1,
                     " more problem", num_problems_ == 2 ? "" : "s"));
  }

  int64_t num_problems() {
    absl::MutexLock lock(&mutex_);
    return num_problems_;
  }

  void Report(size_t unit, absl::Status status) {
    if (status.ok()) return;
    absl::MutexLock lock(&mutex_);
    ++num_problems_;
    if (problems_.size() < kMaxKept) {
      problems_.emplace_back(unit, std::move(status));
    }
  }

  // Those of a file, by offset.
  absl::Span<const Piece> PiecesOf(int32_t file) const {
    const auto by_file = [](const Piece& piece, int32_t index) {
      return piece.extent.file < index;
    };
    const auto begin =
        std::lower_bound(pieces_.begin(), pieces_.end(), file, by_file);
    const auto end = std::lower_bound(begin, pieces_.end(), file + 1, by_file);
    return absl::MakeConstSpan(pieces_).subspan(begin - pieces_.begin(),
                                                end - begin);
  }

  // Checks that the header is intact and agrees with the manifest.
  absl::Status CheckHeader(int32_t index) {
    const ManifestFile& expected = manifest_.files[index];
    // The size bounds that of the header.
    SHERD_RETURN_IF_ERROR(reader_.Open(index));
    const std::string path = PathOf(expected);
    uint32_t crc = expected.header_crc32c;
    if (manifest_.version > 1) {
      SHERD_ASSIGN_OR_RETURN(crc, reader_.ChunkCrc32c({.file = index}, 0));
    }
    SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                           files_.OpenForRead(path));
    SHERD_ASSIGN_OR_RETURN(const std::string front,
                           ReadHeaderChecked(*file, expected.data_begin, crc));
    header_bytes_ += expected.data_begin;
    SHERD_ASSIGN_OR_RETURN(
        SafetensorsHeader header,
        ParseSafetensorsHeader(absl::string_view(front).substr(8),
                               expected.size - expected.data_begin, path));
    if (manifest_.version == 1) {
      return CompareEntries(path, expected, header, PiecesOf(index));
    }
    SHERD_ASSIGN_OR_RETURN(const DataFileContents contents,
                           ParseDataFileHeader(header, path));
    header.entries.pop_back();
    if (!absl::StrContains(expected.name,
                           absl::StrCat(".", manifest_.save_id, "."))) {
      // Of an earlier save, of which any part may be of use.
      return absl::OkStatus();
    }
    SHERD_RETURN_IF_ERROR(
        CompareEntries(path, expected, header, PiecesOf(index)));
    return CompareContents(path, contents, PiecesOf(index));
  }

  absl::Status CompareEntries(const std::string& path,
                              const ManifestFile& expected,
                              const SafetensorsHeader& header,
                              absl::Span<const Piece> pieces) const {
    if (header.entries.size() != pieces.size()) {
      return absl::DataLossError(
          absl::StrCat(path, ": the header has ", header.entries.size(),
                       " tensors, the manifest ", pieces.size()));
    }
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      const SafetensorsEntry& entry = header.entries[i];
      const ManifestTensor& tensor = manifest_.tensors[piece.tensor];
      const Box box = tensor.layout.BoxAt(piece.shard);
      Dims shape = SafetensorsShape(box.sizes, tensor.dtype);
      absl::string_view dtype = SafetensorsDTypeName(tensor.dtype);
      std::string key = ShardKey(tensor.name, box.offsets);
      if (piece.count > 1) {
        shape = {piece.extent.bytes};
        dtype = "U8";
        key = PartKey(tensor.name, box.offsets, piece.begin);
      }
      const int64_t offset = piece.extent.data_offset;
      if (entry.name == key && entry.shape == shape &&
          entry.dtype_name == dtype && entry.begin == offset &&
          entry.nbytes() == piece.extent.bytes) {
        continue;
      }
      return absl::DataLossError(absl::StrCat(
          path, ": at offset ", expected.data_begin + offset,
          " the manifest has ", Quoted(key), ", ", Name(tensor.dtype), " ",
          FormatDims(shape), ", but the header has ",
          Quoted(entry.name.substr(0, 200)), ", ", entry.dtype_name, " ",
          FormatDims(entry.shape), " at ", expected.data_begin + entry.begin));
    }
    return absl::OkStatus();
  }

  // What the file says about its save and tensors, after CompareEntries.
  absl::Status CompareContents(const std::string& path,
                               const DataFileContents& contents,
                               absl::Span<const Piece> pieces) const {
    if (contents.save_id != manifest_.save_id ||
        contents.world_size != manifest_.world_size ||
        contents.chunk_bytes != manifest_.chunk_bytes) {
      return absl::DataLossError(absl::StrCat(
          path, ": the header says save ", Quoted(contents.save_id), " of ",
          contents.world_size, " ranks in chunks of ", contents.chunk_bytes,
          " bytes, the manifest ", Quoted(manifest_.save_id), " of ",
          manifest_.world_size, " in chunks of ", manifest_.chunk_bytes));
    }
    for (size_t i = 0; i < pieces.size(); ++i) {
      const ManifestTensor& tensor = manifest_.tensors[pieces[i].tensor];
      const DataFileShard& shard = contents.shards[i];
      if (!SaysTheSame(contents, shard, tensor, pieces[i].shard)) {
        return Differ(path, tensor.name, shard);
      }
    }
    for (const SplitShard& shard : contents.split) {
      if (!SaysTheSame(contents, shard)) {
        return Differ(path, contents.tensors[shard.tensor].name, shard);
      }
    }
    return absl::OkStatus();
  }

  static absl::Status Differ(const std::string& path, absl::string_view tensor,
                             const Box& box) {
    return absl::DataLossError(absl::StrCat(
        path, ": the metadata and the manifest differ about tensor ",
        Quoted(tensor), " or its shard ", FormatBox(box)));
  }

  // Whether the manifest says the same of a shard that a file has.
  template <typename Shard>
  bool SaysTheSame(const DataFileContents& contents, const Shard& shard,
                   const ManifestTensor& tensor, int64_t number) const {
    const Box& box = shard;
    const DataFileTensor expected = {tensor.name,    tensor.dtype,
                                     tensor.sizes(), tensor.requires_grad,
                                     tensor.kind,    tensor.chunk_dim};
    const SavedShardPlace place = tensor.PlaceOf(number, manifest_.chunk_bytes);
    return box == tensor.layout.BoxAt(number) &&
           contents.tensors[shard.tensor] == expected &&
           contents.placements[shard.placement] ==
               manifest_.placements[place.placement];
  }

  // The same of one that is in earlier files too, and of these.
  bool SaysTheSame(const DataFileContents& contents,
                   const SplitShard& shard) const {
    const auto tensor = manifest_.Find(contents.tensors[shard.tensor].name);
    if (!tensor.ok() || !IsInside(shard, (*tensor)->sizes())) {
      return false;
    }
    int64_t number = -1;
    (*tensor)->layout.ForEachIn(shard, [&](int64_t i) {
      number = i;
      return false;
    });
    if (!SaysTheSame(contents, shard, **tensor, number)) return false;
    const SavedShardPlace place =
        (*tensor)->PlaceOf(number, manifest_.chunk_bytes);
    return std::equal(
        shard.extents.begin(), shard.extents.end(), place.extents.begin(),
        place.extents.end(), [&](SavedExtent said, const SavedExtent& extent) {
          const bool same_file =
              said.file == 0 || contents.earlier_files[said.file - 1] ==
                                    manifest_.files[extent.file].name;
          said.file = extent.file;
          return same_file && said == extent;
        });
  }

  // All of the shard of which `piece` is the first extent.
  absl::Status CheckShard(const Piece& piece, ParallelRun& run) {
    if (piece.number > 0) return absl::OkStatus();
    const ManifestTensor& tensor = manifest_.tensors[piece.tensor];
    const SavedShardPlace place =
        tensor.PlaceOf(piece.shard, manifest_.chunk_bytes);
    // A file that is missing, or is not what the manifest says, is one problem
    // and not one for each shard.
    if (std::any_of(place.extents.begin(), place.extents.end(),
                    [&](const SavedExtent& extent) {
                      return unsound_[extent.file].load();
                    })) {
      return absl::OkStatus();
    }
    BoxFingerprint fingerprint(tensor.sizes(), tensor.layout.BoxAt(piece.shard),
                               SizeOf(tensor.dtype));
    // Of others the fingerprint comes from the elements.
    const bool needs_crcs_alone =
        !tensor.fingerprint.has_value() || fingerprint.contiguous();
    std::vector<std::byte> buffer;
    ExtentReader::LastFile last;
    for (const SavedExtent& extent : place.extents) {
      const std::string file = IdentityOf(extent.file);
      const int64_t chunks = NumChunks(extent.bytes, manifest_.chunk_bytes);
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        SHERD_ASSIGN_OR_RETURN(const uint32_t expected,
                               reader_.ChunkCrc32c(extent, chunk));
        const int64_t bytes = reader_.ChunkLength(extent, chunk);
        const int64_t number = extent.first_chunk + chunk;
        const int64_t offset =
            extent.data_offset + chunk * manifest_.chunk_bytes;
        if (known_ == nullptr || !needs_crcs_alone ||
            !known_->Contains(file, number, offset, bytes)) {
          buffer.resize(static_cast<size_t>(bytes));
          SHERD_RETURN_IF_ERROR(
              reader_.Read(last, extent.file, offset, absl::MakeSpan(buffer)));
          SHERD_RETURN_IF_ERROR(run.MadeProgress());
          const uint32_t crc = Crc32c(buffer);
          if (crc != expected) {
            return reader_.WrongChunk(tensor.name, extent, chunk, crc,
                                      expected);
          }
          if (known_ != nullptr) known_->Add(file, number, offset, bytes);
        }
        if (!tensor.fingerprint.has_value()) continue;
        if (fingerprint.contiguous()) {
          fingerprint.AddLinear(LinearFromCrc32c(expected, bytes), bytes);
        } else {
          fingerprint.Add(buffer);
        }
      }
    }
    if (tensor.fingerprint.has_value()) {
      sums_[piece.tensor] ^= fingerprint.Finish();
    }
    return absl::OkStatus();
  }

  // Of a file of which the manifest says the same as another; the CRC is that
  // of the file's table.
  std::string IdentityOf(int32_t index) const {
    const ManifestFile& file = manifest_.files[index];
    return absl::StrCat(PathOf(file), " ", file.size, " ", file.crc32c);
  }

  void CheckFingerprints() {
    for (size_t t = 0; t < sums_.size(); ++t) {
      const ManifestTensor& tensor = manifest_.tensors[t];
      const uint32_t crc =
          Crc32cFromLinear(sums_[t], static_cast<uint64_t>(tensor.bytes()));
      if (!tensor.fingerprint.has_value() || *tensor.fingerprint == crc) {
        continue;
      }
      Report(t,
             absl::DataLossError(absl::StrCat(
                 reader_.manifest().path(), ": tensor ", Quoted(tensor.name),
                 " has the fingerprint ", absl::Hex(crc, absl::kZeroPad8),
                 ", expected ", absl::Hex(*tensor.fingerprint, absl::kZeroPad8),
                 ", though each of its chunks is intact")));
    }
  }

  std::string PathOf(const ManifestFile& file) const {
    return JoinPath(reader_.manifest().directory(), file.name);
  }

  const Manifest& manifest_;
  FileSystem& files_;
  ExtentReader reader_;
  SoundChunks* const known_;
  // By file and offset.
  std::vector<Piece> pieces_;
  // Of each tensor, the XOR of what its shards add to the fingerprint.
  std::vector<std::atomic<uint32_t>> sums_;
  // Of each file, whether its header unit failed.
  std::vector<std::atomic<bool>> unsound_;
  std::atomic<int64_t> header_bytes_ = 0;
  absl::Mutex mutex_;
  // With the unit of work that found each.
  std::vector<std::pair<size_t, absl::Status>> problems_
      ABSL_GUARDED_BY(mutex_);
  int64_t num_problems_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::StatusOr<VerifyReport> VerifyOnce(const ManifestReader& reader,
                                        FileSystem& files,
                                        const VerifyOptions& options) {
  SHERD_ASSIGN_OR_RETURN(const Manifest manifest, reader.ReadAll());
  Verifier verifier(reader, manifest, files, options.known);
  SHERD_RETURN_IF_ERROR(verifier.Run(options));
  VerifyReport report;
  report.tensors = static_cast<int64_t>(manifest.tensors.size());
  report.files = static_cast<int64_t>(manifest.files.size());
  report.bytes = verifier.bytes();
  return report;
}

}  // namespace

bool SoundChunks::Contains(const std::string& file, int64_t chunk,
                           int64_t offset, int64_t bytes) const {
  absl::MutexLock lock(&mutex_);
  const auto it = chunks_.find(file);
  const auto i = static_cast<size_t>(chunk);
  return it != chunks_.end() && i < it->second.size() &&
         it->second[i] == Place{offset, bytes};
}

void SoundChunks::Add(const std::string& file, int64_t chunk, int64_t offset,
                      int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  std::vector<Place>& chunks = chunks_[file];
  const auto i = static_cast<size_t>(chunk);
  if (i >= chunks.size()) chunks.resize(i + 1);
  chunks[i] = {offset, bytes};
}

absl::StatusOr<VerifyReport> VerifyCheckpoint(const std::string& path,
                                              const VerifyOptions& options) {
  FileSystem& files =
      options.files != nullptr ? *options.files : CheckpointFiles();
  SHERD_ASSIGN_OR_RETURN(ManifestReader manifest,
                         ManifestReader::Open(files, path));
  while (true) {
    absl::StatusOr<VerifyReport> report = VerifyOnce(manifest, files, options);
    if (!absl::IsDataLoss(report.status())) return report;
    // Perhaps a file is missing because the checkpoint was replaced meanwhile.
    SHERD_ASSIGN_OR_RETURN(ManifestReader current,
                           ManifestReader::Open(files, path));
    if (current.summary().save_id == manifest.summary().save_id) return report;
    manifest = std::move(current);
  }
}

absl::StatusOr<VerifyReport> VerifyDataFile(const std::string& path,
                                            const VerifyOptions& options) {
  FileSystem& files =
      options.files != nullptr ? *options.files : CheckpointFiles();
  SHERD_ASSIGN_OR_RETURN(const CheckedDataFile checked,
                         CheckDataFile(files, path));
  VerifyReport report;
  report.tensors = static_cast<int64_t>(checked.contents.tensors.size());
  report.files = 1;
  report.bytes = checked.file.size;
  return report;
}

}  // namespace sherd
