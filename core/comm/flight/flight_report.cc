#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/text_table.h"
#include "sherd/core/base/units.h"
#include "sherd/core/comm/flight/flight_analysis.h"

namespace sherd {
namespace {

// With more ranks than a screen has lines, only those with findings are shown.
constexpr size_t kMostRows = 64;
constexpr size_t kMostDetails = 8;

bool IsRemarkable(const FlightRankState& state) {
  return !state.has_dump || state.behind.value_or(0) > 0 ||
         state.last_state == "failed";
}

std::string LastCall(const FlightRankState& state) {
  if (!state.has_dump) return "no dump";
  if (!state.last_sequence) return "unknown";
  if (*state.last_sequence == 0) return "none";
  return absl::StrCat(state.last_op, " #", *state.last_sequence);
}

std::string StateText(const FlightRankState& state) {
  if (state.last_op.empty()) return "";
  const bool ended =
      state.last_state == "completed" || state.last_state == "failed";
  return absl::StrCat(state.last_state, ended ? " " : " for ",
                      FormatSeconds(state.seconds), ended ? " ago" : "");
}

std::string FormatFindings(const FlightGroupReport& group) {
  std::string text;
  for (const FlightFinding& finding : group.findings) {
    absl::StrAppend(&text, "  ! ", PrintableLine(finding.text), "\n");
  }
  return text;
}

std::string FormatCalls(const FlightGroupReport& group) {
  std::string text;
  for (size_t i = 0; i < group.calls->size() && i < kMostRows; ++i) {
    absl::StrAppend(&text, "  ", PrintableLine((*group.calls)[i]), "\n");
  }
  if (group.calls->empty()) text = "  no call is under way\n";
  if (group.calls->size() > kMostRows) {
    absl::StrAppend(&text, "  and ", group.calls->size() - kMostRows,
                    " calls that began later\n");
  }
  return text + FormatFindings(group);
}

std::string FormatGroup(const FlightGroupReport& group) {
  std::string text = absl::StrCat(
      "\nGroup ", Quoted(group.name),
      group.instance == 0
          ? ""
          : absl::StrCat(", number ", group.instance + 1, " of this name"),
      ", ", group.size, group.size == 1 ? " rank" : " ranks", ", backend ",
      PrintableLine(group.backend), "\n");
  if (group.calls) return text + FormatCalls(group);
  TextTable table({{"  rank"},
                   {"last call"},
                   {"state"},
                   {"behind", TextTable::Align::kRight}});
  size_t hidden = 0;
  for (const FlightRankState& state : group.ranks) {
    if (group.ranks.size() > kMostRows && !IsRemarkable(state)) {
      ++hidden;
      continue;
    }
    table.AddRow(
        {absl::StrCat(
             "  ", state.rank,
             state.rank == state.group_rank
                 ? ""
                 : absl::StrCat(" (", state.group_rank, " in the group)")),
         LastCall(state), StateText(state),
         state.behind.value_or(0) == 0 ? "" : absl::StrCat(*state.behind)});
  }
  if (!table.empty()) text += table.ToString();
  if (hidden > 0) {
    absl::StrAppend(&text, "  and ", hidden, " ranks that are not behind\n");
  }
  return text + FormatFindings(group);
}

nlohmann::json FindingToJson(const FlightFinding& finding) {
  return {{"kind", std::string(Name(finding.kind))},
          {"ranks", finding.ranks},
          {"sequence", finding.sequence},
          {"text", finding.text}};
}

nlohmann::json RankToJson(const FlightRankState& state) {
  nlohmann::json json = {
      {"rank", state.rank},         {"group_rank", state.group_rank},
      {"has_dump", state.has_dump}, {"last_sequence", nullptr},
      {"last_op", state.last_op},   {"last_state", state.last_state},
      {"behind", nullptr},          {"seconds", state.seconds}};
  if (state.last_sequence) json["last_sequence"] = *state.last_sequence;
  if (state.behind) json["behind"] = *state.behind;
  return json;
}

}  // namespace

std::string FormatFlightReport(const FlightReport& report) {
  std::string text = absl::StrCat(
      report.ranks.size(), report.ranks.size() == 1 ? " dump" : " dumps",
      ", of ", report.ranks.size() == 1 ? "rank " : "ranks ",
      FormatRanks(report.ranks), " (", PrintableLine(report.reasons), ")\n");
  for (size_t i = 0; i < report.details.size() && i < kMostDetails; ++i) {
    absl::StrAppend(&text, "  ", PrintableLine(report.details[i]), "\n");
  }
  if (report.details.size() > kMostDetails) {
    absl::StrAppend(&text, "  and ", report.details.size() - kMostDetails,
                    " more\n");
  }
  for (const FlightFailedRank& failed : report.failed) {
    absl::StrAppend(
        &text, "! rank ", failed.rank, " failed",
        failed.named_by.empty() ? "" : ", as the errors say of ",
        failed.named_by.empty()
            ? ""
            : absl::StrCat(failed.named_by.size() == 1 ? "rank " : "ranks ",
                           FormatRanks(failed.named_by)),
        "\n");
  }
  for (const std::string& why : report.unreadable) {
    absl::StrAppend(&text, "! ", PrintableLine(why), "\n");
  }
  for (const std::string& note : report.notes) {
    absl::StrAppend(&text, "note: ", PrintableLine(note), "\n");
  }
  for (const FlightGroupReport& group : report.groups) {
    text += FormatGroup(group);
  }
  absl::StrAppend(&text, report.HasFindings()
                             ? ""
                             : "\nNo deviation: all ranks made equal calls.\n");
  return text;
}

std::string FlightReportToJson(const FlightReport& report) {
  nlohmann::json json = {
      {"deviation", report.HasFindings()}, {"ranks", report.ranks},
      {"details", report.details},         {"failed", nlohmann::json::array()},
      {"unreadable", report.unreadable},   {"notes", report.notes},
      {"groups", nlohmann::json::array()}};
  for (const FlightFailedRank& failed : report.failed) {
    json["failed"].push_back(
        {{"rank", failed.rank}, {"named_by", failed.named_by}});
  }
  for (const FlightGroupReport& group : report.groups) {
    nlohmann::json ranks = nlohmann::json::array();
    for (const FlightRankState& state : group.ranks) {
      ranks.push_back(RankToJson(state));
    }
    nlohmann::json findings = nlohmann::json::array();
    for (const FlightFinding& finding : group.findings) {
      findings.push_back(FindingToJson(finding));
    }
    nlohmann::json calls;
    if (group.calls) calls = *group.calls;
    json["groups"].push_back({{"name", group.name},
                              {"instance", group.instance},
                              {"backend", group.backend},
                              {"size", group.size},
                              {"ranks", ranks},
                              {"findings", findings},
                              {"calls", calls}});
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace sherd
