#include "sherd/tools/sherd/explain/explain_command.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/sharding/plan/plan_report.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/tools/sherd/command_error.h"
#include "sherd/tools/sherd/explain/layout_text.h"
#include "sherd/tools/sherd/explain/plan_picture.h"

namespace sherd {
namespace {

struct ExplainOptions {
  std::string size;
  std::string dtype = "float32";
  std::string from;
  std::string to;
  // 0: all ranks are on one host.
  int ranks_per_host = 0;
  int64_t staging_bytes = PlanReportOptions().max_staging_bytes;
  bool direct = false;
  bool json = false;
  // Empty for none, "-" for standard output.
  std::string svg_file;
};

absl::StatusOr<PlanReport> Explain(const ExplainOptions& options) {
  const absl::StatusOr<Dims> parsed = ParseDims(options.size);
  if (!parsed.ok()) return Annotate(parsed.status(), "--size");
  const Dims& size = *parsed;
  SHERD_ASSIGN_OR_RETURN(const DType dtype, ParseDType(options.dtype));
  SHERD_RETURN_IF_ERROR(Annotate(NumBytes(size, dtype).status(), "--size"));
  const absl::StatusOr<std::vector<PlacedBox>> from =
      ParseLayout(options.from, size);
  if (!from.ok()) return Annotate(from.status(), "--from");
  const absl::StatusOr<std::vector<PlacedBox>> to =
      ParseLayout(options.to, size);
  if (!to.ok()) return Annotate(to.status(), "--to");
  std::vector<int> hosts;
  if (options.ranks_per_host > 0) {
    const int ranks = internal::LastRank(*from, *to) + 1;
    for (int rank = 0; rank < ranks; ++rank) {
      hosts.push_back(rank / options.ranks_per_host);
    }
  }
  return ExplainPlan(*from, *to,
                     {.element_size = SizeOf(dtype),
                      .max_staging_bytes = options.staging_bytes,
                      .host_of_rank = hosts,
                      .direct = options.direct});
}

absl::Status WriteSvg(const std::string& file, const std::string& svg) {
  if (file == "-") {
    std::printf("%s", svg.c_str());
    return absl::OkStatus();
  }
  SHERD_RETURN_IF_ERROR(WriteFileAtomically(
      FileSystem::Posix(), file,
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(svg.data()),
                          svg.size())));
  std::printf("%s\n", file.c_str());
  return absl::OkStatus();
}

absl::Status RunExplain(const ExplainOptions& options) {
  SHERD_ASSIGN_OR_RETURN(const PlanReport report, Explain(options));
  if (!options.svg_file.empty()) {
    return WriteSvg(options.svg_file, PlanToSvg(report));
  }
  std::printf(
      "%s", (options.json ? report.ToJson() + "\n" : report.ToText()).c_str());
  return absl::OkStatus();
}

}  // namespace

void AddExplainCommand(CLI::App& app, int& exit_code) {
  CLI::App* const explain = app.add_subcommand(
      "explain", "Report the cost of moving data, without moving it");
  explain->require_subcommand(1);
  CLI::App* const reshard = explain->add_subcommand(
      "reshard", "Bytes, messages, passes and memory of a change of layout");
  reshard->footer(kLayoutHelp);
  auto options = std::make_shared<ExplainOptions>();
  reshard
      ->add_option("--size", options->size, "Sizes of the tensor, as 8192x64")
      ->required();
  reshard->add_option("--dtype", options->dtype, "Type of its elements")
      ->capture_default_str();
  reshard->add_option("--from", options->from, "Layout that it has; see below")
      ->required();
  reshard->add_option("--to", options->to, "Layout that it is to get")
      ->required();
  reshard
      ->add_option(
          "--ranks-per-host", options->ranks_per_host,
          "Ranks 0 to N - 1 share a host, and so on; without it all do")
      ->check(CLI::PositiveNumber);
  reshard
      ->add_option("--staging", options->staging_bytes,
                   "Bound on staging memory per rank, as 64MiB")
      ->transform(CLI::AsSizeValue(true))
      ->capture_default_str();
  reshard->add_flag("--direct", options->direct,
                    "Ranks reach each other's shards: no messages");
  CLI::Option* const json =
      reshard->add_flag("--json", options->json, "Print one JSON object");
  CLI::Option* const svg = reshard->add_flag(
      "--svg{-}", options->svg_file,
      "Draw a heat map, to standard output or to a file (--svg=FILE)");
  json->excludes(svg);
  reshard->callback([options, &exit_code] {
    const absl::Status status = RunExplain(*options);
    exit_code = status.ok() ? 0 : PrintCommandError("explain reshard", status);
  });
}

}  // namespace sherd
