#ifndef SHERD_TOOLS_SHERD_COMMAND_LINE_H_
#define SHERD_TOOLS_SHERD_COMMAND_LINE_H_

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace sherd {

// How programs begin and end alike: the command line and the examples.

// The exit code of a command line that cannot be understood.
inline constexpr int kUsageExitCode = 2;

// The first call of main(). A standard stream that was closed becomes
// /dev/null: its descriptor would be given to the next file that is opened, and
// messages would end up in it. Where "bazel run" started this program
// elsewhere, it changes to the caller's directory, whose relative paths it
// gets.
void PrepareProgram();

// Parses `arguments`, without the program's name, and runs the callbacks of the
// commands in them. Returns the exit code: `exit_code`, which callbacks set, or
// kUsageExitCode after a message on standard error; 0 if help was asked for.
int RunCommandLine(CLI::App& app, std::vector<std::string> arguments,
                   const int& exit_code);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_COMMAND_LINE_H_
