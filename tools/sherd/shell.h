#ifndef SHERD_TOOLS_SHERD_SHELL_H_
#define SHERD_TOOLS_SHERD_SHELL_H_

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

// For tests that run programs as a user does.
namespace sherd {

struct ShellResult {
  // -1: a signal ended it.
  int exit_code = -1;
  // Standard output and error together.
  std::string output;
};

// Runs a command of the shell until it ends.
inline ShellResult Shell(const std::string& command) {
  ShellResult result;
  FILE* const pipe = popen(absl::StrCat("exec 2>&1; ", command).c_str(), "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << "popen: " << command;
    return result;
  }
  std::array<char, 4096> buffer;
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) {
    result.output.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

// `text`, which has no single quotes, as a word of the shell.
inline std::string Quoted(const std::string& text) { return "'" + text + "'"; }

// A new empty folder with a blank in its name, for this test alone.
inline std::string ShellTestFolder() {
  const std::string path = absl::StrCat(
      ::testing::TempDir(), "a folder ",
      ::testing::UnitTest::GetInstance()->current_test_info()->name());
  const std::string word = Quoted(path);
  EXPECT_EQ(Shell("rm -rf " + word + " && mkdir " + word).exit_code, 0);
  return path;
}

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_SHELL_H_
