#ifndef SHERD_TOOLS_SHERD_CHECKPOINT_RECOVER_COMMAND_H_
#define SHERD_TOOLS_SHERD_CHECKPOINT_RECOVER_COMMAND_H_

namespace CLI {
class App;
}  // namespace CLI

namespace sherd {

// Adds "sherd recover"; it sets `exit_code`, which outlives `app`, when it was
// chosen.
void AddRecoverCommand(CLI::App& app, int& exit_code);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_CHECKPOINT_RECOVER_COMMAND_H_
