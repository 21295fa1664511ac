// Any bytes as arguments: an error, or values that have these bytes and no
// others. The first byte is the number of tensors and references with them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/struct.pb.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/call/arguments.h"
#include "sherd/rpc/call/sample_values.h"

namespace sherd::internal {
namespace {

Payload MakePayload(uint8_t beside, absl::string_view values) {
  static const Tensor& tensor = *new Tensor(Tensor::Ones({2, 2}).value());
  Payload payload;
  payload.values = std::string(values);
  payload.tensors.assign(beside % 16, tensor);
  for (int i = 0; i < beside / 16; ++i) payload.references.push_back({i, 0, 1});
  return payload;
}

// Of types whose values have one form each.
template <typename... Ts>
void ExpectOneForm(const Payload& payload) {
  std::tuple<Ts...> values;
  const absl::Status status = DecodeArguments("m", payload, values);
  if (!status.ok()) {
    SHERD_CHECK(status.code() == absl::StatusCode::kDataLoss)
        << status.ToString();
    return;
  }
  const absl::StatusOr<Payload> again = std::apply(
      [](const Ts&... parts) { return EncodeArguments<Ts...>("m", parts...); },
      values);
  SHERD_CHECK(again.ok()) << again.status().ToString();
  SHERD_CHECK(again->values == payload.values);
  SHERD_CHECK(again->tensors.size() == payload.tensors.size());
  SHERD_CHECK(again->references == payload.references);
}

}  // namespace
}  // namespace sherd::internal

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sherd::internal;  // NOLINT(build/namespaces)
  if (size == 0) return 0;
  const Payload payload = MakePayload(
      data[0],
      absl::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
  ExpectOneForm<Everything>(payload);
  ExpectOneForm<sherd::Shard, std::vector<TestRef<int>>>(payload);
  ExpectOneForm<Tree>(payload);
  // Protobuf has several forms of a message: none must end the process.
  std::tuple<google::protobuf::Struct> message;
  DecodeArguments("m", payload, message).IgnoreError();
  return 0;
}
