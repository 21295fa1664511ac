#include "sherd/core/net/frame.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;

TEST(FrameTest, HasTheDocumentedBytes) {
  EXPECT_EQ(absl::BytesToHexString(EncodeFrame("abc")), "03000000616263");
  EXPECT_EQ(absl::BytesToHexString(EncodeFrame("")), "00000000");
  EXPECT_EQ(absl::BytesToHexString(FrameHeader(0x01020304)), "04030201");
}

TEST(FrameDecoderTest, FindsFramesInPiecesOfEverySize) {
  const std::vector<std::string> payloads = {"first", "", "the third",
                                             std::string(300, 'x'), "last"};
  std::string stream;
  for (const std::string& payload : payloads) stream += EncodeFrame(payload);
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    FrameDecoder decoder(300);
    std::vector<std::string> found;
    for (size_t at = 0; at < stream.size(); at += piece) {
      decoder.Append(absl::string_view(stream).substr(at, piece));
      for (;;) {
        absl::StatusOr<std::optional<absl::string_view>> next = decoder.Next();
        ASSERT_THAT(next, IsOk());
        if (!*next) break;
        found.emplace_back(**next);
      }
    }
    EXPECT_EQ(found, payloads) << "pieces of " << piece;
    EXPECT_EQ(decoder.buffered_bytes(), 0u);
  }
}

TEST(FrameDecoderTest, RefusesALengthOverTheMaximumForGood) {
  FrameDecoder decoder(4);
  decoder.Append(absl::StrCat(EncodeFrame("four"), EncodeFrame("fives")));
  ASSERT_THAT(decoder.Next(), IsOk());
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(decoder.Next(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "announces 5 bytes, expected at most 4"));
    decoder.Append(EncodeFrame("ok"));
  }
}

TEST(FrameDecoderTest, ALimitThatIsRaisedHoldsForTheNextFrame) {
  FrameDecoder decoder(1);
  decoder.Append(absl::StrCat(EncodeFrame("a"), EncodeFrame("bc")));
  ASSERT_THAT(decoder.Next(), IsOk());
  decoder.set_max_payload_bytes(2);
  const absl::StatusOr<std::optional<absl::string_view>> next = decoder.Next();
  ASSERT_THAT(next, IsOk());
  EXPECT_EQ(*next, "bc");
}

}  // namespace
}  // namespace sherd
