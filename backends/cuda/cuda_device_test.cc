// The device plugin on a driver: a real one, or the emulated one, which ends
// the process where an order is missing.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/cuda/pool_cases.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/comm/reduction.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/emulated_gpu/driver_library.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::DriverLibrary;
using ::sherd::testing::IsOk;
using ::sherd::testing::PoolCase;
using ::sherd::testing::RandomPoolCase;
using ::sherd::testing::StatusIs;
using ::testing::Each;
using ::testing::HasSubstr;

// From the command line, for the process that a test starts.
std::string given_handle;

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto runtime = DeviceRuntime::For(DeviceType::kCuda);
    if (!runtime.ok()) GTEST_SKIP() << runtime.status().message();
    runtime_ = *runtime;
    ASSERT_THAT(runtime_->SetCurrentDevice(0), IsOk());
    driver_ = DriverLibrary::Load(
        GetKnobOr(Knob::kCudaLibrary, "libcuda.so.1").c_str());
    stream_ = runtime_->CreateStream(0).value();
  }

  void TearDown() override {
    if (runtime_ == nullptr) return;
    EXPECT_THAT(runtime_->Synchronize(stream_), IsOk());
    runtime_->DestroyStream(stream_);
  }

  bool is_emulated() const { return driver_.hold_streams != nullptr; }

  // Device memory with a copy of `values`, and room for it on the host.
  template <typename T>
  T* OnDevice(const std::vector<T>& values, int device = 0) {
    void* const data = runtime_->MemoryOf(device)
                           .value()
                           ->Allocate(values.size() * sizeof(T), 256)
                           .value();
    // From the stream of the allocation, which is the default one.
    const DeviceStream stream = DefaultStream(device);
    EXPECT_THAT(runtime_->CopyBytes(stream, data, values.data(),
                                    values.size() * sizeof(T)),
                IsOk());
    EXPECT_THAT(runtime_->Synchronize(stream), IsOk());
    return static_cast<T*>(data);
  }

  template <typename T>
  std::vector<T> FromDevice(const T* data, size_t count, int device = 0) {
    std::vector<T> values(count);
    const DeviceStream stream = DefaultStream(device);
    EXPECT_THAT(
        runtime_->CopyBytes(stream, values.data(), data, count * sizeof(T)),
        IsOk());
    EXPECT_THAT(runtime_->Synchronize(stream), IsOk());
    return values;
  }

  void Free(void* data, size_t bytes, int device = 0) {
    runtime_->MemoryOf(device).value()->Deallocate(data, bytes);
  }

  static DeviceStream DefaultStream(int device) {
    return {{DeviceType::kCuda, device}, nullptr};
  }

  // Runs a disabled test of this file in a new process; its exit code.
  static int RunOther(absl::string_view test, absl::string_view handle = "") {
    const std::string filter = absl::StrCat("--gtest_filter=", test);
    const std::string argument = absl::StrCat("--handle=", handle);
    const pid_t child = fork();
    if (child == 0) {
      execl("/proc/self/exe", "cuda_device_test", filter.c_str(),
            argument.c_str(), "--gtest_also_run_disabled_tests", nullptr);
      _exit(127);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  DeviceRuntime* runtime_ = nullptr;
  DriverLibrary driver_;
  DeviceStream stream_;
};

// Boxes of which each is the transpose of a matrix, one behind another.
struct Transposes {
  Transposes(int32_t* dst, const int32_t* src, int count) {
    for (int i = 0; i < count; ++i) {
      copies.push_back({.dst = dst + i * kElements,
                        .dst_strides = dst_strides,
                        .src = src + i * kElements,
                        .src_strides = src_strides,
                        .sizes = sizes,
                        .element_size = sizeof(int32_t)});
    }
  }

  static constexpr int64_t kRows = 7;
  static constexpr int64_t kColumns = 9;
  static constexpr int64_t kElements = kRows * kColumns;

  static std::vector<int32_t> Expected(const std::vector<int32_t>& src) {
    std::vector<int32_t> dst(src.size());
    for (size_t i = 0; i < src.size(); ++i) {
      const size_t matrix = i / kElements * kElements;
      const size_t row = i % kElements / kColumns;
      const size_t column = i % kColumns;
      dst[i] = src[matrix + column * kRows + row];
    }
    return dst;
  }

  const std::vector<int64_t> sizes = {kRows, kColumns};
  const std::vector<int64_t> dst_strides = {kColumns, 1};
  const std::vector<int64_t> src_strides = {1, kRows};
  std::vector<DeviceCopy> copies;
};

std::vector<int32_t> Iota(size_t count, int32_t first = 0) {
  std::vector<int32_t> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<int>(i);
  return values;
}

TEST_F(CudaDeviceTest, CopiesBoxesInOneLaunch) {
  // The first fits into the parameter of a kernel, the last does not.
  for (const int count : {1, 3, 40, 500}) {
    SCOPED_TRACE(count);
    const std::vector<int32_t> values = Iota(count * Transposes::kElements);
    int32_t* const src = OnDevice(values);
    int32_t* const dst =
        OnDevice(std::vector<int32_t>(values.size(), int32_t{-1}));
    const Transposes transposes(dst, src, count);
    ASSERT_THAT(runtime_->Copy(stream_, transposes.copies), IsOk());
    ASSERT_THAT(runtime_->Synchronize(stream_), IsOk());
    EXPECT_EQ(FromDevice(dst, values.size()), Transposes::Expected(values));
    Free(src, values.size() * 4);
    Free(dst, values.size() * 4);
  }
}

TEST_F(CudaDeviceTest, ManyTablesAreUnderWayAtOnce) {
  constexpr int kBoxes = 300;
  const std::vector<int32_t> values = Iota(kBoxes * Transposes::kElements);
  int32_t* const src = OnDevice(values);
  int32_t* const dst = OnDevice(values);
  const Transposes there(dst, src, kBoxes);
  for (int i = 0; i < 20; ++i) {
    ASSERT_THAT(runtime_->Copy(stream_, there.copies), IsOk());
  }
  ASSERT_THAT(runtime_->Synchronize(stream_), IsOk());
  EXPECT_EQ(FromDevice(dst, values.size()), Transposes::Expected(values));
  Free(src, values.size() * 4);
  Free(dst, values.size() * 4);
}

TEST_F(CudaDeviceTest, WorksInGraphs) {
  constexpr int kBoxes = 300;
  const std::vector<int32_t> values = Iota(kBoxes * Transposes::kElements);
  const std::vector<int32_t> others =
      Iota(kBoxes * Transposes::kElements, 1000);
  int32_t* const src = OnDevice(values);
  int32_t* const dst = OnDevice(std::vector<int32_t>(values.size()));
  const Transposes transposes(dst, src, kBoxes);
  const auto handle = static_cast<internal::CUstream>(stream_.handle);

  ASSERT_EQ(driver_.more.StreamBeginCapture(handle, /*mode=*/0), 0);
  EXPECT_EQ(runtime_->IsCapturing(stream_).value(), true);
  ASSERT_THAT(runtime_->Copy(stream_, transposes.copies), IsOk());
  testing::CUgraph graph = nullptr;
  ASSERT_EQ(driver_.more.StreamEndCapture(handle, &graph), 0);
  EXPECT_EQ(runtime_->IsCapturing(stream_).value(), false);
  testing::CUgraphExec exec = nullptr;
  ASSERT_EQ(driver_.more.GraphInstantiate(&exec, graph, 0), 0);

  for (const auto* given : {&values, &others}) {
    ASSERT_THAT(
        runtime_->CopyBytes(stream_, src, given->data(), given->size() * 4),
        IsOk());
    ASSERT_EQ(driver_.more.GraphLaunch(exec, handle), 0);
    ASSERT_THAT(runtime_->Synchronize(stream_), IsOk());
    EXPECT_EQ(FromDevice(dst, values.size()), Transposes::Expected(*given));
  }
  EXPECT_EQ(driver_.more.GraphExecDestroy(exec), 0);
  EXPECT_EQ(driver_.more.GraphDestroy(graph), 0);
  Free(src, values.size() * 4);
  Free(dst, values.size() * 4);
}

TEST_F(CudaDeviceTest, AnEventIsAskedWhileAnotherThreadCaptures) {
  const DeviceEvent event = runtime_->TakeEvent(0).value();
  ASSERT_THAT(runtime_->RecordEvent(event, DefaultStream(0)), IsOk());
  ASSERT_THAT(runtime_->Synchronize(DefaultStream(0)), IsOk());
  const auto handle = static_cast<internal::CUstream>(stream_.handle);
  ASSERT_EQ(driver_.more.StreamBeginCapture(handle, /*mode=*/0), 0);
  std::thread([&] {
    EXPECT_EQ(runtime_->QueryEvent(event).value(), true);
    // And what is slow is not forbidden.
    EXPECT_THAT(runtime_->TakeEvent(0), IsOk());
    EXPECT_THAT(runtime_->PinnedMemory()->Allocate(12345, 64), IsOk());
  }).join();
  testing::CUgraph graph = nullptr;
  EXPECT_EQ(driver_.more.StreamEndCapture(handle, &graph), 0)
      << "the capture was disturbed";
  EXPECT_EQ(driver_.more.GraphDestroy(graph), 0);
  runtime_->ReturnEvent(0, event);
}

// A call that the driver refuses while a stream is captured would end the
// capture: also on the default stream, if that stream waits for it.
TEST_F(CudaDeviceTest, FreeingMemoryDuringACaptureDoesNotEndTheCapture) {
  internal::CUstream waiting = nullptr;
  ASSERT_EQ(driver_.cuda.StreamCreateWithPriority(&waiting, /*flags=*/0, 0), 0);
  for (const internal::CUstream captured :
       {waiting, static_cast<internal::CUstream>(stream_.handle)}) {
    const DeviceStream streams[] = {DefaultStream(0),
                                    {DefaultStream(0).device, captured}};
    std::vector<std::shared_ptr<Storage>> before;
    for (const DeviceStream& stream : streams) {
      const ScopedStream scope(stream);
      before.push_back(
          Storage::Allocate(256, *runtime_->MemoryOf(0).value()).value());
    }
    ASSERT_EQ(driver_.more.StreamBeginCapture(captured, /*mode=*/0), 0);
    before[0]->UsedOn(streams[1]);
    before[1]->UsedOn(streams[0]);
    before.clear();
    if (captured == waiting) {
      EXPECT_THAT(Storage::Allocate(256, *runtime_->MemoryOf(0).value()),
                  StatusIs(absl::StatusCode::kFailedPrecondition, "capture"));
    }
    testing::CUgraph graph = nullptr;
    EXPECT_EQ(driver_.more.StreamEndCapture(captured, &graph), 0)
        << "the capture was disturbed";
    EXPECT_EQ(driver_.more.GraphDestroy(graph), 0);
  }
  // Taken back now.
  EXPECT_THAT(Storage::Allocate(256, *runtime_->MemoryOf(0).value()), IsOk());
  EXPECT_EQ(driver_.cuda.StreamDestroy(waiting), 0);
}

TEST_F(CudaDeviceTest, StreamsWaitForEachOther) {
  const DeviceStream other = runtime_->CreateStream(0, true).value();
  const std::vector<int32_t> values = Iota(1 << 16);
  int32_t* const first = OnDevice(std::vector<int32_t>(values.size()));
  int32_t* const second = OnDevice(std::vector<int32_t>(values.size()));
  const DeviceEvent event = runtime_->TakeEvent(0).value();

  if (is_emulated()) driver_.hold_streams(1);
  const int64_t sizes[] = {1 << 16};
  const int64_t strides[] = {1};
  const int32_t seven = 7;
  ASSERT_THAT(runtime_->Fill(stream_, {.data = first,
                                       .strides = strides,
                                       .sizes = sizes,
                                       .element_size = 4,
                                       .value = &seven}),
              IsOk());
  ASSERT_THAT(runtime_->RecordEvent(event, stream_), IsOk());
  ASSERT_THAT(runtime_->WaitEvent(other, event), IsOk());
  ASSERT_THAT(runtime_->CopyBytes(other, second, first, 4 << 16), IsOk());
  if (is_emulated()) {
    EXPECT_EQ(runtime_->QueryEvent(event).value(), false);
    driver_.hold_streams(-1);
  }
  ASSERT_THAT(runtime_->Synchronize(other), IsOk());
  EXPECT_EQ(runtime_->QueryEvent(event).value(), true);
  EXPECT_THAT(FromDevice(second, values.size()), Each(7));
  runtime_->ReturnEvent(0, event);
  runtime_->DestroyStream(other);
  Free(first, 4 << 16);
  Free(second, 4 << 16);
}

TEST_F(CudaDeviceTest, ReducesAsTheHostDoes) {
  constexpr size_t kCount = 1001;
  std::mt19937 random(20240607);
  for (const DType dtype : {DType::kFloat32, DType::kInt16, DType::kBFloat16}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
      SCOPED_TRACE(absl::StrCat(Name(dtype), " ", Name(op)));
      const size_t bytes = kCount * SizeOf(dtype);
      std::vector<std::vector<uint8_t>> ins(3, std::vector<uint8_t>(bytes));
      for (auto& in : ins) {
        // No exponents of all ones: numbers.
        for (uint8_t& byte : in) byte = random() & 0x3f;
      }
      std::vector<const void*> on_host, on_device;
      for (const auto& in : ins) {
        on_host.push_back(in.data());
        on_device.push_back(OnDevice(in));
      }
      std::vector<uint8_t> expected(bytes);
      Reduce(op, dtype, expected.data(), on_host, kCount, 3);
      uint8_t* const out = OnDevice(std::vector<uint8_t>(bytes));
      ASSERT_THAT(runtime_->Reduce(stream_, dtype, static_cast<int>(op), out,
                                   on_device, kCount, 3),
                  IsOk());
      ASSERT_THAT(runtime_->Synchronize(stream_), IsOk());
      EXPECT_EQ(FromDevice(out, bytes), expected);
      for (const void* in : on_device) Free(const_cast<void*>(in), bytes);
      Free(out, bytes);
    }
  }
}

// The conformance of pool_rows: what every device has to compute.
TEST_F(CudaDeviceTest, PoolsRowsAsTheDefinitionReads) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200 && !HasFailure(); ++i) {
    const PoolCase c = RandomPoolCase(random);
    SCOPED_TRACE(c.ToText());
    std::vector<std::pair<void*, size_t>> blocks;
    const auto put = [&](const auto& values) {
      using T = typename std::decay_t<decltype(values)>::value_type;
      if (values.empty()) return static_cast<T*>(nullptr);
      T* const data = OnDevice(values);
      blocks.emplace_back(data, values.size() * sizeof(T));
      return data;
    };
    std::byte* const table = put(c.table);
    std::byte* const out = put(c.out);
    ASSERT_THAT(runtime_->PoolRows(stream_, c.At({.table = table,
                                                  .out = out,
                                                  .rows = put(c.RowsFor(table)),
                                                  .ends = put(c.ends),
                                                  .divisors = put(c.divisors),
                                                  .weights = put(c.weights)})),
                IsOk());
    ASSERT_THAT(runtime_->Synchronize(stream_), IsOk());
    EXPECT_EQ(FindDifference(c, FromDevice(out, c.out.size())), -1);
    for (const auto& [data, bytes] : blocks) Free(data, bytes);
  }
  EXPECT_THAT(
      runtime_->PoolRows(stream_, {.mode = DeviceRowPooling::Mode::kNone,
                                   .row_alignment = 2,
                                   .columns = 1,
                                   .bags = 1}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "memory that is not aligned to its elements"));
}

TEST_F(CudaDeviceTest, DrawsTheNumbersOfTheHost) {
  for (const DType dtype :
       {DType::kFloat64, DType::kFloat16, DType::kComplex64}) {
    SCOPED_TRACE(Name(dtype));
    Generator on_host(7), on_device(7);
    const Tensor expected = Rand({33, 17}, {.dtype = dtype}, on_host).value();
    const Tensor drawn =
        Rand({33, 17}, {.dtype = dtype, .device = {DeviceType::kCuda, 0}},
             on_device)
            .value();
    EXPECT_TRUE(expected.BitwiseEqual(drawn.To(Device()).value()));
    EXPECT_EQ(on_host.GetState(), on_device.GetState());
  }
}

TEST_F(CudaDeviceTest, FreedMemoryIsKeptUntilItIsTrimmed) {
  ASSERT_THAT(runtime_->Trim(), IsOk());
  const DeviceMemoryStatistics before = runtime_->MemoryStatistics(0).value();
  constexpr size_t kBytes = size_t{8} << 20;
  void* const data = OnDevice(std::vector<char>(kBytes));
  EXPECT_GE(runtime_->MemoryStatistics(0).value().live_bytes,
            before.live_bytes + kBytes);
  Free(data, kBytes);
  ASSERT_THAT(runtime_->Synchronize(DefaultStream(0)), IsOk());
  const DeviceMemoryStatistics kept = runtime_->MemoryStatistics(0).value();
  EXPECT_EQ(kept.live_bytes, before.live_bytes);
  EXPECT_GE(kept.cached_bytes, kBytes);
  ASSERT_THAT(runtime_->Trim(), IsOk());
  EXPECT_LT(runtime_->MemoryStatistics(0).value().cached_bytes, kBytes);
}

TEST_F(CudaDeviceTest, DevicesReachEachOther) {
  if (runtime_->DeviceCount().value() < 2) GTEST_SKIP() << "one device";
  const bool reaches = runtime_->Reach(0, 1).value();
  const std::vector<int32_t> values = Iota(1000, 5);
  int32_t* const src = OnDevice(values, 1);
  int32_t* const dst = OnDevice(std::vector<int32_t>(1000), 0);
  ASSERT_THAT(runtime_->CopyBytes(stream_, dst, src, 4000), IsOk());
  ASSERT_THAT(runtime_->Synchronize(stream_), IsOk());
  EXPECT_EQ(FromDevice(dst, 1000), values);

  if (reaches) {
    const std::vector<int64_t> sizes = {10, 100};
    const std::vector<int64_t> dst_strides = {100, 1};
    const std::vector<int64_t> src_strides = {1, 10};
    const DeviceCopy copy = {.dst = dst,
                             .dst_strides = dst_strides,
                             .src = src,
                             .src_strides = src_strides,
                             .sizes = sizes,
                             .element_size = 4};
    ASSERT_THAT(runtime_->Copy(stream_, {&copy, 1}), IsOk());
    ASSERT_THAT(runtime_->Synchronize(stream_), IsOk());
    EXPECT_EQ(FromDevice(dst, 1000)[101], values[11]);
    EXPECT_EQ(FromDevice(dst, 1000)[1], values[10]);
  }
  Free(src, 4000, 1);
  Free(dst, 4000, 0);
}

TEST_F(CudaDeviceTest, ThreadsKeepTheirDevice) {
  const int last = runtime_->DeviceCount().value() - 1;
  std::thread([&] {
    ASSERT_THAT(runtime_->SetCurrentDevice(last), IsOk());
    void* const data = OnDevice(Iota(10), 0);
    EXPECT_EQ(runtime_->CurrentDevice().value(), last);
    Free(data, 40);
    EXPECT_EQ(runtime_->CurrentDevice().value(), last);
  }).join();
  EXPECT_EQ(runtime_->CurrentDevice().value(), 0);
}

TEST_F(CudaDeviceTest, RangesNest) {
  runtime_->PushRange("outer");
  runtime_->PushRange("inner");
  runtime_->PopRange();
  runtime_->PopRange();
}

std::string ToText(const DeviceMemoryHandle& handle) {
  return absl::BytesToHexString(
      {reinterpret_cast<const char*>(handle.words.data()),
       sizeof(handle.words)});
}

TEST_F(CudaDeviceTest, OtherProcessesReachSharedMemory) {
  Allocator& shared = *runtime_->SharedMemoryOf(0).value();
  auto* const data = static_cast<int32_t*>(shared.Allocate(4000, 256).value());
  const std::vector<int32_t> values = Iota(1000);
  ASSERT_THAT(runtime_->CopyBytes(stream_, data, values.data(), 4000), IsOk());
  ASSERT_THAT(runtime_->Synchronize(stream_), IsOk());
  const DeviceMemoryHandle handle =
      runtime_->Export(0, data + 100, 400).value();
  EXPECT_EQ(RunOther("CudaDeviceTest.DISABLED_OtherProcess", ToText(handle)),
            0);
  std::vector<int32_t> expected = values;
  std::fill(expected.begin() + 100, expected.begin() + 200, 42);
  EXPECT_EQ(FromDevice(data, 1000), expected);
  shared.Deallocate(data, 4000);
}

TEST_F(CudaDeviceTest, DISABLED_OtherProcess) {
  DeviceMemoryHandle handle;
  const std::string bytes = absl::HexStringToBytes(given_handle);
  ASSERT_EQ(bytes.size(), sizeof(handle.words));
  std::memcpy(handle.words.data(), bytes.data(), bytes.size());
  auto* const data = static_cast<int32_t*>(runtime_->Import(0, handle).value());
  EXPECT_EQ(runtime_->Import(0, handle).value(), data);
  EXPECT_EQ(FromDevice(data, 100), Iota(100, 100));
  const int64_t sizes[] = {100};
  const int64_t strides[] = {1};
  const int32_t value = 42;
  ASSERT_THAT(runtime_->Fill(stream_, {.data = data,
                                       .strides = strides,
                                       .sizes = sizes,
                                       .element_size = 4,
                                       .value = &value}),
              IsOk());
  ASSERT_THAT(runtime_->Synchronize(stream_), IsOk());
  runtime_->Close(0, data);
  runtime_->Close(0, data);

  // Nothing can be opened with these.
  DeviceMemoryHandle beyond = handle;
  beyond.words[10] = uint64_t{1} << 40;
  EXPECT_THAT(runtime_->Import(0, beyond),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(runtime_->Import(0, DeviceMemoryHandle()),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(CudaDeviceTest, MemoryOfPoolsIsNotExported) {
  void* const data = OnDevice(Iota(10));
  EXPECT_THAT(
      runtime_->Export(0, data, 40),
      StatusIs(absl::StatusCode::kUnimplemented, "other processes cannot"));
  Free(data, 40);
}

TEST_F(CudaDeviceTest, AFailedKernelOfTheCallersIsAnErrorAndNoEnd) {
  EXPECT_EQ(RunOther("CudaDeviceTest.DISABLED_FailedKernel"), 0);
}

TEST_F(CudaDeviceTest, DISABLED_FailedKernel) {
  int32_t* const data = OnDevice(Iota(100));
  const std::vector<int64_t> sizes = {10, 10};
  const std::vector<int64_t> strides = {10, 1};
  const std::vector<int64_t> turned = {1, 10};
  DeviceCopy copy = {.dst = data,
                     .dst_strides = strides,
                     .src = data,
                     .src_strides = turned,
                     .sizes = sizes,
                     .element_size = 4};
  if (is_emulated()) {
    ASSERT_EQ(driver_.set_faults("cuLaunchKernel:1:break=700"), 0);
  } else {
    copy.src = reinterpret_cast<void*>(uintptr_t{0x1000});
  }
  ASSERT_THAT(runtime_->Copy(stream_, {&copy, 1}), IsOk());
  const absl::Status status = runtime_->Synchronize(stream_);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               "CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
  EXPECT_THAT(status.message(), HasSubstr("restart the process"));
  // And nothing works any more, without an end in sight.
  EXPECT_THAT(runtime_->CopyBytes(stream_, data, data + 50, 40),
              StatusIs(absl::StatusCode::kFailedPrecondition, "700"));
  EXPECT_THAT(runtime_->MemoryOf(0).value()->Allocate(8, 8),
              StatusIs(absl::StatusCode::kFailedPrecondition, "700"));
  Free(data, 400);
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

}  // namespace
}  // namespace sherd

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--handle=")) {
      sherd::given_handle = std::string(argument);
    }
  }
  return RUN_ALL_TESTS();
}
