#include "sherd/testing/harness/result_frames.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd::testing::internal {
namespace {

using ::testing::ElementsAreArray;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Type = ResultFrame::Type;

const std::vector<ResultFrame>& Conversation() {
  static const auto* const frames = new std::vector<ResultFrame>{
      {.type = Type::kHello, .number = kFrameVersion},
      {.type = Type::kPhase, .text = "body"},
      {.type = Type::kFailure, .number = 7, .file = "a.cc", .text = "x\ny"},
      {.type = Type::kExpectDeath, .number = 3, .second = 9},
      {.type = Type::kSkip, .number = 86, .text = std::string("\0z", 2)},
      {.type = Type::kTestEnd, .number = 1, .second = 1},
      {.type = Type::kDone, .number = 1, .second = -1}};
  return *frames;
}

std::string Encoded(const std::vector<ResultFrame>& frames) {
  std::string bytes;
  for (const ResultFrame& frame : frames) bytes += EncodeFrame(frame);
  return bytes;
}

TEST(ResultFramesTest, FramesArriveWhereverTheStreamIsCut) {
  const std::string bytes = Encoded(Conversation());
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    FrameDecoder decoder;
    std::vector<ResultFrame> received;
    for (size_t i = 0; i < bytes.size(); i += piece) {
      ASSERT_THAT(decoder.Feed(absl::string_view(bytes).substr(i, piece),
                               [&](ResultFrame f) { received.push_back(f); }),
                  IsOk());
    }
    EXPECT_THAT(received, ElementsAreArray(Conversation()));
    EXPECT_TRUE(decoder.AtFrameBorder());
  }
}

TEST(ResultFramesTest, AnUnfinishedFrameIsNoticed) {
  std::string bytes = Encoded(Conversation());
  bytes.pop_back();
  FrameDecoder decoder;
  ASSERT_THAT(decoder.Feed(bytes, [](ResultFrame) {}), IsOk());
  EXPECT_FALSE(decoder.AtFrameBorder());
}

TEST(ResultFramesTest, LongTextIsMarkedAsCut) {
  FrameDecoder decoder;
  std::vector<ResultFrame> received;
  const std::string bytes =
      EncodeFrame(Conversation()[0]) +
      EncodeFrame({.type = Type::kFailure,
                   .file = std::string(2 * kMaxFrameFile, 'f'),
                   .text = std::string(3 * kMaxFrameText, 't')});
  ASSERT_THAT(
      decoder.Feed(bytes, [&](ResultFrame f) { received.push_back(f); }),
      IsOk());
  ASSERT_THAT(received, SizeIs(2));
  EXPECT_THAT(received[1].file, SizeIs(kMaxFrameFile));
  EXPECT_THAT(received[1].text, SizeIs(kMaxFrameText - kMaxFrameFile));
  EXPECT_THAT(received[1].text,
              EndsWith(absl::StrCat("… (", 3 * kMaxFrameText, " bytes, cut)")));
}

struct BadStream {
  const char* what;
  std::string bytes;
  const char* message;
};

std::string Patched(std::string bytes, size_t position, char value) {
  bytes[position] = value;
  return bytes;
}

TEST(ResultFramesTest, AMalformedStreamIsRefused) {
  const std::string hello = EncodeFrame(Conversation()[0]);
  const std::string phase = EncodeFrame(Conversation()[1]);
  const BadStream streams[] = {
      {"too short", std::string("\x0c\0\0\0", 4), "a frame of 12 bytes"},
      {"too long", std::string("\xff\xff\xff\xff", 4), "4294967295 bytes"},
      {"no greeting", phase, "no greeting"},
      {"two greetings", hello + hello, "second greeting"},
      {"version", Patched(hello, 5, 2), "version 2, expected 1"},
      {"type 0", Patched(hello, 4, 0), "unknown type 0"},
      {"type 8", hello + Patched(phase, 4, 8), "unknown type 8"},
      {"file longer than the frame", hello + Patched(phase, 13, 5),
       "file name has 5 bytes"},
      {"huge file", hello + Patched(phase, 16, '\x80'), "file name has"},
  };
  for (const BadStream& stream : streams) {
    SCOPED_TRACE(stream.what);
    FrameDecoder decoder;
    EXPECT_THAT(decoder.Feed(stream.bytes, [](ResultFrame) {}),
                StatusIs(absl::StatusCode::kDataLoss, stream.message));
    std::vector<ResultFrame> received;
    EXPECT_THAT(decoder.Feed(hello + phase,
                             [&](ResultFrame f) { received.push_back(f); }),
                StatusIs(absl::StatusCode::kDataLoss, stream.message));
    EXPECT_THAT(received, IsEmpty());
  }
}

}  // namespace
}  // namespace sherd::testing::internal
