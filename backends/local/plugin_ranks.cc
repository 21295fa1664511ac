#include "sherd/backends/local/plugin_ranks.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/backends/plugin.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/testing/kits/rank_threads.h"

namespace sherd::testing {
namespace {

int64_t MonotonicNow() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

class Kv {
 public:
  explicit Kv(const std::function<void()>& on_set) : on_set_(on_set) {}

  sherd_kv_v0 Table() {
    return {.struct_size = sizeof(sherd_kv_v0),
            .context = this,
            .set = Set,
            .get = Get,
            .add = nullptr,
            .remove = nullptr};
  }

 private:
  static sherd_code Set(void* context, const char* key, const void* value,
                        uint64_t size) {
    Kv& self = *static_cast<Kv*>(context);
    self.on_set_();
    std::lock_guard<std::mutex> lock(self.mutex_);
    self.values_[key] = std::string(static_cast<const char*>(value), size);
    self.changed_.notify_all();
    return SHERD_OK;
  }

  static sherd_code Get(void* context, const char* key, int64_t deadline,
                        void* value, uint64_t capacity, uint64_t* size) {
    Kv& self = *static_cast<Kv*>(context);
    std::unique_lock<std::mutex> lock(self.mutex_);
    const std::chrono::steady_clock::time_point when{
        std::chrono::nanoseconds(deadline)};
    if (!self.changed_.wait_until(
            lock, when, [&] { return self.values_.count(key) > 0; })) {
      return SHERD_TIMEOUT;
    }
    const std::string& found = self.values_[key];
    std::memcpy(value, found.data(),
                std::min<uint64_t>(capacity, found.size()));
    *size = found.size();
    return SHERD_OK;
  }

  const std::function<void()>& on_set_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

void ReduceForPlugin(int32_t dtype, int32_t reduction, void* out,
                     const void* const* ins, int32_t num_ins, uint64_t count,
                     int32_t divisor) {
  Reduce(static_cast<ReduceOp>(reduction), static_cast<DType>(dtype), out,
         {ins, static_cast<size_t>(num_ins)}, count, divisor);
}

const sherd_host_v0 kHost = {.struct_size = sizeof(sherd_host_v0),
                             .major = SHERD_ABI_MAJOR,
                             .minor = SHERD_ABI_MINOR,
                             .log = [](int32_t, const char*) {},
                             .now = MonotonicNow,
                             .reduce = ReduceForPlugin};

sherd_error_v0 NoError() {
  sherd_error_v0 error = {};
  error.struct_size = sizeof(error);
  error.peer = -1;
  return error;
}

}  // namespace

const sherd_plugin_v0& LinkedPlugin() {
  static const sherd_plugin_v0* const plugin =
      internal::StaticPlugin<sherd_plugin_v0>::Head()->entry(&kHost);
  return *plugin;
}

PluginOutcome PluginRank::Run(sherd_op_v0 op, absl::Duration timeout) {
  op.struct_size = sizeof(op);
  op.deadline = MonotonicNow() + absl::ToInt64Nanoseconds(timeout);
  if (op.op != SHERD_SEND && op.op != SHERD_RECV) op.sequence = ++sequence_;
  sherd_request_v0 request;
  sherd_error_v0 error = NoError();
  const sherd_code code = plugin_.post(comm_, &op, &request, &error);
  return {code, error.peer, error.text};
}

void PluginRank::Leave() {
  if (comm_ != nullptr) plugin_.destroy(comm_);
  comm_ = nullptr;
}

void RunPluginRanks(int n, absl::FunctionRef<void(PluginRank&)> body,
                    absl::string_view address,
                    const std::function<void()>& on_publish) {
  Kv kv(on_publish);
  const sherd_kv_v0 table = kv.Table();
  const std::string bind_address(address);
  std::vector<int32_t> world_ranks(n);
  for (int rank = 0; rank < n; ++rank) world_ranks[rank] = rank;
  RunRankThreads(n, [&](int rank) {
    const sherd_comm_config_v0 config = {
        .struct_size = sizeof(config),
        .rank = rank,
        .size = n,
        .group = "test",
        .kv = &table,
        .deadline = MonotonicNow() + int64_t{60} * 1000000000,
        .world_ranks = world_ranks.data(),
        .world_size = n,
        .one_host = 1,
        .address = bind_address.c_str()};
    sherd_comm_v0* comm = nullptr;
    sherd_error_v0 error = NoError();
    ASSERT_EQ(LinkedPlugin().create(&config, &comm, &error), SHERD_OK)
        << error.text;
    PluginRank self(LinkedPlugin(), comm, rank, n);
    body(self);
  });
}

}  // namespace sherd::testing
