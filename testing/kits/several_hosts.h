#ifndef SHERD_TESTING_KITS_SEVERAL_HOSTS_H_
#define SHERD_TESTING_KITS_SEVERAL_HOSTS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace sherd::testing {

// Base of tests with ranks on two hosts, which are network namespaces with a
// cable between them: ranks 0 and 1 on host a (10.77.0.1, fd77::1), the other
// two on host b (10.77.0.2, fd77::2). Skips where such cannot be made.
class SeveralHosts : public ::testing::Test {
 protected:
  static constexpr int kRanks = 4;

  // The program of each rank; relative to the test's working directory.
  explicit SeveralHosts(std::string program);

  void SetUp() override;

  // A file that only its owner reads. Returns its path. "hosts_a" and "hosts_b"
  // are the hosts' /etc/hosts.
  std::string WriteFile(const std::string& name, absl::string_view text,
                        int mode = 0600);

  // Starts all ranks as torchrun does and returns their outputs. `variables`,
  // assignments in which %r is the rank, are for all, `of_last` for the last
  // one only.
  std::vector<std::string> RunRanks(const std::string& variables,
                                    const std::string& of_last = "");
  // The same without a launcher's variables.
  std::vector<std::string> RunLaunched(const std::string& variables,
                                       const std::string& of_last = "");

  const std::string& out() const { return out_; }

 private:
  const std::string program_;
  const std::string out_;
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_KITS_SEVERAL_HOSTS_H_
