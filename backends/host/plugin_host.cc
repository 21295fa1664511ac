#include "sherd/backends/host/plugin_host.h"

#include <time.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/dtype.h"

namespace sherd::internal {
namespace {

// Both sides of the ABI have the same values.
static_assert(static_cast<int>(DType::kFloat16) == SHERD_FLOAT16);
static_assert(static_cast<int>(DType::kComplex128) == SHERD_COMPLEX128);
static_assert(kNumComputedDTypes == SHERD_NUM_DTYPES);
static_assert(static_cast<int>(DType::kComplex32) == SHERD_COMPLEX32);
static_assert(static_cast<int>(ReduceOp::kSum) == SHERD_SUM);
static_assert(static_cast<int>(ReduceOp::kBxor) == SHERD_BXOR);
static_assert(kNumReduceOps == SHERD_NUM_REDUCTIONS);

int64_t MonotonicNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

void LogFromPlugin(int32_t severity, const char* text) {
  if (severity >= 3) {
    SHERD_LOG(kError) << text;
  } else if (severity == 2) {
    SHERD_LOG(kWarning) << text;
  } else if (severity == 1) {
    SHERD_LOG(kInfo) << text;
  } else {
    SHERD_LOG(kDebug) << text;
  }
}

void ReduceForPlugin(int32_t dtype, int32_t reduction, void* out,
                     const void* const* ins, int32_t num_ins, uint64_t count,
                     int32_t divisor) {
  Reduce(static_cast<ReduceOp>(reduction), static_cast<DType>(dtype), out,
         {ins, static_cast<size_t>(num_ins)}, count, divisor);
}

struct Setting {
  absl::string_view name;
  Knob knob;
};
constexpr Setting kSettings[] = {
    {"cuda_library", Knob::kCudaLibrary},
    {"nccl_library", Knob::kNcclLibrary},
};

sherd_code SettingForPlugin(const char* name, char* value, uint64_t capacity) {
  for (const Setting& setting : kSettings) {
    if (setting.name != name) continue;
    const std::string text = GetKnobOr(setting.knob, "");
    if (text.size() >= capacity) return SHERD_RESOURCE;
    std::memcpy(value, text.c_str(), text.size() + 1);
    return SHERD_OK;
  }
  return SHERD_UNSUPPORTED;
}

const sherd_host_v0 kHost = {.struct_size = sizeof(sherd_host_v0),
                             .major = SHERD_ABI_MAJOR,
                             .minor = SHERD_ABI_MINOR,
                             .log = LogFromPlugin,
                             .now = MonotonicNow,
                             .reduce = ReduceForPlugin,
                             .setting = SettingForPlugin};

}  // namespace

const sherd_host_v0& PluginHost() { return kHost; }

int64_t ToNanoseconds(Deadline deadline) {
  if (deadline.IsInfinite()) return SHERD_NO_DEADLINE;
  // steady_clock is CLOCK_MONOTONIC on Linux.
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             deadline.when().time_since_epoch())
      .count();
}

Deadline FromNanoseconds(int64_t deadline) {
  if (deadline == SHERD_NO_DEADLINE) return Deadline::Infinite();
  return Deadline::After(absl::Nanoseconds(deadline - MonotonicNow()));
}

}  // namespace sherd::internal
