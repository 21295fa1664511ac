// The plugin by its C table, with memory and streams by that of the device
// plugin: on GPUs, or on emulated ones.

#include <algorithm>
#include <chrono>
#include <complex>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/backend_abi.h"
#include "sherd/backends/device_abi.h"
#include "sherd/backends/host/plugin_host.h"
#include "sherd/backends/plugin.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/comm/store.h"
#include "sherd/testing/distributed_test.h"

namespace sherd {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;

class Error : public sherd_error_v0 {
 public:
  Error() : sherd_error_v0{.struct_size = sizeof(sherd_error_v0), .peer = -1} {}
};

int64_t After(int64_t nanoseconds) {
  return internal::PluginHost().now() + nanoseconds;
}

const sherd_device_v0& Devices() {
  static const sherd_device_v0* const table =
      internal::StaticPlugin<sherd_device_v0>::Head()->entry(
          &internal::PluginHost());
  return *table;
}

const sherd_plugin_v0& Plugin() {
  static const sherd_plugin_v0* const table = [] {
    const sherd_plugin_v0* found = nullptr;
    for (const auto* plugin = internal::StaticPlugin<sherd_plugin_v0>::Head();
         plugin != nullptr && found == nullptr; plugin = plugin->next) {
      const sherd_plugin_v0* const made =
          plugin->entry(&internal::PluginHost());
      if (made != nullptr && std::string(made->name) == "nccl") found = made;
    }
    return found;
  }();
  return *table;
}

const sherd_on_device_v0& OnDevice() { return *Plugin().on_device; }

// A store as plugins see it.
class StoreKv {
 public:
  explicit StoreKv(std::shared_ptr<Store> store) : store_(std::move(store)) {
    table_ = {.struct_size = sizeof(table_),
              .context = this,
              .set = Set,
              .get = Get,
              .add = nullptr,
              .remove = nullptr};
  }
  StoreKv(const StoreKv&) = delete;
  StoreKv& operator=(const StoreKv&) = delete;

  const sherd_kv_v0* table() const { return &table_; }

 private:
  static sherd_code Set(void* context, const char* key, const void* value,
                        uint64_t size) {
    const absl::Status status = static_cast<StoreKv*>(context)->store_->Set(
        key, absl::string_view(static_cast<const char*>(value), size));
    return status.ok() ? SHERD_OK : SHERD_SYSTEM;
  }
  static sherd_code Get(void* context, const char* key, int64_t deadline,
                        void* value, uint64_t capacity, uint64_t* size) {
    const absl::StatusOr<std::string> found =
        static_cast<StoreKv*>(context)->store_->Get(
            key, internal::FromNanoseconds(deadline));
    if (absl::IsDeadlineExceeded(found.status())) return SHERD_TIMEOUT;
    if (!found.ok()) return SHERD_SYSTEM;
    *size = found->size();
    std::memcpy(value, found->data(), std::min<uint64_t>(capacity, *size));
    return SHERD_OK;
  }

  std::shared_ptr<Store> store_;
  sherd_kv_v0 table_;
};

class NcclPluginTest : public testing::DistributedTest {
 protected:
  void SetUp() override {
    Error error;
    if (Plugin().probe(&error) != SHERD_OK) GTEST_SKIP() << error.text;
    int32_t count = 0;
    ASSERT_EQ(Devices().count(&count, &error), SHERD_OK) << error.text;
    device_ = rank() % count;
    ASSERT_EQ(Devices().set_current(device_, &error), SHERD_OK) << error.text;
    ASSERT_EQ(Devices().create_stream(device_, 0, &stream_, &error), SHERD_OK)
        << error.text;
  }

  void TearDown() override {
    Error error;
    if (stream_ != nullptr) Devices().destroy_stream(device_, stream_, &error);
  }

  // Each group its own keys.
  const sherd_kv_v0* Kv(const std::string& group) {
    kvs_.push_back(std::make_unique<StoreKv>(
        std::make_shared<PrefixStore>(group, OpenStore())));
    return kvs_.back()->table();
  }

  sherd_comm_config_v0 Config(const std::string& group, int rank, int size) {
    sherd_device_info_v0 info = {.struct_size = sizeof(info)};
    Error error;
    EXPECT_EQ(Devices().describe(device_, &info, &error), SHERD_OK);
    device_id_ = info.bus_id;
    return {.struct_size = sizeof(sherd_comm_config_v0),
            .rank = rank,
            .size = size,
            .group = "test",
            .kv = Kv(group),
            .deadline = After(60 * kSecond),
            .one_host = 1,
            .device = device_,
            .device_id = device_id_.c_str()};
  }

  sherd_comm_v0* Create(const std::string& group = "group") {
    const sherd_comm_config_v0 config = Config(group, rank(), world_size());
    sherd_comm_v0* comm = nullptr;
    Error error;
    EXPECT_EQ(Plugin().create(&config, &comm, &error), SHERD_OK) << error.text;
    return comm;
  }

  void End(sherd_comm_v0* comm) {
    Error error;
    EXPECT_EQ(OnDevice().finalize(comm, After(60 * kSecond), &error), SHERD_OK)
        << error.text;
    Plugin().destroy(comm);
  }

  void* Allocate(uint64_t bytes) {
    void* data = nullptr;
    Error error;
    EXPECT_EQ(Devices().allocate(device_, std::max<uint64_t>(bytes, 1), stream_,
                                 &data, &error),
              SHERD_OK)
        << error.text;
    return data;
  }
  void Free(void* data) {
    Error error;
    EXPECT_EQ(Devices().deallocate(device_, data, 1, stream_, &error), SHERD_OK)
        << error.text;
  }

  void Copy(void* to, const void* from, uint64_t bytes) {
    if (bytes == 0) return;
    Error error;
    EXPECT_EQ(Devices().copy_bytes(device_, stream_, to, from, bytes, &error),
              SHERD_OK)
        << error.text;
  }

  template <typename T>
  T* Upload(const std::vector<T>& values) {
    T* const data = static_cast<T*>(Allocate(values.size() * sizeof(T)));
    Copy(data, values.data(), values.size() * sizeof(T));
    // The vector may be destroyed before a queued copy reads it.
    Drain(nullptr);
    return data;
  }
  template <typename T>
  std::vector<T> Download(const T* data, size_t count) {
    std::vector<T> values(count);
    Copy(values.data(), data, count * sizeof(T));
    Drain(nullptr);
    return values;
  }

  // Waits for the queued work; with a communicator, as long as that is well.
  void Drain(sherd_comm_v0* comm) {
    Error error;
    void* event = nullptr;
    ASSERT_EQ(Devices().take_event(device_, &event, &error), SHERD_OK);
    ASSERT_EQ(Devices().record_event(device_, event, stream_, &error),
              SHERD_OK);
    const int64_t end = After(60 * kSecond);
    sherd_code code = SHERD_IN_PROGRESS;
    while (code == SHERD_IN_PROGRESS && After(0) < end) {
      code = Devices().query_event(event, &error);
      if (comm != nullptr && code == SHERD_IN_PROGRESS) {
        ASSERT_EQ(OnDevice().poll(comm, &error), SHERD_OK) << error.text;
      }
      std::this_thread::yield();
    }
    EXPECT_EQ(code, SHERD_OK) << error.text;
    Devices().return_event(device_, event);
  }

  void Post(sherd_comm_v0* comm, sherd_op_v0 op) {
    op.struct_size = sizeof(op);
    op.stream = stream_;
    op.sequence = ++sequence_;
    op.deadline = After(60 * kSecond);
    sherd_request_v0 request = {};
    Error error;
    EXPECT_EQ(Plugin().post(comm, &op, &request, &error), SHERD_OK)
        << error.text;
  }

  template <typename T>
  std::vector<T> AllReduce(sherd_comm_v0* comm, const std::vector<T>& values,
                           int32_t dtype, int32_t reduction) {
    T* const data = Upload(values);
    Post(comm, {.op = SHERD_ALL_REDUCE,
                .in = data,
                .out = data,
                .bytes = values.size() * sizeof(T),
                .dtype = dtype,
                .reduction = reduction});
    const std::vector<T> result = Download(data, values.size());
    Free(data);
    return result;
  }

  // Sums of 1 + rank.
  void ExpectWorks(sherd_comm_v0* comm, int rank, int size) {
    EXPECT_EQ(AllReduce<float>(comm, {1.0f + rank, 10.0f * rank}, SHERD_FLOAT32,
                               SHERD_SUM),
              (std::vector<float>{size * (size + 1) / 2.0f,
                                  5.0f * size * (size - 1)}));
  }

  int device_ = 0;
  void* stream_ = nullptr;

 private:
  uint64_t sequence_ = 0;
  std::string device_id_;
  std::vector<std::unique_ptr<StoreKv>> kvs_;
};

// How much rank `from` sends to rank `to`; nothing at times.
int Length(int from, int to) { return (3 * from + 5 * to + 1) % 7; }

// The value of element i.
int32_t Value(int from, int to, int i) { return from * 1000 + to * 100 + i; }

sherd_bytes_v0 Bytes(int32_t* data, int count) {
  return {data, static_cast<uint64_t>(count) * sizeof(int32_t)};
}

SHERD_DIST_TEST_F(NcclPluginTest, ReducesEveryKindOfElement, WithoutComms{}) {
  sherd_comm_v0* const comm = Create();
  ASSERT_NE(comm, nullptr);
  const int n = world_size();
  ExpectWorks(comm, rank(), n);
  EXPECT_EQ(AllReduce<int64_t>(comm, {rank(), -rank()}, SHERD_INT64, SHERD_MAX),
            (std::vector<int64_t>{n - 1, 0}));
  EXPECT_EQ(AllReduce<int8_t>(comm, {2, -1}, SHERD_INT8, SHERD_PRODUCT),
            (std::vector<int8_t>{static_cast<int8_t>(1 << n),
                                 static_cast<int8_t>(n % 2 == 0 ? 1 : -1)}));
  EXPECT_EQ(AllReduce<uint8_t>(comm, {1, 0, uint8_t{rank() == 0}}, SHERD_BOOL,
                               SHERD_SUM),
            (std::vector<uint8_t>{1, 0, 1}));
  EXPECT_EQ(AllReduce<uint8_t>(comm, {1, 0, uint8_t{rank() == 0}}, SHERD_BOOL,
                               SHERD_PRODUCT),
            (std::vector<uint8_t>{1, 0, uint8_t{n == 1}}));
  using Complex = std::complex<float>;
  EXPECT_EQ(AllReduce<Complex>(comm, {Complex(1, rank()), Complex(0, -2)},
                               SHERD_COMPLEX64, SHERD_SUM),
            (std::vector<Complex>{Complex(n, n * (n - 1) / 2.0f),
                                  Complex(0, -2 * n)}));
  const std::vector<float> average =
      AllReduce<float>(comm, {1.0f + rank()}, SHERD_FLOAT32, SHERD_AVG);
  EXPECT_NEAR(average[0], (n + 1) / 2.0f, 1e-5);
  End(comm);
}

SHERD_DIST_TEST_F(NcclPluginTest, MovesBlocksOfEqualSize, WithoutComms{}) {
  sherd_comm_v0* const comm = Create();
  ASSERT_NE(comm, nullptr);
  const int n = world_size();
  const int root = n - 1;

  int32_t* const data = Upload<int32_t>({rank() == root ? 7 : 0, rank()});
  Post(comm, {.op = SHERD_BROADCAST, .root = root, .out = data, .bytes = 4});
  EXPECT_EQ(Download(data, 2), (std::vector<int32_t>{7, rank()}));

  // The own block is the host's.
  std::vector<int32_t> blocks(2 * n);
  blocks[2 * rank()] = 10 + rank();
  blocks[2 * rank() + 1] = 20 + rank();
  int32_t* const all = Upload(blocks);
  Post(
      comm,
      {.op = SHERD_ALL_GATHER, .in = all + 2 * rank(), .out = all, .bytes = 8});
  for (int r = 0; r < n; ++r) blocks[2 * r] = 10 + r;
  for (int r = 0; r < n; ++r) blocks[2 * r + 1] = 20 + r;
  EXPECT_EQ(Download(all, blocks.size()), blocks);

  std::vector<sherd_bytes_v0> sends;
  for (int r = 0; r < n; ++r) sends.push_back(Bytes(all + 2 * r, 2));
  Post(comm, {.op = SHERD_REDUCE_SCATTER,
              .flags = SHERD_OP_EVEN,
              .out = data,
              .bytes = 8,
              .sends = sends.data(),
              .dtype = SHERD_INT32,
              .reduction = SHERD_SUM});
  EXPECT_EQ(Download(data, 2),
            (std::vector<int32_t>{n * (10 + rank()), n * (20 + rank())}));

  Post(comm, {.op = SHERD_REDUCE,
              .root = root,
              .in = data,
              .out = rank() == root ? data : nullptr,
              .bytes = 4,
              .dtype = SHERD_INT32,
              .reduction = SHERD_MIN});
  EXPECT_EQ(Download(data, 1)[0], n * (10 + (rank() == root ? 0 : rank())));

  Post(comm, {.op = SHERD_BARRIER, .out = data, .bytes = 4});
  Drain(comm);
  Free(data);
  Free(all);
  End(comm);
}

SHERD_DIST_TEST_F(NcclPluginTest, MovesBlocksOfAnySize, WithoutComms{}) {
  sherd_comm_v0* const comm = Create();
  ASSERT_NE(comm, nullptr);
  const int n = world_size();
  const int me = rank();
  // Room for 8 elements per rank.
  std::vector<int32_t> outgoing(8 * n, -1);
  for (int to = 0; to < n; ++to) {
    for (int i = 0; i < Length(me, to); ++i) {
      outgoing[8 * to + i] = Value(me, to, i);
    }
  }
  int32_t* const out = Upload(outgoing);
  int32_t* const in = Upload(std::vector<int32_t>(8 * n, -1));
  std::vector<sherd_bytes_v0> sends(n);
  std::vector<sherd_bytes_v0> recvs(n);
  for (int r = 0; r < n; ++r) {
    sends[r] = Bytes(out + 8 * r, Length(me, r));
    recvs[r] = Bytes(in + 8 * r, Length(r, me));
  }
  Post(
      comm,
      {.op = SHERD_ALL_TO_ALL_V, .sends = sends.data(), .recvs = recvs.data()});
  std::vector<int32_t> expected(8 * n, -1);
  for (int from = 0; from < n; ++from) {
    for (int i = 0; i < Length(from, me) && from != me; ++i) {
      expected[8 * from + i] = Value(from, me, i);
    }
  }
  EXPECT_EQ(Download(in, 8 * n), expected);

  // To all: what each sends to rank 0. The own entry is the host's.
  for (int r = 0; r < n; ++r) recvs[r] = Bytes(in + 8 * r, Length(r, 0));
  Copy(in + 8 * me, out, Length(me, 0) * sizeof(int32_t));
  Post(comm, {.op = SHERD_ALL_GATHER_V,
              .in = out,
              .bytes = Length(me, 0) * sizeof(int32_t),
              .recvs = recvs.data()});
  const std::vector<int32_t> gathered = Download(in, 8 * n);
  for (int from = 0; from < n; ++from) {
    for (int i = 0; i < Length(from, 0); ++i) {
      EXPECT_EQ(gathered[8 * from + i], Value(from, 0, i)) << from << " " << i;
    }
  }

  // The same to the last rank only, and back to all.
  const int root = n - 1;
  const uint64_t own = Length(me, 0) * sizeof(int32_t);
  Post(comm, {.op = SHERD_GATHER,
              .root = root,
              .in = out,
              .bytes = own,
              .recvs = me == root ? recvs.data() : nullptr});
  int32_t* const back = Upload(std::vector<int32_t>(8, -1));
  Post(comm, {.op = SHERD_SCATTER,
              .root = root,
              .out = back,
              .bytes = own,
              .sends = me == root ? recvs.data() : nullptr});
  const std::vector<int32_t> returned = Download(back, 8);
  for (int i = 0; i < 8; ++i) {
    const bool is_mine = i < Length(me, 0) && me != root;
    EXPECT_EQ(returned[i], is_mine ? Value(me, 0, i) : -1) << i;
  }

  // Sums of blocks of unequal size.
  for (int r = 0; r < n; ++r) sends[r] = Bytes(in + 8 * r, Length(r, 0));
  Post(comm, {.op = SHERD_REDUCE_SCATTER,
              .out = back,
              .bytes = own,
              .sends = sends.data(),
              .dtype = SHERD_INT32,
              .reduction = SHERD_SUM});
  const std::vector<int32_t> sums = Download(back, 8);
  for (int i = 0; i < Length(me, 0); ++i) {
    EXPECT_EQ(sums[i], n * Value(me, 0, i)) << i;
  }
  for (int32_t* data : {out, in, back}) Free(data);
  End(comm);
}

SHERD_DIST_TEST_F(NcclPluginTest, SendsInABatch, WithoutComms{}) {
  sherd_comm_v0* const comm = Create();
  ASSERT_NE(comm, nullptr);
  const int n = world_size();
  int32_t* const data = Upload<int32_t>({100 + rank(), 200 + rank(), -1, -1});
  Error error;
  // Around a ring, twice.
  if (n > 1) {
    ASSERT_EQ(OnDevice().begin_batch(comm, &error), SHERD_OK) << error.text;
    for (int i = 0; i < 2; ++i) {
      Post(comm, {.op = SHERD_SEND,
                  .root = (rank() + 1) % n,
                  .in = data + i,
                  .bytes = 4,
                  .tag = i});
      Post(comm, {.op = SHERD_RECV,
                  .root = (rank() + n - 1) % n,
                  .out = data + 2 + i,
                  .bytes = 4,
                  .tag = i});
    }
    ASSERT_EQ(OnDevice().end_batch(comm, &error), SHERD_OK) << error.text;
    const int from = (rank() + n - 1) % n;
    EXPECT_EQ(Download(data, 4),
              (std::vector<int32_t>{100 + rank(), 200 + rank(), 100 + from,
                                    200 + from}));
  }
  Free(data);
  End(comm);
}

SHERD_DIST_TEST_F(NcclPluginTest, SplitsIntoGroupsThatOutliveTheirs,
                  WithoutComms{}) {
  sherd_comm_v0* const comm = Create();
  ASSERT_NE(comm, nullptr);
  // Even and odd ranks, in the opposite order.
  const int color = rank() % 2;
  const int size = (world_size() + 1 - color) / 2;
  const int place = size - 1 - rank() / 2;
  const sherd_comm_config_v0 config =
      Config(absl::StrCat("child", color), place, size);
  sherd_comm_v0* child = nullptr;
  Error error;
  ASSERT_EQ(OnDevice().split(comm, &config, color, -rank(), &child, &error),
            SHERD_OK)
      << error.text;
  ExpectWorks(comm, rank(), world_size());
  End(comm);
  ExpectWorks(child, place, size);
  End(child);
}

SHERD_DIST_TEST_F(NcclPluginTest, ARankWithoutColorGetsNothing,
                  WithoutComms{}) {
  sherd_comm_v0* const comm = Create();
  ASSERT_NE(comm, nullptr);
  const bool is_out = rank() == world_size() - 1;
  const sherd_comm_config_v0 config =
      Config("child", rank(), std::max(1, world_size() - 1));
  sherd_comm_v0* child = nullptr;
  Error error;
  ASSERT_EQ(
      OnDevice().split(comm, &config, is_out ? -1 : 0, rank(), &child, &error),
      SHERD_OK)
      << error.text;
  EXPECT_EQ(child == nullptr, is_out);
  if (child != nullptr) {
    ExpectWorks(child, rank(), world_size() - 1);
    End(child);
  }
  End(comm);
}

SHERD_DIST_TEST_F(NcclPluginTest, AbortFreesAStreamAndTheRestGoOn,
                  WithoutComms{}) {
  if (world_size() == 1) GTEST_SKIP() << "needs another rank";
  sherd_comm_v0* const comm = Create();
  ASSERT_NE(comm, nullptr);
  ExpectWorks(comm, rank(), world_size());
  // The last rank does not call it.
  const int last = world_size() - 1;
  int32_t* const data = Upload<int32_t>({1});
  if (rank() != last) {
    Post(comm, {.op = SHERD_ALL_REDUCE,
                .in = data,
                .out = data,
                .bytes = 4,
                .dtype = SHERD_INT32,
                .reduction = SHERD_SUM});
  }
  Plugin().abort(comm);
  Drain(nullptr);
  Error error;
  EXPECT_EQ(OnDevice().poll(comm, &error), SHERD_ABORTED);

  if (rank() != last) {
    const sherd_comm_config_v0 config = Config("rest", rank(), last);
    const int32_t excluded[] = {last};
    sherd_comm_v0* rest = nullptr;
    const sherd_code code =
        OnDevice().shrink(comm, &config, excluded, 1, &rest, &error);
    if (code != SHERD_UNSUPPORTED) {
      ASSERT_EQ(code, SHERD_OK) << error.text;
      ExpectWorks(rest, rank(), last);
      End(rest);
    }
  }
  Free(data);
  Plugin().destroy(comm);
}

// Ranks connect in their first operation: a rank that does not call it keeps
// the others in post.
SHERD_DIST_TEST_F(NcclPluginTest, AbortFreesAThreadThatWaitsInPost,
                  WithoutComms{}) {
  if (world_size() == 1) GTEST_SKIP() << "needs another rank";
  sherd_comm_v0* const comm = Create();
  ASSERT_NE(comm, nullptr);
  int32_t* const data = Upload<int32_t>({1});
  std::thread poster;
  if (rank() != world_size() - 1) {
    poster = std::thread([&] {
      Error error;
      EXPECT_EQ(Devices().set_current(device_, &error), SHERD_OK);
      const sherd_op_v0 op = {.struct_size = sizeof(op),
                              .op = SHERD_ALL_REDUCE,
                              .in = data,
                              .out = data,
                              .bytes = 4,
                              .deadline = After(60 * kSecond),
                              .dtype = SHERD_INT32,
                              .reduction = SHERD_SUM,
                              .stream = stream_};
      sherd_request_v0 request = {};
      const sherd_code code = Plugin().post(comm, &op, &request, &error);
      EXPECT_TRUE(code == SHERD_OK || code == SHERD_ABORTED) << error.text;
    });
    // Time to get there; it need not.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  Plugin().abort(comm);
  if (poster.joinable()) poster.join();
  Drain(nullptr);
  Free(data);
  Plugin().destroy(comm);
}

SHERD_DIST_TEST_F(NcclPluginTest, RefusesRanksOnOneGpuEverywhere,
                  WithoutComms{}) {
  if (world_size() == 1) GTEST_SKIP() << "one rank has it for itself";
  Error error;
  Devices().destroy_stream(device_, stream_, &error);
  device_ = 0;
  ASSERT_EQ(Devices().set_current(device_, &error), SHERD_OK);
  ASSERT_EQ(Devices().create_stream(device_, 0, &stream_, &error), SHERD_OK);
  const sherd_comm_config_v0 config = Config("group", rank(), world_size());
  sherd_comm_v0* comm = nullptr;
  const sherd_code code = Plugin().create(&config, &comm, &error);
  if (code == SHERD_OK) {
    // Taken for ranks of several hosts, or by an NCCL that allows it.
    ExpectWorks(comm, rank(), world_size());
    End(comm);
    return;
  }
  EXPECT_FALSE(GetKnob(Knob::kNcclHostId).has_value());
  EXPECT_THAT(error.text, HasSubstr("ranks 0 and 1 use one GPU, "));
  EXPECT_THAT(error.text, HasSubstr("give each rank its own"));
}

SHERD_DIST_TEST_F(NcclPluginTest, OperatesOnItsOwnRegisteredMemory,
                  WithoutComms{}) {
  sherd_comm_v0* const comm = Create();
  ASSERT_NE(comm, nullptr);
  constexpr uint64_t kBytes = 1 << 20;
  void* data = nullptr;
  Error error;
  const sherd_code code = OnDevice().allocate(device_, kBytes, &data, &error);
  if (code == SHERD_OK) {
    void* registration = nullptr;
    const sherd_code registered =
        OnDevice().register_memory(comm, data, kBytes, &registration, &error);
    EXPECT_TRUE(registered == SHERD_OK || registered == SHERD_UNSUPPORTED)
        << error.text;
    const float one = 1;
    Copy(data, &one, sizeof(one));
    Post(comm, {.op = SHERD_ALL_REDUCE,
                .in = data,
                .out = data,
                .bytes = sizeof(float),
                .dtype = SHERD_FLOAT32,
                .reduction = SHERD_SUM});
    EXPECT_EQ(Download(static_cast<float*>(data), 1)[0], world_size());
    if (registered == SHERD_OK) {
      OnDevice().deregister_memory(comm, registration);
    }
    OnDevice().deallocate(device_, data, kBytes);
  } else {
    EXPECT_EQ(code, SHERD_UNSUPPORTED) << error.text;
  }
  End(comm);
}

}  // namespace
}  // namespace sherd
