#include "sherd/backends/host/loader.h"

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/process/process_identity.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Paths of data files are relative to the directory that Bazel starts tests in.
constexpr char kGlooPlugin[] = "backends/gloo/libsherd_backend_gloo.so";

absl::Span<const std::byte> AsBytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// Writes a file that a loader may find under the name "trial".
class LoaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_THAT(files_.RemoveAll(directory_), IsOk());
    ASSERT_THAT(files_.CreateDirectories(directory_), IsOk());
  }

  absl::StatusOr<std::unique_ptr<Backend>> LoadTrial(
      const std::string& contents) {
    SHERD_RETURN_IF_ERROR(WriteFileAtomically(
        files_, JoinPath(directory_, PluginFileName("trial")),
        AsBytes(contents)));
    return LoadBackend("trial", {directory_});
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

TEST_F(LoaderTest, LoadsAPluginFromAFile) {
  const auto backend = LoadBackend("gloo", {"backends/gloo"});
  ASSERT_THAT(backend, IsOk());
  EXPECT_EQ((*backend)->info().name, "gloo");
  EXPECT_EQ((*backend)->info().origin, kGlooPlugin);
  EXPECT_FALSE((*backend)->info().ranks_are_threads);
  EXPECT_THAT((*backend)->Probe(), IsOk());
}

TEST_F(LoaderTest, PrefersPluginsThatAreLinkedStatically) {
  const auto backend = LoadBackend("local", {directory_});
  ASSERT_THAT(backend, IsOk());
  EXPECT_EQ((*backend)->info().origin, "linked statically");
  EXPECT_TRUE((*backend)->info().ranks_are_threads);
}

TEST_F(LoaderTest, InstallsItselfInTheRegistry) {
  const auto backend = BackendRegistry::Global().Find("local");
  ASSERT_THAT(backend, IsOk());
  EXPECT_EQ((*backend)->info().name, "local");
  EXPECT_THAT(BackendRegistry::Global().Find("nosuch"),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(LoaderTest, AMissingPluginListsThePathsTried) {
  EXPECT_THAT(LoadBackend("hccl", {"/a", "/b"}),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("Backend hccl not supported!"),
                             HasSubstr("/a/libsherd_backend_hccl.so, "
                                       "/b/libsherd_backend_hccl.so"),
                             HasSubstr("SHERD_PLUGIN_PATH"))));
}

TEST_F(LoaderTest, ANameCannotLeaveTheDirectory) {
  for (const char* name : {"", "../x", "a/b", "A", "x y"}) {
    EXPECT_THAT(LoadBackend(name, {directory_}),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << name;
  }
}

TEST_F(LoaderTest, RefusesEmptyAndTextFiles) {
  EXPECT_THAT(LoadTrial(""), StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("only 0 bytes")));
  EXPECT_THAT(LoadTrial(std::string(4096, 'x')),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("does not begin as an ELF file")));
}

TEST_F(LoaderTest, RefusesAPluginCutAnywhere) {
  const std::string whole = Contents(kGlooPlugin);
  for (size_t size = 64; size < whole.size(); size += whole.size() / 37) {
    const auto backend = LoadTrial(whole.substr(0, size));
    ASSERT_FALSE(backend.ok()) << "cut to " << size << " bytes";
    EXPECT_EQ(backend.status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST_F(LoaderTest, RefusesAnotherMachinesFile) {
  std::string other = Contents(kGlooPlugin);
  other[18] = 0x08;  // e_machine: MIPS
  other[19] = 0;
  EXPECT_THAT(LoadTrial(other),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("not a shared object for this machine")));
}

TEST_F(LoaderTest, RefusesAFileWithAnotherBackendInIt) {
  EXPECT_THAT(LoadTrial(Contents(kGlooPlugin)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("holds the backend \"gloo\"")));
}

struct BadPlugin {
  int number;
  const char* message;
};

class BadPluginTest : public ::testing::TestWithParam<BadPlugin> {};

TEST_P(BadPluginTest, IsRefusedWithItsReason) {
  EXPECT_THAT(LoadPlugin(absl::StrCat("backends/libbad_plugin_",
                                      GetParam().number, ".so")),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadPluginTest,
    ::testing::Values(
        BadPlugin{
            1,
            "libbad_plugin_1.so: built for plugin ABI 1.8, expected "
            "0.8, that of this program; rebuild the plugin against this Sherd"},
        BadPlugin{2, "table has 32 bytes"},
        BadPlugin{3, "reports that it cannot work with plugin ABI 0.8"},
        BadPlugin{4, "does not export sherd_get_plugin_v0"},
        BadPlugin{5, "lacks its name or a function"},
        BadPlugin{6, "threw an exception across the plugin ABI: no licence"},
        BadPlugin{7, "undefined symbol: sherd_a_function_that_nobody_has"},
        BadPlugin{8, "built for plugin ABI 0.7, expected 0.8"},
        BadPlugin{9, "built for plugin ABI 0.9, expected 0.8"}),
    [](const auto& info) { return absl::StrCat(info.param.number); });

TEST_F(LoaderTest, PluginsWithAClashingSymbolEachSeeTheirOwn) {
  for (const std::string name : {"a", "b"}) {
    const auto backend = LoadPlugin(
        absl::StrCat("backends/libsherd_backend_clashing_", name, ".so"));
    ASSERT_THAT(backend, IsOk());
    EXPECT_EQ((*backend)->info().library_version, "of plugin " + name);
  }
}

// A table that is whole; tests take something out of it.
sherd_plugin_v0 WholeTable() {
  sherd_plugin_v0 table = {};
  table.struct_size = sizeof(table);
  table.major = SHERD_ABI_MAJOR;
  table.minor = SHERD_ABI_MINOR;
  table.name = "whole";
  table.operations = 1u << SHERD_BARRIER | 1u << SHERD_ALL_TO_ALL_V;
  table.flags = SHERD_COMPLETES_IN_POST;
  table.probe = [](sherd_error_v0*) -> sherd_code { return SHERD_OK; };
  table.create = [](const sherd_comm_config_v0*, sherd_comm_v0**,
                    sherd_error_v0*) -> sherd_code { return SHERD_OK; };
  table.destroy = [](sherd_comm_v0*) {};
  table.post = [](sherd_comm_v0*, const sherd_op_v0*, sherd_request_v0*,
                  sherd_error_v0*) -> sherd_code { return SHERD_OK; };
  table.abort = [](sherd_comm_v0*) {};
  return table;
}

struct Lack {
  const char* name;
  void (*take)(sherd_plugin_v0&);
  const char* message;
};

class TableTest : public ::testing::TestWithParam<Lack> {};

TEST_P(TableTest, IsRefusedWithTheExpectation) {
  sherd_plugin_v0 table = WholeTable();
  ASSERT_THAT(AdaptPlugin(&table, "x.so"), IsOk());
  GetParam().take(table);
  EXPECT_THAT(
      AdaptPlugin(&table, "x.so"),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               AllOf(HasSubstr("x.so: "), HasSubstr(GetParam().message))));
}

constexpr char kLacks[] = "lacks its name or a function, expected ";

INSTANTIATE_TEST_SUITE_P(
    All, TableTest,
    ::testing::Values(
        Lack{"NoSize", [](auto& t) { t.struct_size = 0; }, "table has 0 bytes"},
        Lack{"HalfASize", [](auto& t) { t.struct_size = 64; },
             "table has 64 bytes"},
        Lack{"AByteShort", [](auto& t) { --t.struct_size; }, kLacks},
        Lack{"AByteTooMany", [](auto& t) { ++t.struct_size; }, kLacks},
        Lack{"AnotherMajorVersion", [](auto& t) { t.major = 7; },
             "built for plugin ABI 7.8, expected 0.8"},
        Lack{"AnOlderMinorVersion", [](auto& t) { --t.minor; },
             "built for plugin ABI 0.7, expected 0.8"},
        Lack{"ANewerMinorVersion", [](auto& t) { ++t.minor; },
             "built for plugin ABI 0.9, expected 0.8"},
        Lack{"NoName", [](auto& t) { t.name = nullptr; }, kLacks},
        Lack{"AnEmptyName", [](auto& t) { t.name = ""; }, kLacks},
        Lack{"APathAsName", [](auto& t) { t.name = "../x"; }, kLacks},
        Lack{"NoProbe", [](auto& t) { t.probe = nullptr; }, kLacks},
        Lack{"NoCreate", [](auto& t) { t.create = nullptr; }, kLacks},
        Lack{"NoDestroy", [](auto& t) { t.destroy = nullptr; }, kLacks},
        Lack{"NoPost", [](auto& t) { t.post = nullptr; }, kLacks},
        Lack{"NoAbort", [](auto& t) { t.abort = nullptr; }, kLacks},
        Lack{"NoTest", [](auto& t) { t.flags = 0; }, kLacks}),
    [](const auto& info) { return info.param.name; });

// The host uses a plugin's reductions only where they have a meaning, and its
// operations only if this host knows them.
TEST(TableTest, GarbageCapabilitiesAreIgnored) {
  sherd_plugin_v0 table = WholeTable();
  table.operations = ~uint64_t{0};
  for (uint32_t& reductions : table.reductions) reductions = ~0u;
  table.library_version = []() -> const char* { return nullptr; };
  const auto backend = AdaptPlugin(&table, "x.so");
  ASSERT_THAT(backend, IsOk());
  const BackendInfo& info = (*backend)->info();
  EXPECT_EQ(info.native.operations, (uint64_t{1} << SHERD_NUM_OPERATIONS) - 1);
  EXPECT_EQ(info.library_version, "");
}

sherd_memory_v0 WholeMemory() {
  sherd_memory_v0 memory = {};
  memory.struct_size = sizeof(memory);
  memory.allocate = [](uint64_t, uint64_t, void** data,
                       sherd_error_v0*) -> sherd_code {
    *data = nullptr;
    return SHERD_OK;
  };
  memory.deallocate = [](void*, uint64_t) {};
  memory.open_peers = [](sherd_comm_v0*, sherd_peers_v0** peers,
                         sherd_error_v0*) -> sherd_code {
    *peers = reinterpret_cast<sherd_peers_v0*>(64);
    return SHERD_OK;
  };
  memory.close_peers = [](sherd_peers_v0*) {};
  memory.export_memory = [](sherd_peers_v0*, const void*, uint64_t,
                            sherd_memory_handle_v0*,
                            sherd_error_v0*) -> sherd_code { return SHERD_OK; };
  memory.import_memory = [](sherd_peers_v0*, int32_t,
                            const sherd_memory_handle_v0*, sherd_bytes_v0*,
                            sherd_error_v0*) -> sherd_code { return SHERD_OK; };
  return memory;
}

struct MemoryLack {
  const char* name;
  void (*take)(sherd_memory_v0&);
};

class MemoryTableTest : public ::testing::TestWithParam<MemoryLack> {};

TEST_P(MemoryTableTest, IsRefusedWithTheExpectation) {
  sherd_plugin_v0 table = WholeTable();
  sherd_memory_v0 memory = WholeMemory();
  table.memory = &memory;
  ASSERT_THAT(AdaptPlugin(&table, "x.so"), IsOk());
  GetParam().take(memory);
  EXPECT_THAT(AdaptPlugin(&table, "x.so"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "x.so: the plugin's table for memory has"));
}

INSTANTIATE_TEST_SUITE_P(
    All, MemoryTableTest,
    ::testing::Values(
        MemoryLack{"AByteShort", [](auto& m) { --m.struct_size; }},
        MemoryLack{"NoAllocate", [](auto& m) { m.allocate = nullptr; }},
        MemoryLack{"NoDeallocate", [](auto& m) { m.deallocate = nullptr; }},
        MemoryLack{"NoOpen", [](auto& m) { m.open_peers = nullptr; }},
        MemoryLack{"NoClose", [](auto& m) { m.close_peers = nullptr; }},
        MemoryLack{"NoExport", [](auto& m) { m.export_memory = nullptr; }},
        MemoryLack{"NoImport", [](auto& m) { m.import_memory = nullptr; }}),
    [](const auto& info) { return info.param.name; });

// OK, and nothing given.
TEST(MemoryTableTest, MissingMemoryIsAnError) {
  sherd_plugin_v0 table = WholeTable();
  sherd_memory_v0 memory = WholeMemory();
  table.memory = &memory;
  table.create = [](const sherd_comm_config_v0*, sherd_comm_v0** comm,
                    sherd_error_v0*) -> sherd_code {
    *comm = reinterpret_cast<sherd_comm_v0*>(64);
    return SHERD_OK;
  };
  const auto backend = AdaptPlugin(&table, "x.so");
  ASSERT_THAT(backend, IsOk());
  EXPECT_THAT((*backend)->peer_memory_allocator()->Allocate(8, 8),
              StatusIs(absl::StatusCode::kInternal, "no memory and no error"));
  const auto communicator = (*backend)->CreateCommunicator({.size = 2});
  ASSERT_THAT(communicator, IsOk());
  const auto peers = (*communicator)->peer_memory();
  ASSERT_NE(peers, nullptr);
  EXPECT_THAT(peers->Import(1, {}),
              StatusIs(absl::StatusCode::kInternal, "imported nothing"));
  EXPECT_THAT(peers->Import(2, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "rank 2 is out of range, expected 0 to 1"));
  EXPECT_THAT((*backend)->OpenPeerMemory({}),
              StatusIs(absl::StatusCode::kUnimplemented, "within a group"));
  memory.open_processes = [](const sherd_process_v0*, int32_t, sherd_peers_v0**,
                             sherd_error_v0*) -> sherd_code {
    return SHERD_OK;
  };
  EXPECT_THAT((*backend)->OpenPeerMemory({}),
              StatusIs(absl::StatusCode::kInternal, "opened nothing"));
  memory.open_processes = [](const sherd_process_v0* processes, int32_t count,
                             sherd_peers_v0**,
                             sherd_error_v0* error) -> sherd_code {
    error->peer =
        count == 2 && processes[1].pid == 7 && processes[1].start_time == 8
            ? 1
            : -1;
    return SHERD_UNSUPPORTED;
  };
  const auto hidden = (*backend)->OpenPeerMemory(
      {ProcessIdentity(), ProcessIdentity{.pid = 7, .start_time = 8}});
  EXPECT_THAT(hidden, StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_EQ(ErrorRank(hidden.status()), 1);
  // A group works without it.
  memory.open_peers = [](sherd_comm_v0*, sherd_peers_v0**,
                         sherd_error_v0*) -> sherd_code { throw 7; };
  const auto alone = (*backend)->CreateCommunicator({.size = 2});
  ASSERT_THAT(alone, IsOk());
  EXPECT_EQ((*alone)->peer_memory(), nullptr);
}

// create returns OK without a communicator.
TEST(TableTest, ACommunicatorThatIsNotThereIsAnError) {
  sherd_plugin_v0 table = WholeTable();
  const auto backend = AdaptPlugin(&table, "x.so");
  ASSERT_THAT(backend, IsOk());
  EXPECT_THAT((*backend)->CreateCommunicator({.size = 2}),
              StatusIs(absl::StatusCode::kInternal, "no communicator"));
}

TEST(TableTest, FunctionsThatThrowAreErrors) {
  sherd_plugin_v0 table = WholeTable();
  table.probe = [](sherd_error_v0*) -> sherd_code {
    throw std::runtime_error("planted");
  };
  table.create = [](const sherd_comm_config_v0*, sherd_comm_v0**,
                    sherd_error_v0*) -> sherd_code { throw 7; };
  const auto backend = AdaptPlugin(&table, "x.so");
  ASSERT_THAT(backend, IsOk());
  EXPECT_THAT((*backend)->Probe(),
              StatusIs(absl::StatusCode::kInternal,
                       "exception across the plugin ABI: planted"));
  EXPECT_THAT(
      (*backend)->CreateCommunicator({.size = 2}),
      StatusIs(absl::StatusCode::kInternal, "exception across the plugin ABI"));
}

TEST(ReportPluginsTest, ListsStaticPluginsAndTheirState) {
  bool local_found = false;
  for (const PluginReport& report : ReportPlugins()) {
    if (report.name != "local") continue;
    local_found = true;
    EXPECT_THAT(report.status, IsOk());
  }
  EXPECT_TRUE(local_found);
}

}  // namespace
}  // namespace sherd
