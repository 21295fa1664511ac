#include "sherd/testing/harness/result_frames.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::testing::internal {
namespace {

constexpr size_t kLengthBytes = 4;
// Type, two numbers, length of file.
constexpr size_t kFixedBytes = 1 + 4 + 4 + 4;
constexpr size_t kMaxPayload = kFixedBytes + kMaxFrameText;

void AppendNumber(std::string& out, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) {
    out.push_back(static_cast<char>(value >> shift & 0xff));
  }
}

uint32_t NumberAt(absl::string_view bytes, size_t position) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) {
    value = value << 8 | static_cast<uint8_t>(bytes[position + i]);
  }
  return value;
}

}  // namespace

std::string EncodeFrame(ResultFrame frame) {
  if (frame.file.size() > kMaxFrameFile) frame.file.resize(kMaxFrameFile);
  const size_t room = kMaxFrameText - frame.file.size();
  if (frame.text.size() > room) {
    const std::string note =
        absl::StrCat("… (", frame.text.size(), " bytes, cut)");
    frame.text.resize(room - note.size());
    frame.text += note;
  }
  std::string out;
  out.reserve(kLengthBytes + kFixedBytes + frame.file.size() +
              frame.text.size());
  AppendNumber(out, static_cast<uint32_t>(kFixedBytes + frame.file.size() +
                                          frame.text.size()));
  out.push_back(static_cast<char>(frame.type));
  AppendNumber(out, static_cast<uint32_t>(frame.number));
  AppendNumber(out, static_cast<uint32_t>(frame.second));
  AppendNumber(out, static_cast<uint32_t>(frame.file.size()));
  out += frame.file;
  out += frame.text;
  return out;
}

absl::Status FrameDecoder::Feed(absl::string_view bytes,
                                absl::FunctionRef<void(ResultFrame)> sink) {
  SHERD_RETURN_IF_ERROR(broken_);
  absl::StrAppend(&buffer_, bytes);
  size_t begin = 0;
  while (broken_.ok() && buffer_.size() - begin >= kLengthBytes) {
    const size_t length = NumberAt(buffer_, begin);
    if (length < kFixedBytes || length > kMaxPayload) {
      broken_ = absl::DataLossError(
          absl::StrCat("a frame of ", length, " bytes, expected ", kFixedBytes,
                       " to ", kMaxPayload));
      break;
    }
    if (buffer_.size() - begin - kLengthBytes < length) break;
    broken_ = Decode(
        absl::string_view(buffer_).substr(begin + kLengthBytes, length), sink);
    begin += kLengthBytes + length;
  }
  if (!broken_.ok()) {
    buffer_.clear();
    return broken_;
  }
  buffer_.erase(0, begin);
  return absl::OkStatus();
}

absl::Status FrameDecoder::Decode(absl::string_view payload,
                                  absl::FunctionRef<void(ResultFrame)> sink) {
  const int type = static_cast<uint8_t>(payload[0]);
  if (type < static_cast<int>(ResultFrame::Type::kHello) ||
      type > static_cast<int>(ResultFrame::Type::kTestEnd)) {
    return absl::DataLossError(absl::StrCat("a frame of unknown type ", type));
  }
  ResultFrame frame;
  frame.type = static_cast<ResultFrame::Type>(type);
  frame.number = static_cast<int32_t>(NumberAt(payload, 1));
  frame.second = static_cast<int32_t>(NumberAt(payload, 5));
  const size_t file_length = NumberAt(payload, 9);
  const absl::string_view rest = payload.substr(kFixedBytes);
  if (file_length > kMaxFrameFile || file_length > rest.size()) {
    return absl::DataLossError(absl::StrCat("a frame whose file name has ",
                                            file_length, " bytes, and ",
                                            rest.size(), " bytes follow"));
  }
  const bool is_hello = frame.type == ResultFrame::Type::kHello;
  if (is_hello == greeted_) {
    return absl::DataLossError(is_hello ? "a second greeting"
                                        : "no greeting at the start");
  }
  if (is_hello && frame.number != kFrameVersion) {
    return absl::DataLossError(absl::StrCat("frames of version ", frame.number,
                                            ", expected ", kFrameVersion));
  }
  greeted_ = true;
  frame.file = std::string(rest.substr(0, file_length));
  frame.text = std::string(rest.substr(file_length));
  sink(std::move(frame));
  return absl::OkStatus();
}

}  // namespace sherd::testing::internal
