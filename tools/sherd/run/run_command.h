#ifndef SHERD_TOOLS_SHERD_RUN_RUN_COMMAND_H_
#define SHERD_TOOLS_SHERD_RUN_RUN_COMMAND_H_

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace sherd {

// Removes the program and its arguments from the arguments of "sherd run", so
// that nothing else interprets them: everything after "--", or from the first
// argument on that is neither an option nor its value. Leaves the arguments of
// other subcommands alone.
std::vector<std::string> TakeProgram(std::vector<std::string>& arguments);

// Adds "sherd run", which starts `program`; it sets `exit_code` when it was
// chosen. Both outlive `app`.
void AddRunCommand(CLI::App& app, const std::vector<std::string>& program,
                   int& exit_code);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_RUN_RUN_COMMAND_H_
