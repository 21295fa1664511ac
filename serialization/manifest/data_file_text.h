#ifndef SHERD_SERIALIZATION_MANIFEST_DATA_FILE_TEXT_H_
#define SHERD_SERIALIZATION_MANIFEST_DATA_FILE_TEXT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/serialization/manifest/data_file.h"

namespace sherd {

// The texts in the metadata of data files; see FORMAT.md. Numbers are decimal.

// The shards that lie in files of earlier saves too. Both are there, or none.
inline constexpr char kEarlierFilesKey[] = "sherd_earlier_files";
inline constexpr char kSplitShardsKey[] = "sherd_split_shards";

inline constexpr size_t kMaxPlacementBytes = 1024;

// Reads text that may be anything, from front to back.
class TextScanner {
 public:
  explicit TextScanner(absl::string_view rest) : rest_(rest) {}

  bool done() const { return rest_.empty(); }

  bool Consume(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  // Digits, and no more than the number needs.
  bool Number(int64_t& value) {
    const size_t n =
        std::min(rest_.find_first_not_of("0123456789"), rest_.size());
    const absl::string_view digits = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return !digits.empty() && (digits.front() != '0' || n == 1) &&
           absl::SimpleAtoi(digits, &value);
  }

  // `count` numbers, joined by commas.
  bool Numbers(size_t count, Dims& values) {
    for (size_t i = 0; i < count; ++i) {
      if ((i > 0 && !Consume(',')) || !Number(values.emplace_back())) {
        return false;
      }
    }
    return true;
  }

  // What comes before `end`, which is consumed.
  bool Before(char end, absl::string_view& text) {
    const size_t n = rest_.find(end);
    if (n == absl::string_view::npos) return false;
    text = rest_.substr(0, n);
    rest_.remove_prefix(n + 1);
    return true;
  }

  // "LENGTH:TEXT".
  bool Text(int64_t max_bytes, absl::string_view& text) {
    int64_t length;
    if (!Number(length) || length > max_bytes || !Consume(':') ||
        length > static_cast<int64_t>(rest_.size())) {
      return false;
    }
    text = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }

 private:
  absl::string_view rest_;
};

// A tensor without its name: "DTYPE[SIZES]GRAD,CUT".
std::string TensorText(const DataFileTensor& tensor);
bool ReadTensorText(TextScanner& text, DataFileTensor& tensor);

// A split shard as the text has it: with its tensor and placement, and without
// the places of its extents in the file itself.
struct SplitShardText {
  DataFileTensor tensor;
  std::string placement;
  SplitShard shard;
};

void AppendSplitShards(const DataFileContents& contents,
                       std::map<std::string, std::string>& metadata);
// Empty if the metadata has none. They ascend by name and offsets. Sets
// contents.earlier_files.
//   kDataLoss  The text is malformed.
absl::StatusOr<std::vector<SplitShardText>> ReadSplitShards(
    const std::map<std::string, std::string>& metadata,
    DataFileContents& contents);

// That the metadata has a text that cannot be read.
absl::Status MalformedMetadata(const char* key);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_MANIFEST_DATA_FILE_TEXT_H_
