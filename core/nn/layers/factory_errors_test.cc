// Each error that the factories of layers and plans document, and no other.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "sherd/core/nn/balanced_planner.h"
#include "sherd/core/nn/containers.h"
#include "sherd/core/nn/embedding.h"
#include "sherd/core/nn/linear.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/testing/kits/contract_cards.h"

namespace sherd {
namespace {

using ::sherd::testing::DocumentedError;
using ::sherd::testing::ExpectCardsHold;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kPrecondition =
    absl::StatusCode::kFailedPrecondition;
constexpr absl::StatusCode kMemory = absl::StatusCode::kResourceExhausted;
constexpr int64_t kHuge = int64_t{1} << 40;

std::string In(const char* header, const char* phrase) {
  return std::string("core/nn/") + header + ": " + phrase;
}

template <typename Layer>
std::vector<DocumentedError> ErrorsOfTable() {
  const auto create = [](int64_t rows, int64_t columns, BagOptions options = {},
                         DType dtype = kFloat32) {
    return Layer::Create(rows, columns, options, dtype).status();
  };
  return {
      {"negative rows", kInvalid, [=] { return create(-1, 2); }},
      {"negative columns", kInvalid, [=] { return create(2, -1); }},
      {"2^63 bytes", kInvalid, [=] { return create(kHuge, kHuge); }},
      {"integers", kInvalid, [=] { return create(2, 2, {}, kInt64); }},
      {"complex numbers", kInvalid,
       [=] { return create(2, 2, {}, kComplex64); }},
      {"padding past the end", kInvalid,
       [=] { return create(2, 2, {.padding_idx = 2}); }},
      {"padding before the begin", kInvalid,
       [=] { return create(2, 2, {.padding_idx = -3}); }},
      {"no memory", kMemory, [=] { return create(kHuge, 1 << 10); }},
  };
}

TEST(FactoryErrorsTest, OfLayers) {
  const auto linear = [](int64_t in, int64_t out, LinearOptions options = {}) {
    return Linear::Create(in, out, options).status();
  };
  const std::string table_card =
      In("embedding.h", "With a weight from a normal");
  ExpectCardsHold({
      {"Linear::Create",
       {In("linear.h", "Uniform in [-k, k) with k")},
       {{"negative inputs", kInvalid, [=] { return linear(-1, 2); }},
        {"negative outputs", kInvalid, [=] { return linear(2, -1); }},
        {"2^63 bytes", kInvalid, [=] { return linear(kHuge, kHuge); }},
        {"integers", kInvalid, [=] { return linear(2, 2, {.dtype = kInt32}); }},
        {"complex numbers", kInvalid,
         [=] { return linear(2, 2, {.dtype = kComplex64}); }},
        {"no memory", kMemory, [=] { return linear(kHuge, 1 << 10); }}}},
      {"Embedding::Create", {table_card}, ErrorsOfTable<Embedding>()},
      {"EmbeddingBag::Create", {table_card}, ErrorsOfTable<EmbeddingBag>()},
  });
}

TEST(FactoryErrorsTest, OfPlans) {
  ModuleDict tables;
  ASSERT_TRUE(tables.Insert("a", Embedding::Create(8, 4).value()).ok());
  const auto plan = [&](const BalancedPlannerOptions& options) {
    return BalancedPlanner(options).BuildPlan(tables).status();
  };
  ExpectCardsHold({
      {"BalancedPlanner::BuildPlan",
       {In("balanced_planner.h", "BuildPlan is not collective.")},
       {{"tables that do not fit", kMemory,
         [=] {
           return plan({.bytes_per_rank = 16, .placements = {"rank:0"}});
         }},
        {"a negative limit", kInvalid,
         [=] {
           return plan({.bytes_per_rank = -1, .placements = {"rank:0"}});
         }},
        {"a malformed placement", kInvalid,
         [=] { return plan({.placements = {"rank:x"}}); }},
        {"no group", kPrecondition, [=] { return plan({}); }}}},
  });
}

}  // namespace
}  // namespace sherd
