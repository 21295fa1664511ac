#include "sherd/core/comm/store/store_protocol.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/testing/matchers.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;

// Other releases talk to this one: these bytes are the protocol.
TEST(StoreProtocolTest, MessagesHaveTheDocumentedBytes) {
  StoreRequest request;
  request.id = 0x0102030405060708;
  request.operation = StoreOperation::kCompareSet;
  request.number = -2;
  request.strings = {"key", "", "new"};
  EXPECT_EQ(absl::BytesToHexString(EncodeStoreRequest(request)),
            "0807060504030201"
            "04"
            "feffffffffffffff"
            "03000000"
            "03000000"
            "6b6579"
            "00000000"
            "03000000"
            "6e6577");
  StoreResponse response;
  response.id = 7;
  response.code = absl::StatusCode::kDeadlineExceeded;
  response.number = 5;
  response.strings = {"k"};
  EXPECT_EQ(absl::BytesToHexString(EncodeStoreResponse(response)),
            "0700000000000000"
            "04"
            "0500000000000000"
            "01000000"
            "01000000"
            "6b");
}

TEST(StoreProtocolTest, OperationsHaveTheDocumentedNumbers) {
  const std::vector<std::string> names = {
      "Set",          "Get",    "Add",  "CompareSet", "Delete",
      "DeletePrefix", "Retire", "Wait", "Contains",   "Cancel"};
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(StoreOperationName(static_cast<StoreOperation>(i + 1)), names[i]);
  }
}

TEST(StoreProtocolTest, MessagesSurviveEncodingAndDecoding) {
  StoreRequest request;
  request.id = UINT64_MAX;
  request.operation = StoreOperation::kWait;
  request.number = INT64_MIN;
  request.strings = {std::string("a\0b", 3), "", std::string(70000, 'x')};
  const absl::StatusOr<StoreRequest> parsed =
      ParseStoreRequest(EncodeStoreRequest(request));
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(parsed->id, UINT64_MAX);
  EXPECT_EQ(parsed->operation, StoreOperation::kWait);
  EXPECT_EQ(parsed->number, INT64_MIN);
  EXPECT_EQ(parsed->strings, request.strings);
}

TEST(StoreProtocolTest, EveryBeginningOfAMessageIsRefused) {
  StoreRequest request;
  request.strings = {"key", "value"};
  const std::string whole = EncodeStoreRequest(request);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(ParseStoreRequest(whole.substr(0, size)),
                StatusIs(absl::StatusCode::kDataLoss));
  }
  EXPECT_THAT(ParseStoreRequest(absl::StrCat(whole, "x")),
              StatusIs(absl::StatusCode::kDataLoss, "left over"));
}

TEST(StoreProtocolTest, RefusesMessagesThatNoReleaseSends) {
  StoreRequest request;
  request.operation = StoreOperation::kDelete;
  request.strings = {"a", "b"};
  EXPECT_THAT(ParseStoreRequest(EncodeStoreRequest(request)),
              StatusIs(absl::StatusCode::kDataLoss, "Delete with 2 strings"));
  for (const int operation : {0, 11, 255}) {
    request.operation = static_cast<StoreOperation>(operation);
    EXPECT_THAT(ParseStoreRequest(EncodeStoreRequest(request)),
                StatusIs(absl::StatusCode::kDataLoss,
                         absl::StrCat("unknown operation ", operation)));
  }
  StoreResponse response;
  response.code = static_cast<absl::StatusCode>(17);
  EXPECT_THAT(ParseStoreResponse(EncodeStoreResponse(response)),
              StatusIs(absl::StatusCode::kDataLoss, "status code 17"));
}

TEST(StoreProtocolTest, AllocatesNothingForAFalseCount) {
  StoreRequest request;
  request.operation = StoreOperation::kGet;
  std::string bytes = EncodeStoreRequest(request);
  bytes.replace(17, 4, "\xff\xff\xff\xff");
  EXPECT_THAT(ParseStoreRequest(bytes),
              StatusIs(absl::StatusCode::kDataLoss, "more strings than bytes"));
}

}  // namespace
}  // namespace sherd::internal
