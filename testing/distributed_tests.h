#ifndef SHERD_TESTING_DISTRIBUTED_TESTS_H_
#define SHERD_TESTING_DISTRIBUTED_TESTS_H_

#include <string>

#include "gtest/gtest.h"

namespace sherd::testing::internal {

// Notes that the test, or the tests of a pattern, that GoogleTest knows under
// this place run on several ranks. Before main(). Returns true.
bool NoteDistributedTest(const char* file, int line);

// Whether `test` is one of them, or an ordinary one.
bool IsDistributedTest(const ::testing::TestInfo& test);

// "Suite.Name", as filters have it.
std::string FullName(const ::testing::TestInfo& test);

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_DISTRIBUTED_TESTS_H_
