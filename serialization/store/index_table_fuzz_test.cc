// Any bytes as an index: an error, or a value that is encoded as the same
// bytes. The CRC is put behind the bytes first, since no fuzzer guesses it; and
// the bytes are tried as a whole object too.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/logging.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/store/index_table.h"
#include "sherd/serialization/wire/little_endian.h"

namespace {

void Try(absl::string_view bytes) {
  const absl::StatusOr<sherd::IndexTable> table =
      sherd::DecodeIndexTable(bytes, "fuzz");
  if (!table.ok()) {
    SHERD_CHECK(table.status().code() == absl::StatusCode::kDataLoss ||
                table.status().code() == absl::StatusCode::kUnimplemented)
        << table.status().ToString();
    return;
  }
  SHERD_CHECK(sherd::EncodeIndexTable(*table) == bytes);
  SHERD_CHECK(table->NonceOf(table->number).has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  Try(bytes);
  Try(std::string(bytes) +
      absl::StrFormat("crc32c %08x\n", sherd::Crc32c(sherd::AsBytes(bytes))));
  return 0;
}
