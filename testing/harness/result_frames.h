#ifndef SHERD_TESTING_HARNESS_RESULT_FRAMES_H_
#define SHERD_TESTING_HARNESS_RESULT_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sherd::testing::internal {

// A rank's message to the process that started it, through its result pipe.
struct ResultFrame {
  enum class Type : uint8_t {
    kHello = 1,        // first frame; number = kFrameVersion
    kFailure = 2,      // file, text; number = line
    kSkip = 3,         // text; number = exit code of the reason
    kPhase = 4,        // text = what the rank does from now on
    kExpectDeath = 5,  // number = rank, second = signal
    kDone = 6,  // last frame; number = tests that ran, second = failed ones
    // A rank that continues has reached the end of a test; number = 0 if it
    // must be replaced, second = 1 if it failed.
    kTestEnd = 7,
  };

  Type type = Type::kHello;
  int32_t number = 0;
  int32_t second = 0;
  std::string file;
  std::string text;

  friend bool operator==(const ResultFrame&, const ResultFrame&) = default;
};

inline constexpr int32_t kFrameVersion = 1;
// Of file and text together. EncodeFrame cuts the text to it.
inline constexpr size_t kMaxFrameText = size_t{1} << 20;
inline constexpr size_t kMaxFrameFile = 4096;

// Format, little-endian:
//     u32 length of the rest, u8 type, i32 number, i32 second,
//     u32 length of file, file, text
std::string EncodeFrame(ResultFrame frame);

// Decodes a stream that may be cut anywhere and may have any content.
class FrameDecoder {
 public:
  // Calls `sink` for each frame that `bytes` completes.
  //   kDataLoss  The stream is malformed; every later call returns it again.
  absl::Status Feed(absl::string_view bytes,
                    absl::FunctionRef<void(ResultFrame)> sink);

  // True if the stream ended between two frames.
  bool AtFrameBorder() const { return buffer_.empty(); }

 private:
  absl::Status Decode(absl::string_view payload,
                      absl::FunctionRef<void(ResultFrame)> sink);

  std::string buffer_;
  bool greeted_ = false;
  absl::Status broken_;
};

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_HARNESS_RESULT_FRAMES_H_
