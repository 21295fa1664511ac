#ifndef SHERD_TOOLS_SHERD_QUICKSTART_MAKE_MODEL_COMMAND_H_
#define SHERD_TOOLS_SHERD_QUICKSTART_MAKE_MODEL_COMMAND_H_

namespace CLI {
class App;
}  // namespace CLI

namespace sherd {

// Adds "sherd make-model"; it sets `exit_code`, which outlives `app`, when it
// was chosen.
void AddMakeModelCommand(CLI::App& app, int& exit_code);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_QUICKSTART_MAKE_MODEL_COMMAND_H_
