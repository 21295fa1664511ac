#ifndef SHERD_CORE_COMM_STORE_STORE_CONFORMANCE_H_
#define SHERD_CORE_COMM_STORE_STORE_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "sherd/core/comm/store.h"

namespace sherd::testing {

// One kind of store, for the tests that every store has to pass:
//
//   INSTANTIATE_TEST_SUITE_P(MyStore, StoreConformanceTest,
//                            ::testing::Values(StoreKind{...}), StoreKindName);
//
// in a test that depends on :store_conformance.
struct StoreKind {
  // A name of letters and digits.
  std::string name;
  // The function that a rank calls to reach the store. Created once for each
  // test, for an empty store that no other test shares.
  using Opener = std::function<std::shared_ptr<Store>()>;
  std::function<Opener()> make;
};

class StoreConformanceTest : public ::testing::TestWithParam<StoreKind> {
 protected:
  const StoreKind::Opener open_ = GetParam().make();
  const std::shared_ptr<Store> store_ = open_();
};

inline std::string StoreKindName(
    const ::testing::TestParamInfo<StoreKind>& info) {
  return info.param.name;
}

}  // namespace sherd::testing

#endif  // SHERD_CORE_COMM_STORE_STORE_CONFORMANCE_H_
