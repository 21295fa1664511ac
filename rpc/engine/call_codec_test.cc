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
#include "sherd/rpc/rpc.pb.h"
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
  const absl::StatusOr<std::string> control = EncodeRequest(
      12, "scale", 0xfedcba9876543210, absl::Seconds(5), payload, {});
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
  const absl::StatusOr<std::string> control = EncodeReply(7, payload, {});
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

TEST(CallCodecTest, AMessageOfAnotherLayerIsForeign) {
  rpc::Message message;
  message.mutable_reference()->add_kind(1);
  const absl::StatusOr<CallHeader> header =
      DecodeCallMessage(message.SerializeAsString(), 0, {});
  ASSERT_THAT(header, IsOk());
  EXPECT_TRUE(std::holds_alternative<ForeignHeader>(*header));
}

struct Rejection {
  absl::string_view text;
  uint64_t tail_bytes;
  std::function<void(rpc::CallMessage&)> make;
};

TEST(CallCodecTest, WhatIsMalformedOrTooLargeIsRefused) {
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
  const Rejection rejections[] = {
      {"of no known kind", 0, [](auto&) {}},
      {"call 0", 0, [](auto& call) { call.mutable_request(); }},
      {"0 bytes", 0, [](auto& call) { call.mutable_request()->set_call(1); }},
      {"dtype 17", 4, [&](auto& call) { tensor(call, 17, {4}); }},
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
