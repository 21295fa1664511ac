#include "sherd/backends/host/device_loader.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/backends/device_abi.h"
#include "sherd/backends/host/plugin_host.h"
#include "sherd/core/base/file.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kTinyPlugin[] = "backends/libsherd_device_tiny_device.so";
constexpr absl::StatusCode kUnusable = absl::StatusCode::kFailedPrecondition;
constexpr Device kFirst = {DeviceType::kCuda, 0};

class DeviceLoaderTest : public ::testing::Test {
 protected:
  DeviceLoaderTest() {
    EXPECT_THAT(files_.CreateDirectories(directory_), IsOk());
  }

  absl::StatusOr<std::unique_ptr<DeviceRuntime>> LoadTrial(
      const std::string& contents) {
    const std::string path =
        JoinPath(directory_, DevicePluginFileName("trial"));
    EXPECT_THAT(WriteFileAtomically(
                    files_, path,
                    absl::MakeConstSpan(
                        reinterpret_cast<const std::byte*>(contents.data()),
                        contents.size())),
                IsOk());
    return LoadDevice("trial", {directory_});
  }

  std::string Contents(const std::string& path) {
    const auto contents = ReadFile(files_, path, int64_t{1} << 30);
    EXPECT_THAT(contents, IsOk());
    return contents.ok() ? *contents : std::string();
  }

  FileSystem& files_ = FileSystem::Posix();
  const std::string directory_ =
      JoinPath(::testing::TempDir(),
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(DeviceLoaderTest, LoadsAPluginFromAFile) {
  const auto device = LoadDevicePlugin(kTinyPlugin);
  ASSERT_THAT(device, IsOk());
  EXPECT_EQ((*device)->type(), DeviceType::kCuda);
  EXPECT_EQ((*device)->origin(), kTinyPlugin);
  EXPECT_THAT((*device)->Probe(), IsOk());
  EXPECT_EQ((*device)->DeviceCount().value(), 2);
}

TEST_F(DeviceLoaderTest, PrefersPluginsThatAreLinkedStatically) {
  const auto device = LoadDevice("tiny_device", {"backends"});
  ASSERT_THAT(device, IsOk());
  EXPECT_EQ((*device)->origin(), "linked statically");
}

// No plugin is called "cuda" here.
TEST_F(DeviceLoaderTest, InstallsItselfAsTheLoaderOfDeviceRuntime) {
  EXPECT_THAT(
      DeviceRuntime::For(DeviceType::kCuda),
      StatusIs(absl::StatusCode::kNotFound,
               AllOf(HasSubstr("There is no device plugin cuda. It is not "
                               "linked statically, and these do not exist: "),
                     HasSubstr("/libsherd_device_cuda.so"),
                     HasSubstr("Set SHERD_PLUGIN_PATH"))));
}

TEST_F(DeviceLoaderTest, AMissingPluginListsThePathsTried) {
  EXPECT_THAT(LoadDevice("cuda", {"/a", "/b"}),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("There is no device plugin cuda"),
                             HasSubstr("/a/libsherd_device_cuda.so, "
                                       "/b/libsherd_device_cuda.so"),
                             HasSubstr("SHERD_PLUGIN_PATH"))));
}

TEST_F(DeviceLoaderTest, ANameCannotLeaveTheDirectory) {
  for (const char* name : {"", "../x", "a/b", "A", "x y"}) {
    EXPECT_THAT(LoadDevice(name, {directory_}),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << name;
  }
}

TEST_F(DeviceLoaderTest, RefusesEmptyAndTextFiles) {
  EXPECT_THAT(LoadTrial(""), StatusIs(kUnusable, "only 0 bytes"));
  EXPECT_THAT(LoadTrial(std::string(4096, 'x')),
              StatusIs(kUnusable, "does not begin as an ELF file"));
}

TEST_F(DeviceLoaderTest, RefusesAPluginCutAnywhere) {
  const std::string whole = Contents(kTinyPlugin);
  for (size_t size = 64; size < whole.size(); size += whole.size() / 23) {
    const auto device = LoadTrial(whole.substr(0, size));
    ASSERT_FALSE(device.ok()) << "cut to " << size << " bytes";
    EXPECT_EQ(device.status().code(), kUnusable);
  }
}

TEST_F(DeviceLoaderTest, RefusesAnotherMachinesFile) {
  std::string other = Contents(kTinyPlugin);
  other[18] = 0x08;  // e_machine: MIPS
  other[19] = 0;
  EXPECT_THAT(LoadTrial(other),
              StatusIs(kUnusable, "not a shared object for this machine"));
}

TEST_F(DeviceLoaderTest, RefusesAFileWithAnotherPluginInIt) {
  EXPECT_THAT(LoadTrial(Contents(kTinyPlugin)),
              StatusIs(kUnusable,
                       "holds the device plugin \"tiny_device\", "
                       "expected \"trial\""));
}

struct BadDevice {
  int number;
  const char* message;
};

class BadDeviceTest : public ::testing::TestWithParam<BadDevice> {};

TEST_P(BadDeviceTest, IsRefusedWithItsReason) {
  EXPECT_THAT(LoadDevicePlugin(absl::StrCat("backends/libbad_device_",
                                            GetParam().number, ".so")),
              StatusIs(kUnusable, GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadDeviceTest,
    ::testing::Values(
        BadDevice{
            1,
            "libbad_device_1.so: built for plugin ABI 1.8, expected "
            "0.8, that of this program; rebuild the plugin against this Sherd"},
        BadDevice{2, "table has 32 bytes"},
        BadDevice{3, "reports that it cannot work with plugin ABI 0.8"},
        BadDevice{4,
                  "lacks its name, a type of device that is known, or a "
                  "function"},
        BadDevice{5, "threw an exception across the plugin ABI: no licence"},
        BadDevice{6, "undefined symbol: sherd_a_function_that_nobody_has"},
        BadDevice{7, "built for plugin ABI 0.7, expected 0.8"},
        BadDevice{8, "built for plugin ABI 0.9, expected 0.8"}),
    [](const auto& info) { return absl::StrCat(info.param.number); });

// A plugin of collectives under the name of one of devices.
TEST_F(DeviceLoaderTest, RefusesAPluginWithoutTheEntry) {
  EXPECT_THAT(LoadDevicePlugin("backends/libbad_plugin_1.so"),
              StatusIs(kUnusable,
                       "is not a Sherd plugin: it does not export "
                       "sherd_get_device_v0"));
}

// The results of the plugin under test.
struct Script {
  sherd_code code = SHERD_OK;
  const char* text = "";
  int32_t count = 2;
  // The address that is returned.
  void* address = nullptr;
  int32_t number = 0;
};
Script script;

sherd_code Return(sherd_error_v0* error) {
  std::strncpy(error->text, script.text, sizeof(error->text) - 1);
  return script.code;
}

sherd_code ReturnAddress(void** address, sherd_error_v0* error) {
  *address = script.address;
  return Return(error);
}

sherd_code ReturnNumber(int32_t* number, sherd_error_v0* error) {
  *number = script.number;
  return Return(error);
}

using Error = sherd_error_v0*;

// A table that is whole; tests take something out of it.
sherd_device_v0 WholeTable() {
  sherd_device_v0 t = {};
  t.struct_size = sizeof(t);
  t.major = SHERD_ABI_MAJOR;
  t.minor = SHERD_ABI_MINOR;
  t.name = "whole";
  t.device_type = 1;
  t.probe = Return;
  t.count = [](int32_t* devices, Error) -> sherd_code {
    *devices = script.count;
    return SHERD_OK;
  };
  t.describe = [](int32_t, sherd_device_info_v0*, Error e) {
    return Return(e);
  };
  t.get_current = ReturnNumber;
  t.set_current = [](int32_t, Error e) { return Return(e); };
  t.allocate = [](int32_t, uint64_t, void*, void** data, Error e) {
    return ReturnAddress(data, e);
  };
  t.deallocate = [](int32_t, void*, uint64_t, void*, Error e) {
    return Return(e);
  };
  t.allocate_pinned = [](uint64_t, void** data, Error e) {
    return ReturnAddress(data, e);
  };
  t.deallocate_pinned = [](void*, uint64_t, Error e) { return Return(e); };
  t.locate = [](const void*, int32_t* device, Error e) {
    return ReturnNumber(device, e);
  };
  t.create_stream = [](int32_t, int32_t, void** stream, Error e) {
    return ReturnAddress(stream, e);
  };
  t.destroy_stream = [](int32_t, void*, Error e) { return Return(e); };
  t.is_capturing = [](int32_t, void*, int32_t* capturing, Error e) {
    return ReturnNumber(capturing, e);
  };
  t.take_event = [](int32_t, void** event, Error e) {
    return ReturnAddress(event, e);
  };
  t.return_event = [](int32_t, void*) {};
  t.record_event = [](int32_t, void*, void*, Error e) { return Return(e); };
  t.wait_event = [](int32_t, void*, void*, Error e) { return Return(e); };
  t.query_event = [](void*, Error e) { return Return(e); };
  t.copy_bytes = [](int32_t, void*, void*, const void*, uint64_t, Error e) {
    return Return(e);
  };
  t.copy = [](int32_t, void*, const sherd_strided_copy_v0*, uint64_t, Error e) {
    return Return(e);
  };
  t.fill = [](int32_t, void*, const sherd_fill_v0*, Error e) {
    return Return(e);
  };
  return t;
}

struct Lack {
  const char* name;
  void (*take)(sherd_device_v0&);
  const char* message = "lacks its name, a type of device that is known, or a";
};

class DeviceTableTest : public ::testing::TestWithParam<Lack> {};

TEST_P(DeviceTableTest, IsRefusedWithTheExpectation) {
  sherd_device_v0 table = WholeTable();
  ASSERT_THAT(AdaptDevice(&table, "x.so"), IsOk());
  GetParam().take(table);
  EXPECT_THAT(AdaptDevice(&table, "x.so"),
              StatusIs(kUnusable, AllOf(HasSubstr("x.so: "),
                                        HasSubstr(GetParam().message))));
}

INSTANTIATE_TEST_SUITE_P(
    All, DeviceTableTest,
    ::testing::Values(
        Lack{"NoSize", [](auto& t) { t.struct_size = 0; }, "table has 0 bytes"},
        Lack{"AByteShort", [](auto& t) { --t.struct_size; }},
        Lack{"AByteTooMany", [](auto& t) { ++t.struct_size; }},
        Lack{"AnotherMajorVersion", [](auto& t) { t.major = 7; },
             "built for plugin ABI 7.8, expected 0.8"},
        Lack{"AnOlderMinorVersion", [](auto& t) { --t.minor; },
             "built for plugin ABI 0.7, expected 0.8"},
        Lack{"ANewerMinorVersion", [](auto& t) { ++t.minor; },
             "built for plugin ABI 0.9, expected 0.8"},
        Lack{"NoName", [](auto& t) { t.name = nullptr; }},
        Lack{"AnEmptyName", [](auto& t) { t.name = ""; }},
        Lack{"APathAsName", [](auto& t) { t.name = "../x"; }},
        Lack{"HostMemory", [](auto& t) { t.device_type = 0; }},
        Lack{"AnUnknownType", [](auto& t) { t.device_type = 99; }},
        Lack{"NoProbe", [](auto& t) { t.probe = nullptr; }},
        Lack{"NoCount", [](auto& t) { t.count = nullptr; }},
        Lack{"NoDescribe", [](auto& t) { t.describe = nullptr; }},
        Lack{"NoGetCurrent", [](auto& t) { t.get_current = nullptr; }},
        Lack{"NoSetCurrent", [](auto& t) { t.set_current = nullptr; }},
        Lack{"NoAllocate", [](auto& t) { t.allocate = nullptr; }},
        Lack{"NoDeallocate", [](auto& t) { t.deallocate = nullptr; }},
        Lack{"NoAllocatePinned", [](auto& t) { t.allocate_pinned = nullptr; }},
        Lack{"NoDeallocatePinned",
             [](auto& t) { t.deallocate_pinned = nullptr; }},
        Lack{"NoLocate", [](auto& t) { t.locate = nullptr; }},
        Lack{"NoCreateStream", [](auto& t) { t.create_stream = nullptr; }},
        Lack{"NoDestroyStream", [](auto& t) { t.destroy_stream = nullptr; }},
        Lack{"NoIsCapturing", [](auto& t) { t.is_capturing = nullptr; }},
        Lack{"NoTakeEvent", [](auto& t) { t.take_event = nullptr; }},
        Lack{"NoReturnEvent", [](auto& t) { t.return_event = nullptr; }},
        Lack{"NoRecordEvent", [](auto& t) { t.record_event = nullptr; }},
        Lack{"NoWaitEvent", [](auto& t) { t.wait_event = nullptr; }},
        Lack{"NoQueryEvent", [](auto& t) { t.query_event = nullptr; }},
        Lack{"NoCopyBytes", [](auto& t) { t.copy_bytes = nullptr; }},
        Lack{"NoCopy", [](auto& t) { t.copy = nullptr; }},
        Lack{"NoFill", [](auto& t) { t.fill = nullptr; }},
        Lack{"HalfOfShared",
             [](auto& t) {
               t.deallocate_shared = [](int32_t, void*, uint64_t, Error e) {
                 return Return(e);
               };
             }},
        Lack{"HalfOfExport",
             [](auto& t) { t.close_memory = [](int32_t, void*) {}; }},
        Lack{"HalfOfRanges", [](auto& t) { t.pop_range = [] {}; }}),
    [](const auto& info) { return info.param.name; });

class PluginDeviceTest : public ::testing::Test {
 protected:
  PluginDeviceTest() { script = {}; }

  DeviceRuntime& Adapt() {
    auto device = AdaptDevice(&table_, "x.so");
    EXPECT_THAT(device, IsOk());
    device_ = *std::move(device);
    return *device_;
  }

  sherd_device_v0 table_ = WholeTable();
  std::unique_ptr<DeviceRuntime> device_;
  const DeviceStream stream_ = {kFirst, nullptr};
};

struct Outcome {
  sherd_code code;
  absl::StatusCode expected;
};

TEST_F(PluginDeviceTest, CodesBecomeStatuses) {
  DeviceRuntime& device = Adapt();
  char memory[8];
  for (const Outcome& outcome :
       {Outcome{SHERD_RESOURCE, absl::StatusCode::kResourceExhausted},
        Outcome{SHERD_UNSUPPORTED, absl::StatusCode::kUnimplemented},
        Outcome{SHERD_INVALID_ARGUMENT, absl::StatusCode::kInvalidArgument},
        Outcome{SHERD_SYSTEM, absl::StatusCode::kFailedPrecondition},
        Outcome{SHERD_TIMEOUT, absl::StatusCode::kDeadlineExceeded},
        Outcome{SHERD_INTERNAL, absl::StatusCode::kInternal},
        Outcome{77, absl::StatusCode::kInternal}}) {
    script.code = outcome.code;
    script.text = "what happened";
    EXPECT_THAT(device.CopyBytes(stream_, memory, memory + 4, 4),
                StatusIs(outcome.expected, "what happened"));
    EXPECT_THAT(device.Probe(),
                StatusIs(absl::StatusCode::kUnavailable,
                         "no cuda device can be used: what happened"));
    EXPECT_FALSE(device.QueryEvent(memory).ok());
  }
  script.code = SHERD_IN_PROGRESS;
  EXPECT_FALSE(device.QueryEvent(memory).value());
  script.code = SHERD_OK;
  EXPECT_TRUE(device.QueryEvent(memory).value());
}

TEST_F(PluginDeviceTest, ADeviceThatIsNotThereNeverReachesThePlugin) {
  DeviceRuntime& device = Adapt();
  script.code = SHERD_INTERNAL;
  const DeviceStream stream = {{DeviceType::kCuda, 2}, nullptr};
  char memory[8];
  const absl::Status expected = device.MemoryOf(2).status();
  EXPECT_THAT(expected, StatusIs(absl::StatusCode::kOutOfRange,
                                 "there are cuda:0 to cuda:1"));
  EXPECT_EQ(device.Properties(2).status(), expected);
  EXPECT_EQ(device.SetCurrentDevice(2), expected);
  EXPECT_EQ(device.CreateStream(2).status(), expected);
  EXPECT_EQ(device.TakeEvent(2).status(), expected);
  EXPECT_EQ(device.IsCapturing(stream).status(), expected);
  EXPECT_EQ(device.RecordEvent(memory, stream), expected);
  EXPECT_EQ(device.WaitEvent(stream, memory), expected);
  EXPECT_EQ(device.CopyBytes(stream, memory, memory + 4, 4), expected);
  EXPECT_EQ(device.Copy(stream, {}), expected);
  EXPECT_EQ(device.Reach(0, 2).status(), expected);
  EXPECT_EQ(device.Properties(-1).status().code(),
            absl::StatusCode::kOutOfRange);
}

TEST_F(PluginDeviceTest, NullResultsWithoutAnErrorAreInternalErrors) {
  DeviceRuntime& device = Adapt();
  EXPECT_THAT(
      Storage::Allocate(8, *device.MemoryOf(0).value()),
      StatusIs(absl::StatusCode::kInternal, "returned no memory and no error"));
  EXPECT_THAT(Storage::Allocate(8, *device.PinnedMemory()),
              StatusIs(absl::StatusCode::kInternal, "no pinned memory"));
  EXPECT_THAT(device.CreateStream(0),
              StatusIs(absl::StatusCode::kInternal, "no stream and no error"));
  EXPECT_THAT(device.TakeEvent(0),
              StatusIs(absl::StatusCode::kInternal, "no event and no error"));
}

TEST_F(PluginDeviceTest, ANumberOfDevicesThatCannotBeIsAnError) {
  for (const int32_t count : {-1, 1 << 30}) {
    script.count = count;
    EXPECT_THAT(Adapt().MemoryOf(0),
                StatusIs(absl::StatusCode::kInternal, absl::StrCat(count)));
  }
  script.count = 0;
  EXPECT_THAT(Adapt().MemoryOf(0),
              StatusIs(absl::StatusCode::kOutOfRange, "there is none"));
}

TEST_F(PluginDeviceTest, FunctionsThatThrowAreErrors) {
  table_.probe = [](Error) -> sherd_code {
    throw std::runtime_error("planted");
  };
  table_.fill = [](int32_t, void*, const sherd_fill_v0*, Error) -> sherd_code {
    throw 7;
  };
  table_.return_event = [](int32_t, void*) { throw 7; };
  DeviceRuntime& device = Adapt();
  EXPECT_THAT(device.Probe(), StatusIs(absl::StatusCode::kUnavailable,
                                       "the plugin ABI: planted"));
  device.ReturnEvent(0, nullptr);
  const int64_t one = 1;
  char byte = 0;
  EXPECT_THAT(device.Fill(stream_, {.data = &byte,
                                    .strides = {&one, 1},
                                    .sizes = {&one, 1},
                                    .element_size = 1,
                                    .value = &byte}),
              StatusIs(absl::StatusCode::kInternal, "threw an exception"));
}

TEST_F(PluginDeviceTest, MissingEntriesOfAPluginAreUnimplementedOrNothing) {
  DeviceRuntime& device = Adapt();
  constexpr absl::StatusCode kUnimplemented = absl::StatusCode::kUnimplemented;
  EXPECT_EQ(device.library_version(), "");
  EXPECT_THAT(device.Trim(), IsOk());
  EXPECT_THAT(device.MemoryStatistics(0),
              StatusIs(kUnimplemented, "the device plugin whole has no"));
  EXPECT_THAT(device.FillRandom(stream_, {}), StatusIs(kUnimplemented));
  EXPECT_THAT(device.Reduce(stream_, kFloat32, 0, nullptr, {}, 1, 1),
              StatusIs(kUnimplemented));
  EXPECT_THAT(device.PoolRows(stream_, {.columns = 1, .bags = 1}),
              StatusIs(kUnimplemented));
  EXPECT_THAT(device.Export(0, nullptr, 1), StatusIs(kUnimplemented));
  EXPECT_THAT(device.Import(0, {}), StatusIs(kUnimplemented));
  EXPECT_THAT(Storage::Allocate(8, *device.SharedMemoryOf(0).value()),
              StatusIs(kUnimplemented));
  EXPECT_TRUE(device.Reach(1, 1).value());
  EXPECT_FALSE(device.Reach(0, 1).value());
  device.Close(0, nullptr);
  device.PushRange("x");
  device.PopRange();
}

TEST_F(PluginDeviceTest, ReportsWhereMemoryIs) {
  DeviceRuntime& device = Adapt();
  script.number = 1;
  EXPECT_EQ(device.Locate(&device).value(), (Device{DeviceType::kCuda, 1}));
  script.number = -1;
  EXPECT_EQ(device.Locate(&device).value(), Device());
  script.number = -2;
  EXPECT_EQ(device.Locate(&device).value(), std::nullopt);
}

// Boxes without elements never reach the plugin.
TEST_F(PluginDeviceTest, BoxesWithoutElementsDoNotReachThePlugin) {
  script.code = SHERD_INTERNAL;
  DeviceRuntime& device = Adapt();
  const int64_t none[] = {4, 0};
  const DeviceCopy copy = {
      .dst_strides = none, .src_strides = none, .sizes = none};
  EXPECT_THAT(device.Copy(stream_, {&copy, 1}), IsOk());
  EXPECT_THAT(device.Fill(stream_, {.strides = none, .sizes = none}), IsOk());
  EXPECT_THAT(device.CopyBytes(stream_, nullptr, nullptr, 0), IsOk());
}

TEST(ReportDevicesTest, ListsPluginsAndTheirDevices) {
  const std::vector<DevicePluginReport> reports = ReportDevices();
  // Linked in, and the file beside this program.
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[1].name, "tiny_device");
  EXPECT_THAT(reports[1].origin, HasSubstr(kTinyPlugin));
  const DevicePluginReport& report = reports[0];
  EXPECT_EQ(report.name, "tiny_device");
  EXPECT_EQ(report.origin, "linked statically");
  EXPECT_EQ(report.library_version, "tiny driver from 'libother.so'");
  EXPECT_THAT(report.status, IsOk());
  ASSERT_EQ(report.devices.size(), 2u);
  EXPECT_EQ(report.devices[0].device, kFirst);
  ASSERT_THAT(report.devices[0].properties, IsOk());
  EXPECT_EQ(report.devices[0].properties->name, std::string(96, 'n'));
  EXPECT_EQ(report.devices[0].properties->bus_id, "0000:01:00.0");
  EXPECT_EQ(report.devices[0].properties->free_bytes, 1024u);
  EXPECT_THAT(report.devices[1].properties,
              StatusIs(kUnusable, "fell off the bus"));
}

// Services of the host for plugins.
TEST(PluginHostTest, GivesSettingsByName) {
  const sherd_host_v0& host = internal::PluginHost();
  char value[16] = "unchanged";
  EXPECT_EQ(host.setting("no_such_setting", value, sizeof(value)),
            SHERD_UNSUPPORTED);
  EXPECT_STREQ(value, "unchanged");
  // Not set.
  EXPECT_EQ(host.setting("nccl_library", value, sizeof(value)), SHERD_OK);
  EXPECT_STREQ(value, "");
  EXPECT_EQ(host.setting("nccl_library", value, 0), SHERD_RESOURCE);
  EXPECT_EQ(host.setting("cuda_library", value, sizeof("libother.so") - 1),
            SHERD_RESOURCE);
  EXPECT_EQ(host.setting("cuda_library", value, sizeof("libother.so")),
            SHERD_OK);
  EXPECT_STREQ(value, "libother.so");
}

}  // namespace
}  // namespace sherd
