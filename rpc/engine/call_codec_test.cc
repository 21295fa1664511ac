#include "sherd/rpc/engine/call_codec.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/ownership/reference_codec.h"
#include "sherd/rpc/rpc.pb.h"
#include "sherd/rpc/transfer/exposures.h"
#include "sherd/rpc/transfer/tensor_source.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

TEST(CallCodecTest, ARequestIsReadAsItWasWritten) {
  Payload payload;
  payload.values = "values";
  payload.tensors = {*Tensor::Zeros({2, 3}, {.dtype = kInt16}), Tensor(),
                     *Tensor::Zeros({0})};
  payload.references = {{.owner = 3, .creator = 1, .number = 1ull << 60}};
  const absl::StatusOr<std::string> control =
      EncodeRequest({.call = 12,
                     .method = "scale",
                     .signature = 0xfedcba9876543210,
                     .timeout = absl::Seconds(5),
                     .creation_number = 70,
                     .creation_sequence = 71},
                    payload, 1ull << 40, nullptr, {});
  ASSERT_THAT(control, IsOk());
  const absl::StatusOr<CallHeader> header = DecodeCallMessage(*control, 12, {});
  ASSERT_THAT(header, IsOk());
  const auto& request = std::get<RequestHeader>(*header);
  EXPECT_EQ(request.call, 12);
  EXPECT_EQ(request.method, "scale");
  EXPECT_EQ(request.signature, 0xfedcba9876543210);
  EXPECT_EQ(request.timeout, absl::Seconds(5));
  EXPECT_EQ(request.payload.values, "values");
  EXPECT_EQ(request.payload.references, payload.references);
  EXPECT_EQ(request.payload.reference_transfer, 1ull << 40);
  EXPECT_EQ(request.creation_number, 70);
  EXPECT_EQ(request.creation_sequence, 71);
  ASSERT_EQ(request.payload.tensors.size(), 3);
  EXPECT_EQ(request.payload.tensors[0].dtype, kInt16);
  EXPECT_EQ(request.payload.tensors[0].sizes, Dims({2, 3}));
  EXPECT_EQ(request.payload.tensors[0].bytes, 12);
  EXPECT_FALSE(request.payload.tensors[1].defined);
  EXPECT_EQ(request.payload.tensors[2].bytes, 0);
}

// Golden: workers of other builds read these bytes.
TEST(CallCodecTest, DevicesKeepTheirBytes) {
  Payload payload;
  payload.tensors = {*Tensor::Zeros({1}), *Tensor::Zeros({2})};
  payload.devices = {Device(), Device("cuda:1")};
  const absl::StatusOr<std::string> control =
      EncodeReply(7, payload, 0, nullptr, {});
  ASSERT_THAT(control, IsOk());
  EXPECT_EQ(absl::BytesToHexString(*control),
            "1218121608073212"
            "12020d0d"
            "1a020101"
            "22020102"
            "620400818004");
  const absl::StatusOr<CallHeader> header = DecodeCallMessage(*control, 12, {});
  ASSERT_THAT(header, IsOk());
  const auto& reply = std::get<ReplyHeader>(*header);
  EXPECT_EQ(reply.payload.tensors[0].device, Device());
  EXPECT_EQ(reply.payload.tensors[1].device, Device("cuda:1"));
}

TEST(CallCodecTest, PlacesOfTensorsAreReadAsTheyWereWritten) {
  Payload payload;
  payload.tensors = {*Tensor::Zeros({2, 3}, {.dtype = kInt16}), Tensor(),
                     *Tensor::Zeros({0}), *Tensor::Zeros({2})};
  Exposure exposure;
  exposure.transfer = 5;
  exposure.sources = {
      {.path = MemoryPath::kShm,
       .place = {1, 2, 3, 4, 5, 6},
       .strides = {9, 1}},
      {},
      {.strides = {1}},
      {.path = MemoryPath::kCma, .place = {0x7fff00001000}, .strides = {4}}};
  const absl::StatusOr<std::string> control =
      EncodeReply(3, payload, 0, &exposure, {});
  ASSERT_THAT(control, IsOk());
  EXPECT_EQ(absl::BytesToHexString(*control),
            "1261125f0803325b120504ff010d0d1a0402000101220402030002"
            "40054a0402000003"
            "52380100000000000000020000000000000003000000000000000400000000"
            "0000000500000000000000060000000000000000100000ff7f0000"
            "5a0409010104");
  const absl::StatusOr<CallHeader> header = DecodeCallMessage(*control, 0, {});
  ASSERT_THAT(header, IsOk());
  const PayloadHeader& read = std::get<ReplyHeader>(*header).payload;
  EXPECT_EQ(read.transfer, 5);
  EXPECT_EQ(read.tensor_bytes, 20);
  ASSERT_EQ(read.sources.size(), 4);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(read.sources[i].path, exposure.sources[i].path);
    EXPECT_EQ(read.sources[i].place, exposure.sources[i].place);
    EXPECT_EQ(read.sources[i].strides, exposure.sources[i].strides);
  }
}

TEST(CallCodecTest, MessagesAboutMemoryAreReadAsTheyWereWritten) {
  const MemoryProbe probe = {
      .process = "boot ns 3 4", .nonce = "nonce", .nonce_address = 0x1000};
  const std::string encoded = EncodeMemoryProbe(probe);
  EXPECT_EQ(
      absl::BytesToHexString(encoded),
      "121f3a1d0a0b626f6f74206e732033203412056e6f6e6365190010000000000000");
  const auto header = DecodeCallMessage(encoded, 0, {});
  ASSERT_THAT(header, IsOk());
  EXPECT_EQ(std::get<MemoryProbe>(*header).process, probe.process);
  EXPECT_EQ(std::get<MemoryProbe>(*header).nonce, probe.nonce);
  EXPECT_EQ(std::get<MemoryProbe>(*header).nonce_address, 0x1000);
  const MemoryPathSet paths = {.thread = true, .cma = true};
  EXPECT_EQ(absl::BytesToHexString(EncodeMemoryPaths(paths)),
            "1206420408011801");
  EXPECT_EQ(std::get<MemoryPathSet>(
                *DecodeCallMessage(EncodeMemoryPaths(paths), 0, {})),
            paths);
  EXPECT_EQ(absl::BytesToHexString(EncodeTransferRead(300)), "1205320308ac02");
  EXPECT_EQ(std::get<TransferReadHeader>(
                *DecodeCallMessage(EncodeTransferRead(300), 0, {}))
                .transfer,
            300);
}

TEST(CallCodecTest, AnErrorKeepsCodeTextAndAttachments) {
  const absl::Status error = WithFailedRank(absl::DataLossError("gone"), 3);
  const absl::StatusOr<CallHeader> header =
      DecodeCallMessage(EncodeErrorReply(4, error), 0, {});
  ASSERT_THAT(header, IsOk());
  EXPECT_EQ(std::get<ReplyHeader>(*header).status, error);
  const absl::StatusOr<CallHeader> cut = DecodeCallMessage(
      EncodeErrorReply(4, absl::DataLossError(std::string(1 << 20, 'x'))), 0,
      {});
  ASSERT_THAT(cut, IsOk());
  EXPECT_EQ(std::get<ReplyHeader>(*cut).status.message().size(), 64 << 10);
}

TEST(CallCodecTest, MessagesAboutReferencesHaveNoTail) {
  const std::string control = EncodeReferenceMessages(
      {{ReferenceMessage::Kind::kRelease, {1, 2, 3}, 4}});
  EXPECT_EQ(absl::BytesToHexString(control),
            "1a0f0a01051201011a01022201032a0104");
  const absl::StatusOr<CallHeader> header = DecodeCallMessage(control, 0, {});
  ASSERT_THAT(header, IsOk());
  const auto& messages = std::get<ReferenceMessages>(*header);
  ASSERT_EQ(messages.size(), 1);
  EXPECT_EQ(messages[0].id, (ReferenceId{1, 2, 3}));
  EXPECT_EQ(messages[0].sequence, 4);
  EXPECT_THAT(DecodeCallMessage(control, 1, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, "without tensors"));
}

struct Rejection {
  absl::string_view text;
  uint64_t tail_bytes;
  std::function<void(rpc::CallMessage&)> make;
};

TEST(CallCodecTest, MalformedOrOversizedMessagesAreRefused) {
  constexpr uint64_t kHuge = uint64_t{1} << 60;
  const auto tensor = [](rpc::CallMessage& call, uint32_t dtype,
                         std::initializer_list<uint64_t> sizes) {
    call.mutable_request()->set_call(1);
    call.mutable_request()->set_method("m");
    rpc::CallPayload& payload = *call.mutable_request()->mutable_payload();
    payload.add_tensor_dtype(dtype);
    payload.add_tensor_rank(static_cast<uint32_t>(sizes.size()));
    for (const uint64_t size : sizes) payload.add_tensor_size(size);
  };
  // A tensor of 16 bytes at one place.
  const auto elsewhere = [&](rpc::CallMessage& call) -> rpc::CallPayload& {
    tensor(call, 13, {4});
    rpc::CallPayload& payload = *call.mutable_request()->mutable_payload();
    payload.set_transfer(1);
    payload.add_source_path(3);
    payload.add_source_place(4096);
    payload.add_source_stride(1);
    return payload;
  };
  const Rejection rejections[] = {
      {"have 0 bytes, but 16 follow", 16, [&](auto& call) { elsewhere(call); }},
      {"0 paths", 0, [&](auto& call) { elsewhere(call).clear_source_path(); }},
      {"1 paths", 16, [&](auto& call) { elsewhere(call).set_transfer(0); }},
      {"has path 4", 0,
       [&](auto& call) { elsewhere(call).set_source_path(0, 4); }},
      {"of 16 bytes has path 0", 0,
       [&](auto& call) { elsewhere(call).set_source_path(0, 0); }},
      {"of 0 bytes has path 3", 0,
       [&](auto& call) { elsewhere(call).set_tensor_size(0, 0); }},
      {"2 strides for 1 sizes", 0,
       [&](auto& call) { elsewhere(call).add_source_stride(1); }},
      {"stride 18446744073709551615", 0,
       [&](auto& call) {
         elsewhere(call).set_source_stride(
             0, std::numeric_limits<uint64_t>::max());
       }},
      {"1 places follow", 0,
       [&](auto& call) { elsewhere(call).set_source_path(0, 2); }},
      {"2 places of tensors, of which 1", 0,
       [&](auto& call) { elsewhere(call).add_source_place(1); }},
      {"more than 17179869184 bytes", 0,
       [&](auto& call) { elsewhere(call).set_tensor_size(0, kHuge); }},
      {"of no known kind", 0, [](auto&) {}},
      {"call 0", 0, [](auto& call) { call.mutable_request(); }},
      {"0 bytes", 0, [](auto& call) { call.mutable_request()->set_call(1); }},
      {"dtype 21", 4, [&](auto& call) { tensor(call, 21, {4}); }},
      {"rank 1", 0, [&](auto& call) { tensor(call, 255, {4}); }},
      {"more than 17179869184 bytes", kHuge,
       [&](auto& call) { tensor(call, 1, {kHuge}); }},
      {"tensor 0", 0,
       [&](auto& call) {
         tensor(call, 13, {kHuge, kHuge});
       }},
      {"tensor 0", 0,
       [&](auto& call) {
         tensor(call, 13, {std::numeric_limits<uint64_t>::max()});
       }},
      {"have 16 bytes, but 17 follow", 17,
       [&](auto& call) { tensor(call, 13, {4}); }},
      {"have 16 bytes, but 15 follow", 15,
       [&](auto& call) { tensor(call, 13, {4}); }},
      {"1 sizes follow", 0,
       [&](auto& call) {
         tensor(call, 13, {4});
         call.mutable_request()->mutable_payload()->set_tensor_rank(0, 2);
       }},
      {"of which 0 belong", 0,
       [&](auto& call) {
         tensor(call, 13, {4});
         call.mutable_request()->mutable_payload()->set_tensor_rank(0, 0);
         call.mutable_request()->mutable_payload()->set_tensor_dtype(0, 255);
       }},
      {"1 dtypes", 0,
       [&](auto& call) {
         tensor(call, 13, {});
         call.mutable_request()->mutable_payload()->clear_tensor_rank();
       }},
      {"1025 tensors", 0,
       [&](auto& call) {
         for (int i = 0; i < 1025; ++i) tensor(call, 255, {});
       }},
      {"1 dtypes of tensors, but 2 devices", 0,
       [&](auto& call) {
         tensor(call, 13, {0});
         for (int i = 0; i < 2; ++i) {
           call.mutable_request()->mutable_payload()->add_tensor_device(0);
         }
       }},
      {"goes to device 131072", 0,
       [&](auto& call) {
         tensor(call, 13, {0});
         call.mutable_request()->mutable_payload()->add_tensor_device(2 << 16);
       }},
      {"goes to device 4294901760", 0,
       [&](auto& call) {
         tensor(call, 13, {0});
         call.mutable_request()->mutable_payload()->add_tensor_device(
             0xffff0000);
       }},
      {"owners of references", 0,
       [&](auto& call) {
         tensor(call, 255, {});
         call.mutable_request()->mutable_payload()->add_reference_owner(1);
       }},
      {"1 references in transfer 0", 0,
       [&](auto& call) {
         tensor(call, 255, {});
         rpc::CallPayload& payload = *call.mutable_request()->mutable_payload();
         payload.add_reference_owner(1);
         payload.add_reference_creator(1);
         payload.add_reference_number(1);
       }},
      {"0 references in transfer 5", 0,
       [&](auto& call) {
         tensor(call, 255, {});
         call.mutable_request()->mutable_payload()->set_reference_transfer(5);
       }},
      {"both an error and a payload", 0,
       [](auto& call) {
         call.mutable_reply()->set_code(5);
         call.mutable_reply()->mutable_payload();
       }},
      {"attachments", 0,
       [](auto& call) {
         call.mutable_reply()->set_code(5);
         call.mutable_reply()->add_attachment("x");
       }},
      {"without tensors", 8, [](auto& call) { call.mutable_cancel(); }},
      {"kind 0", 0, [](auto& call) { call.mutable_drain(); }},
      {"leaves out rank", 0,
       [](auto& call) {
         call.mutable_drain()->set_kind(rpc::DrainMessage::WAVE);
         call.mutable_drain()->add_excluded(0xffffffff);
       }},
  };
  for (const Rejection& rejection : rejections) {
    SCOPED_TRACE(std::string(rejection.text));
    rpc::Message message;
    rejection.make(*message.mutable_call());
    EXPECT_THAT(DecodeCallMessage(message.SerializeAsString(),
                                  rejection.tail_bytes, {}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr(std::string(rejection.text))));
  }
  EXPECT_THAT(DecodeCallMessage("\xff", 0, {}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(DecodeCallMessage(std::string((4 << 20) + 1, 'x'), 0, {}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace sherd::internal
