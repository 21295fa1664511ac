#ifndef SHERD_CORE_PROCESS_PROCESS_IDENTITY_H_
#define SHERD_CORE_PROCESS_PROCESS_IDENTITY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sherd/core/process/process_status.h"

namespace sherd {

// Which process, of which PID namespace, of which boot of which host.
//
// Threads. All functions may be called from any thread.

// The boot id of the running kernel: equal in all its containers, different
// after the next boot. Empty if unknown.
std::string BootId();

// The namespace of this process of a kind ("pid", "net", "user"), as in
// "pid:[4026531836]". Empty if unknown.
std::string OwnNamespace(const char* kind);

// Identifies a process of this host and PID namespace, and distinguishes it
// from a later one with the same number. A start time of 0 is unknown.
struct ProcessIdentity {
  int64_t pid = 0;
  uint64_t start_time = 0;

  static ProcessIdentity Own();
  // The identity of the process that has the number now.
  static ProcessIdentity Of(int64_t pid);

  friend bool operator==(const ProcessIdentity&,
                         const ProcessIdentity&) = default;
};

// kEnded if another process has its number by now. kUnknown if the process is
// hidden.
ProcessState StateOf(const ProcessIdentity& process);

// A process among all that can share a store. Its text, without newlines,
// is "BOOT_ID NAMESPACE PID START_TIME".
struct ProcessDescription {
  std::string boot_id;
  std::string pid_namespace;
  ProcessIdentity process;

  // Nullopt if the text is not a result of ToText.
  static std::optional<ProcessDescription> Parse(std::string_view text);
  std::string ToText() const;

  friend bool operator==(const ProcessDescription&,
                         const ProcessDescription&) = default;

  // Whether this process can see the other's process number and may inspect it.
  bool IsBeside(const ProcessDescription& other) const {
    return boot_id == other.boot_id && pid_namespace == other.pid_namespace;
  }
};

// The text of the description of a process of this PID namespace.
std::string DescribeProcess(const ProcessIdentity& process);
std::string DescribeOwnProcess();

// The state of the process that the text describes; kUnknown if it belongs to
// another host or namespace, or its start time is unknown.
ProcessState StateOf(std::string_view description);

}  // namespace sherd

#endif  // SHERD_CORE_PROCESS_PROCESS_IDENTITY_H_
