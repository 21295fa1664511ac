#ifndef SHERD_TOOLS_SHERD_EXPLAIN_EXPLAIN_COMMAND_H_
#define SHERD_TOOLS_SHERD_EXPLAIN_EXPLAIN_COMMAND_H_

namespace CLI {
class App;
}  // namespace CLI

namespace sherd {

// Adds "sherd explain"; it sets `exit_code`, which outlives `app`, when it was
// chosen.
void AddExplainCommand(CLI::App& app, int& exit_code);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_EXPLAIN_EXPLAIN_COMMAND_H_
