#ifndef SHERD_TESTING_HARNESS_RANK_OUTPUT_H_
#define SHERD_TESTING_HARNESS_RANK_OUTPUT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd::testing::internal {

// A rank's output, of any length: beginning and end in memory, and nearly all
// of it in a file.
class RankOutput {
 public:
  static constexpr size_t kBegin = size_t{32} << 10;
  static constexpr size_t kEnd = size_t{128} << 10;
  static constexpr int64_t kMostInFile = int64_t{64} << 20;

  // The file is created at the first write; empty: no file. If it cannot be
  // written, it is abandoned without failing the test.
  explicit RankOutput(std::string file) : file_(std::move(file)) {}

  void Append(absl::string_view text);

  // Whether the most recent output contains `text`, which is short.
  bool EndHas(absl::string_view text) const;

  // Beginning and end, and the number of bytes omitted between them.
  std::string ToString() const;

 private:
  void Write(absl::string_view text);

  std::string file_;
  UniqueFd fd_;
  int64_t room_in_file_ = kMostInFile;
  std::string begin_;
  std::string end_;
  size_t dropped_ = 0;
};

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_HARNESS_RANK_OUTPUT_H_
