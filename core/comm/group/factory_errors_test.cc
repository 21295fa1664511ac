// Each error that the factories of groups document, and no other.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "sherd/core/comm/bootstrap/backend_registry.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/testing/kits/contract_cards.h"
#include "sherd/testing/local_ranks.h"

namespace sherd {
namespace {

using ::sherd::testing::ExpectCardsHold;
using ::sherd::testing::RunLocalRanks;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kPrecondition =
    absl::StatusCode::kFailedPrecondition;
constexpr absl::StatusCode kLate = absl::StatusCode::kDeadlineExceeded;
constexpr absl::StatusCode kGone = absl::StatusCode::kUnavailable;
constexpr absl::StatusCode kRange = absl::StatusCode::kOutOfRange;

std::string In(const char* header, const char* phrase) {
  return std::string("core/comm/") + header + ": " + phrase;
}

// Rank 0 of two, alone.
InitOptions Alone() {
  return {.backend = "local",
          .rank = 0,
          .world_size = 2,
          .store = std::make_shared<HashStore>(),
          .timeout = absl::Milliseconds(20)};
}

TEST(FactoryErrorsTest, OfInit) {
  ExpectCardsHold({
      {"Init",
       {In("init.h", "Connects this rank to the others and makes the result")},
       {{"a rank outside of the world", kInvalid,
         [] {
           InitOptions options = Alone();
           options.rank = 2;
           return Init(options).status();
         }},
        {"no timeout", kInvalid,
         [] {
           InitOptions options = Alone();
           options.timeout = absl::ZeroDuration();
           return Init(options).status();
         }},
        {"a device for a group on the host", kInvalid,
         [] {
           InitOptions options = Alone();
           options.device = "cuda:0";
           return Init(options).status();
         }},
        {"text that is not a device", kPrecondition,
         [] {
           InitOptions options = Alone();
           options.device = "cuda:x";
           return Init(options).status();
         }},
        {"a default group already", kPrecondition,
         [] {
           absl::Status status;
           RunLocalRanks(
               1, [&](ProcessGroup&) { status = Init(Alone()).status(); });
           return status;
         }},
        {"no such backend", absl::StatusCode::kNotFound,
         [] {
           InitOptions options = Alone();
           options.backend = "warp";
           return Init(options).status();
         }},
        {"no other rank joins", kLate, [] { return Init(Alone()).status(); }},
        {"an address that is taken: see tcp_store_test", kGone, nullptr},
        {"a device that there is not: see process_group_device_test", kRange,
         nullptr}}},
      {"DefaultGroup",
       {In("init.h", "The group that Init created, until it is destroyed")},
       {{"none", kPrecondition, [] { return DefaultGroup().status(); }}}},
  });
}

TEST(FactoryErrorsTest, OfGroups) {
  RunLocalRanks(1, [](ProcessGroup& group) {
    const auto create = [](int rank, int size) {
      return ProcessGroup::Create(
                 *BackendRegistry::Global().Find("local").value(),
                 {.name = "made",
                  .rank = rank,
                  .size = size,
                  .store = std::make_shared<HashStore>(),
                  .timeout = absl::Milliseconds(20)})
          .status();
    };
    ExpectCardsHold({
        {"ProcessGroup::Create",
         {In("process_group.h", "Connects this rank to the ranks that share")},
         {{"a rank outside of the group", kInvalid,
           [=] { return create(2, 2); }},
          {"no other rank joins", kLate, [=] { return create(0, 2); }},
          {"rank 0 died: see membership_exchange_test", kGone, nullptr}}},
        {"ProcessGroup::NewGroup",
         {In("process_group.h", "`ranks` are ranks of this group, ascending")},
         {{"out of range", kInvalid,
           [&] { return group.NewGroup({1}).status(); }},
          {"twice", kInvalid,
           [&] {
             return group.NewGroup({0, 0}).status();
           }},
          {"no other rank joins: see new_group_test", kLate, nullptr},
          {"a process that ended: see new_group_test", kGone, nullptr}}},
    });
  });
}

}  // namespace
}  // namespace sherd
