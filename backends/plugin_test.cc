#include "sherd/backends/plugin.h"

#include <cerrno>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sherd::plugin {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> logged;

const sherd_host_v0 kHost = {
    .struct_size = sizeof(sherd_host_v0),
    .major = SHERD_ABI_MAJOR,
    .minor = SHERD_ABI_MINOR,
    .log = [](int32_t, const char* text) { logged.push_back(text); }};

sherd_error_v0 NoError() {
  return {.struct_size = sizeof(sherd_error_v0), .peer = -1};
}

// A communicator whose results a test sets.
class Scripted {
 public:
  static sherd_code Create(const sherd_comm_config_v0& config,
                           std::unique_ptr<Scripted>* made,
                           sherd_error_v0* error) {
    *made = std::make_unique<Scripted>();
    return config.rank == 0
               ? SHERD_OK
               : Fail(error, SHERD_TIMEOUT, 0, "did not come in time");
  }

  Scripted() { ++alive; }
  Scripted(const Scripted&) = delete;
  Scripted& operator=(const Scripted&) = delete;
  ~Scripted() { --alive; }

  sherd_code Run(const sherd_op_v0& op, sherd_error_v0*) {
    if (op.op == SHERD_BARRIER) throw std::runtime_error("planted");
    posted = op.op;
    return SHERD_OK;
  }
  void Abort() { throw std::runtime_error("planted in abort"); }

  static int alive;
  static int posted;
};
int Scripted::alive = 0;
int Scripted::posted = -1;

constexpr sherd_plugin_v0 kBackend =
    BackendTable<Scripted>({.name = "scripted",
                            .operations = kAllOperations,
                            .flags = SHERD_ONE_HOST_ONLY});
constexpr sherd_device_v0 kDevice =
    WithHeader(sherd_device_v0{.name = "scripted", .device_type = 1});

class PluginTest : public ::testing::Test {
 protected:
  PluginTest() {
    logged.clear();
    table_ = internal::StaticPlugin<sherd_plugin_v0>::Head()->entry(&kHost);
  }

  sherd_comm_v0* Create() {
    const sherd_comm_config_v0 config = {.rank = 0};
    sherd_comm_v0* comm = nullptr;
    EXPECT_EQ(table_->create(&config, &comm, &error_), SHERD_OK);
    return comm;
  }

  const sherd_plugin_v0* table_;
  sherd_error_v0 error_ = NoError();
};

TEST_F(PluginTest, IsListedForTheLoaderByItsKind) {
  EXPECT_EQ(table_, &kBackend);
  const auto* const devices = internal::StaticPlugin<sherd_device_v0>::Head();
  EXPECT_EQ(devices->entry(&kHost), &kDevice);
  EXPECT_EQ(devices->next, nullptr);
  EXPECT_EQ(&Host(), &kHost);
}

TEST_F(PluginTest, AHostOfAnotherVersionGetsNoTable) {
  sherd_host_v0 other = kHost;
  ++other.minor;
  const auto entry = internal::StaticPlugin<sherd_plugin_v0>::Head()->entry;
  EXPECT_EQ(entry(&other), nullptr);
  other = kHost;
  ++other.major;
  EXPECT_EQ(entry(&other), nullptr);
  EXPECT_EQ(&Host(), &kHost);
}

TEST_F(PluginTest, TablesBeginWithTheirSizeAndVersion) {
  EXPECT_EQ(table_->struct_size, sizeof(sherd_plugin_v0));
  EXPECT_EQ(table_->major, SHERD_ABI_MAJOR);
  EXPECT_EQ(table_->minor, SHERD_ABI_MINOR);
  EXPECT_EQ(kDevice.struct_size, sizeof(sherd_device_v0));
  EXPECT_EQ(kDevice.minor, SHERD_ABI_MINOR);
  EXPECT_EQ(WithHeader(sherd_memory_v0{}).struct_size, sizeof(sherd_memory_v0));
}

TEST_F(PluginTest, ABackendIsItsCommunicatorAndItsProperties) {
  EXPECT_STREQ(table_->name, "scripted");
  EXPECT_EQ(table_->operations, (1u << SHERD_NUM_OPERATIONS) - 1);
  EXPECT_EQ(table_->flags,
            uint32_t{SHERD_ONE_HOST_ONLY | SHERD_COMPLETES_IN_POST});
  EXPECT_EQ(table_->probe(&error_), SHERD_OK);
  sherd_comm_v0* const comm = Create();
  EXPECT_EQ(Scripted::alive, 1);
  const sherd_op_v0 op = {.op = SHERD_SEND};
  EXPECT_EQ(table_->post(comm, &op, nullptr, &error_), SHERD_OK);
  EXPECT_EQ(Scripted::posted, SHERD_SEND);
  table_->destroy(comm);
  EXPECT_EQ(Scripted::alive, 0);
}

TEST_F(PluginTest, ACommunicatorThatFailedIsNotHandedOut) {
  const sherd_comm_config_v0 config = {.rank = 1};
  auto* comm = reinterpret_cast<sherd_comm_v0*>(64);
  EXPECT_EQ(table_->create(&config, &comm, &error_), SHERD_TIMEOUT);
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(Scripted::alive, 0);
  EXPECT_EQ(error_.peer, 0);
}

TEST_F(PluginTest, NoExceptionCrossesTheTable) {
  sherd_comm_v0* const comm = Create();
  const sherd_op_v0 op = {.op = SHERD_BARRIER};
  EXPECT_EQ(table_->post(comm, &op, nullptr, &error_), SHERD_INTERNAL);
  EXPECT_STREQ(error_.text, "planted");
  table_->abort(comm);
  EXPECT_THAT(logged, ElementsAre("planted in abort"));
  table_->destroy(comm);
}

TEST_F(PluginTest, ExceptionsBecomeCodes) {
  const auto thrown = [this](auto exception) {
    error_ = NoError();
    return Guard(&error_, [&]() -> sherd_code { throw std::move(exception); });
  };
  EXPECT_EQ(thrown(std::bad_alloc()), SHERD_RESOURCE);
  EXPECT_STREQ(error_.text, "out of host memory");
  EXPECT_EQ(thrown(std::system_error(
                std::make_error_code(std::errc::operation_not_permitted))),
            SHERD_SYSTEM);
  EXPECT_THAT(error_.text, HasSubstr("not permitted"));
  EXPECT_EQ(thrown(std::runtime_error("planted")), SHERD_INTERNAL);
  EXPECT_EQ(thrown(7), SHERD_INTERNAL);
  EXPECT_STREQ(error_.text, "unknown exception");
  EXPECT_EQ(error_.peer, -1);
}

TEST(PluginErrorTest, TextThatDoesNotFitIsCut) {
  sherd_error_v0 error = NoError();
  const std::string text(sizeof(error.text), 'x');
  EXPECT_EQ(Fail(&error, SHERD_PEER_LOST, 3, text.c_str()), SHERD_PEER_LOST);
  EXPECT_EQ(error.peer, 3);
  EXPECT_EQ(error.text, text.substr(1));
}

TEST(PluginErrorTest, ASystemCallsErrorHasItsNumberAndItsText) {
  sherd_error_v0 error = NoError();
  errno = EACCES;
  EXPECT_EQ(FailErrno(&error, SHERD_SYSTEM, -1, "cannot open"), SHERD_SYSTEM);
  EXPECT_EQ(error.native_code, EACCES);
  EXPECT_STREQ(error.text, "cannot open: Permission denied");
}

constexpr sherd_plugin_v0 kReducing = WithHostReductions({});

TEST(PluginReductionsTest, AreThoseThatHaveAMeaning) {
  const auto has = [](int dtype, int reduction) {
    return (kReducing.reductions[dtype] >> reduction & 1) != 0;
  };
  EXPECT_TRUE(has(SHERD_INT32, SHERD_AVG));
  EXPECT_TRUE(has(SHERD_BOOL, SHERD_BXOR));
  EXPECT_FALSE(has(SHERD_BOOL, SHERD_AVG));
  EXPECT_TRUE(has(SHERD_BFLOAT16, SHERD_MAX));
  EXPECT_FALSE(has(SHERD_FLOAT64, SHERD_BAND));
  EXPECT_TRUE(has(SHERD_COMPLEX64, SHERD_PRODUCT));
  EXPECT_FALSE(has(SHERD_COMPLEX128, SHERD_MIN));
}

}  // namespace
}  // namespace sherd::plugin

SHERD_BACKEND_PLUGIN(sherd::plugin::kBackend)
SHERD_DEVICE_PLUGIN(sherd::plugin::kDevice)
