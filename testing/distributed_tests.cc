#include "sherd/testing/distributed_tests.h"

#include <set>
#include <string>
#include <utility>

namespace sherd::testing::internal {
namespace {

using Places = std::set<std::pair<std::string, int>>;

// Filled by static initializers of other files.
Places& KnownPlaces() {
  static Places* const places = new Places;
  return *places;
}

}  // namespace

bool NoteDistributedTest(const char* file, int line) {
  KnownPlaces().emplace(file, line);
  return true;
}

bool IsDistributedTest(const ::testing::TestInfo& test) {
  return test.file() != nullptr &&
         KnownPlaces().count({test.file(), test.line()}) > 0;
}

std::string FullName(const ::testing::TestInfo& test) {
  return std::string(test.test_suite_name()) + "." + test.name();
}

}  // namespace sherd::testing::internal
