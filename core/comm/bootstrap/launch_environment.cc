#include "sherd/core/comm/bootstrap/launch_environment.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

constexpr int kFirstSlurmPort = 10000;
constexpr int kSlurmPorts = 20000;
constexpr int kLastPort = 65535;
constexpr char kProgram[] = "the program";

using LookUp = absl::FunctionRef<std::optional<std::string>(Knob)>;

// A launcher's own variables for rank and size, apart from RANK and WORLD_SIZE.
struct Launcher {
  const char* name;
  Knob rank;
  Knob size;
  // In place of a missing `size`.
  std::optional<Knob> other_size;
  Knob local_rank;
};

constexpr std::array<Launcher, 3> kLaunchers = {{
    {"Open MPI's mpirun", Knob::kOmpiRank, Knob::kOmpiSize, std::nullopt,
     Knob::kOmpiLocalRank},
    {"MPICH's mpiexec", Knob::kPmiRank, Knob::kPmiSize, std::nullopt,
     Knob::kMpiLocalRank},
    {"Slurm's srun", Knob::kSlurmProcId, Knob::kSlurmStepTasks,
     Knob::kSlurmTasks, Knob::kSlurmLocalId},
}};

constexpr const Launcher& kOpenMpi = kLaunchers[0];
constexpr const Launcher& kMpich = kLaunchers[1];
constexpr const Launcher& kSlurm = kLaunchers[2];

// Where rank and size are looked for.
constexpr std::array<Knob, 11> kPlaceKnobs = {
    Knob::kRank,        Knob::kWorldSize,         Knob::kOmpiRank,
    Knob::kOmpiSize,    Knob::kPmiRank,           Knob::kPmiSize,
    Knob::kSlurmProcId, Knob::kSlurmStepTasks,    Knob::kSlurmTasks,
    Knob::kSlurmStepId, Knob::kJobCompletionIndex};

// Further variables that only a launcher sets.
constexpr std::array<Knob, 9> kOtherLauncherKnobs = {
    Knob::kInitMethod, Knob::kMasterAddr,     Knob::kMasterPort,
    Knob::kLocalRank,  Knob::kLocalWorldSize, Knob::kTorchRunId,
    Knob::kOmpiJobKey, Knob::kPmixNamespace,  Knob::kMpiLocalRank};

std::string VariableOf(Knob knob) { return GetKnobInfo(knob).variable; }

// One reading of the environment.
class Reader {
 public:
  // `given`: for the names in errors; outlives it.
  Reader(LookUp look_up, const GivenPlace& given)
      : look_up_(look_up), given_(given) {}

  absl::string_view function() const { return given_.function; }
  absl::string_view options_type() const { return given_.options_type; }

  // The text, empty if the variable is absent.
  std::string Text(Knob knob) const { return look_up_(knob).value_or(""); }
  bool Has(Knob knob) const { return !Text(knob).empty(); }

  absl::StatusOr<std::optional<int>> Number(Knob knob, int low,
                                            int high) const {
    const std::string text = Text(knob);
    if (text.empty()) return std::nullopt;
    int value;
    if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
      return absl::InvalidArgumentError(
          absl::StrCat("environment variable ", VariableOf(knob), " is \"",
                       text, "\", expected a number from ", low, " to ", high));
    }
    return value;
  }

  // Rank and size of `launcher`, nothing if it did not start this process.
  absl::StatusOr<std::optional<LaunchEnvironment>> PlaceFrom(
      const Launcher& launcher) const {
    const Knob size_knob = !Has(launcher.size) && launcher.other_size
                               ? *launcher.other_size
                               : launcher.size;
    if (!Has(launcher.rank) || !Has(size_knob)) return std::nullopt;
    if (&launcher == &kSlurm && !Has(Knob::kSlurmStepId)) return std::nullopt;
    SHERD_ASSIGN_OR_RETURN(const std::optional<int> size,
                           Number(size_knob, 1, kMaxWorldSize));
    SHERD_ASSIGN_OR_RETURN(const std::optional<int> rank,
                           Number(launcher.rank, 0, *size - 1));
    LaunchEnvironment place;
    place.launcher = launcher.name;
    place.rank = *rank;
    place.world_size = *size;
    return place;
  }

  // Whether no launcher of those that are known started this process.
  bool FoundNothing() const {
    const auto has = [this](Knob knob) { return Has(knob); };
    return std::none_of(kPlaceKnobs.begin(), kPlaceKnobs.end(), has) &&
           std::none_of(kOtherLauncherKnobs.begin(), kOtherLauncherKnobs.end(),
                        has);
  }

  // Everything that was looked for, and what was found of it.
  std::string Report() const;

 private:
  const LookUp look_up_;
  const GivenPlace& given_;
};

std::string Reader::Report() const {
  std::vector<std::string> found;
  for (const Knob knob : kPlaceKnobs) {
    if (Has(knob)) {
      found.push_back(absl::StrCat(VariableOf(knob), "=", Text(knob)));
    }
  }
  std::string report = absl::StrCat(
      "Looked for RANK and WORLD_SIZE (sherd run, torchrun, Kubernetes "
      "operators), OMPI_COMM_WORLD_RANK and _SIZE (Open MPI's mpirun), "
      "PMI_RANK and PMI_SIZE (MPICH's mpiexec), SLURM_PROCID, SLURM_STEP_ID "
      "and SLURM_STEP_NUM_TASKS (srun), JOB_COMPLETION_INDEX and WORLD_SIZE "
      "(Kubernetes Indexed Job); found ",
      found.empty() ? "none of them" : absl::StrJoin(found, ", "));
  if (Has(Knob::kSlurmProcId) && !Has(Knob::kSlurmStepId)) {
    absl::StrAppend(&report,
                    ". Without SLURM_STEP_ID this is the batch script itself: "
                    "start the program with srun");
  }
  return report;
}

absl::Status Missing(const Reader& reader, Knob knob,
                     absl::string_view option) {
  return absl::InvalidArgumentError(absl::StrCat(
      reader.function(), ": environment variable ", VariableOf(knob),
      " expected, but not set: start the program with \"sherd run -n N "
      "PROGRAM\" or another launcher, or set ",
      reader.options_type(), "::", option, ". ", reader.Report()));
}

absl::Status Contradiction(const Reader& reader, const std::string& what,
                           const LaunchEnvironment& launched) {
  return absl::InvalidArgumentError(absl::StrCat(
      reader.function(), ": the environment contradicts itself: ", what,
      ", but ", launched.launcher, " started this process as rank ",
      launched.rank, " of ", launched.world_size,
      ". Unset the variables that are left over. ", reader.Report()));
}

// The first of Open MPI, MPICH and Slurm that started this process. Malformed
// variables are an error only if no other one did.
absl::StatusOr<std::optional<LaunchEnvironment>> FindLauncher(
    const Reader& reader) {
  absl::Status malformed;
  std::optional<LaunchEnvironment> found;
  for (const Launcher& launcher : kLaunchers) {
    absl::StatusOr<std::optional<LaunchEnvironment>> place =
        reader.PlaceFrom(launcher);
    malformed.Update(place.status());
    if (!place.ok() || !*place) continue;
    // srun sets PMI's variables too, but its own contain more.
    const bool says_more = found && found->launcher == kMpich.name &&
                           found->rank == (*place)->rank &&
                           found->world_size == (*place)->world_size;
    if (!found || says_more) found = **std::move(place);
  }
  if (!found) SHERD_RETURN_IF_ERROR(malformed);
  return found;
}

// RANK and WORLD_SIZE are both set.
absl::StatusOr<LaunchEnvironment> PlaceFromPair(const Reader& reader, int rank,
                                                int world_size) {
  // A program that also sets LOCAL_RANK is a launcher, which may run inside
  // another one. Two variables alone may be left over in the shell that called
  // mpirun, and then every process has the same rank.
  if (!reader.Has(Knob::kLocalRank) && !reader.Has(Knob::kTorchRunId)) {
    for (const Launcher& launcher : kLaunchers) {
      const absl::StatusOr<std::optional<LaunchEnvironment>> launched =
          reader.PlaceFrom(launcher);
      if (launched.ok() && *launched && (*launched)->rank != rank &&
          (*launched)->world_size == world_size) {
        return Contradiction(reader,
                             absl::StrCat("RANK is ", rank, " of ", world_size),
                             **launched);
      }
    }
  }
  LaunchEnvironment place;
  place.launcher =
      reader.Has(Knob::kTorchRunId) ? "torchrun" : "RANK and WORLD_SIZE";
  place.rank = rank;
  place.world_size = world_size;
  return place;
}

absl::StatusOr<LaunchEnvironment> FindPlace(const Reader& reader) {
  SHERD_ASSIGN_OR_RETURN(const std::optional<int> size,
                         reader.Number(Knob::kWorldSize, 1, kMaxWorldSize));
  SHERD_ASSIGN_OR_RETURN(
      const std::optional<int> rank,
      reader.Number(Knob::kRank, 0, size.value_or(kMaxWorldSize) - 1));
  if (rank && size) return PlaceFromPair(reader, *rank, *size);
  SHERD_ASSIGN_OR_RETURN(std::optional<LaunchEnvironment> launched,
                         FindLauncher(reader));
  if (launched) {
    if (rank && *rank != launched->rank) {
      return Contradiction(reader, absl::StrCat("RANK is ", *rank), *launched);
    }
    if (!size || *size == launched->world_size) return *std::move(launched);
  }
  if (size && !rank) {
    SHERD_ASSIGN_OR_RETURN(
        const std::optional<int> index,
        reader.Number(Knob::kJobCompletionIndex, 0, *size - 1));
    if (index) {
      LaunchEnvironment place;
      place.launcher = "Kubernetes Indexed Job";
      place.rank = *index;
      place.world_size = *size;
      return place;
    }
  }
  if (launched) {
    return Contradiction(reader, absl::StrCat("WORLD_SIZE is ", *size),
                         *launched);
  }
  if (rank || reader.Has(Knob::kJobCompletionIndex)) {
    return Missing(reader, Knob::kWorldSize, "world_size");
  }
  return Missing(reader, size ? Knob::kRank : Knob::kWorldSize,
                 size ? "rank" : "world_size");
}

// The place with the program's values in it; the rest from the environment.
absl::StatusOr<LaunchEnvironment> FindPlace(const Reader& reader,
                                            const GivenPlace& given) {
  if (!given.rank && !given.world_size && !given.meeting_place &&
      reader.FoundNothing()) {
    return LaunchEnvironment{.launcher = kNoLauncher};
  }
  const absl::StatusOr<LaunchEnvironment> launched = FindPlace(reader);
  if (!given.rank && !given.world_size) return launched;
  // If the program's values equal the launcher's, the launcher's other values
  // apply as well.
  if (launched.ok() && given.rank.value_or(launched->rank) == launched->rank &&
      given.world_size.value_or(launched->world_size) == launched->world_size) {
    return launched;
  }
  LaunchEnvironment place;
  place.launcher = kProgram;
  if (given.rank && given.world_size) {
    place.rank = *given.rank;
    place.world_size = *given.world_size;
    return place;
  }
  const Knob knob = given.rank ? Knob::kWorldSize : Knob::kRank;
  SHERD_ASSIGN_OR_RETURN(
      std::optional<int> value,
      given.rank ? reader.Number(knob, *given.rank + 1, kMaxWorldSize)
                 : reader.Number(knob, 0, *given.world_size - 1));
  if (!value && launched.ok()) {
    value = given.rank ? launched->world_size : launched->rank;
  }
  if (!value) {
    return Missing(reader, knob, given.rank ? "world_size" : "rank");
  }
  place.rank = given.rank.value_or(*value);
  place.world_size = given.world_size.value_or(*value);
  if (place.rank >= place.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        reader.function(), ": rank ", place.rank, " of world size ",
        place.world_size, ": expected rank < world size. ", reader.Report()));
  }
  return place;
}

absl::StatusOr<std::optional<bool>> OneHost(const Reader& reader,
                                            const LaunchEnvironment& place) {
  if (place.world_size == 1) return true;
  if (place.launcher == kProgram) return std::nullopt;
  Knob knob = Knob::kLocalWorldSize;
  int expected = place.world_size;
  if (place.launcher == kOpenMpi.name) {
    knob = Knob::kOmpiLocalSize;
  } else if (place.launcher == kMpich.name) {
    knob = Knob::kMpiLocalSize;
  } else if (place.launcher == kSlurm.name) {
    knob = reader.Has(Knob::kSlurmStepNodes) ? Knob::kSlurmStepNodes
                                             : Knob::kSlurmNodes;
    expected = 1;
  }
  SHERD_ASSIGN_OR_RETURN(const std::optional<int> value,
                         reader.Number(knob, 1, kMaxWorldSize));
  if (!value) return std::nullopt;
  return *value == expected;
}

absl::StatusOr<std::optional<int>> LocalRank(const Reader& reader,
                                             const LaunchEnvironment& place) {
  Knob knob = Knob::kLocalRank;
  for (const Launcher& launcher : kLaunchers) {
    if (place.launcher == launcher.name && !reader.Has(knob)) {
      knob = launcher.local_rank;
    }
  }
  return reader.Number(knob, 0, kMaxWorldSize - 1);
}

// A Slurm step number and job number, scattered over the ports.
absl::StatusOr<int> SlurmPort(const Reader& reader) {
  uint64_t job;
  if (!absl::SimpleAtoi(reader.Text(Knob::kSlurmJobId), &job)) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable SLURM_JOB_ID is \"",
                     reader.Text(Knob::kSlurmJobId), "\", expected a number"));
  }
  uint64_t step = 0;
  (void)absl::SimpleAtoi(reader.Text(Knob::kSlurmStepId), &step);
  return static_cast<int>(kFirstSlurmPort + (job * 101 + step) % kSlurmPorts);
}

absl::Status FindMaster(const Reader& reader, LaunchEnvironment& place) {
  const bool addr = reader.Has(Knob::kMasterAddr);
  SHERD_ASSIGN_OR_RETURN(const std::optional<int> port,
                         reader.Number(Knob::kMasterPort, 1, kLastPort));
  // Under another launcher in a Slurm job, rank 0 may be on any host of it.
  const bool slurm = place.launcher == kSlurm.name;
  std::vector<std::string> sources;
  if (addr) {
    place.master_addr = reader.Text(Knob::kMasterAddr);
    sources.push_back("MASTER_ADDR");
  } else if (slurm) {
    const Knob list = reader.Has(Knob::kSlurmStepNodeList)
                          ? Knob::kSlurmStepNodeList
                          : Knob::kSlurmJobNodeList;
    if (reader.Has(list)) {
      absl::StatusOr<std::string> host = internal::FirstHost(reader.Text(list));
      if (!host.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("environment variable ", VariableOf(list), ": ",
                         host.status().message()));
      }
      place.master_addr = *std::move(host);
      sources.push_back(VariableOf(list));
    }
  }
  if (port) {
    place.master_port = *port;
    sources.push_back("MASTER_PORT");
    const std::string agent =
        absl::AsciiStrToLower(reader.Text(Knob::kTorchAgentStore));
    if (agent == "true" || agent == "1") {
      place.master_port = *port == kLastPort ? *port - 1 : *port + 1;
      sources.back() = absl::StrCat(
          "MASTER_PORT, ", *port,
          ", on which torchrun itself listens, and the port next to it");
    }
  } else if (slurm && reader.Has(Knob::kSlurmJobId)) {
    SHERD_ASSIGN_OR_RETURN(place.master_port, SlurmPort(reader));
    sources.push_back("SLURM_JOB_ID");
  }
  place.master_source = absl::StrJoin(sources, " and ");
  return absl::OkStatus();
}

std::string JobId(const Reader& reader, const LaunchEnvironment& place) {
  // Open MPI draws this key at random for each run. Namespaces alone repeat:
  // they are made of a process number.
  if (place.launcher != kOpenMpi.name || !reader.Has(Knob::kOmpiJobKey)) {
    return "";
  }
  std::string id = absl::StrCat("mpirun-", reader.Text(Knob::kPmixNamespace),
                                "-", reader.Text(Knob::kOmpiJobKey));
  for (char& c : id) {
    if (!absl::ascii_isalnum(c) && c != '-') c = '_';
  }
  return id.substr(0, 128);
}

bool IsHostCharacter(char c) {
  return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_';
}

}  // namespace

namespace internal {

absl::StatusOr<std::string> FirstHost(absl::string_view host_list) {
  const auto bad = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", host_list.substr(0, 200),
                     "\" is not a host list such as node[01-04,07],gpu3"));
  };
  std::string host;
  size_t i = 0;
  while (i < host_list.size() && host_list[i] != ',') {
    if (host_list[i] != '[') {
      if (!IsHostCharacter(host_list[i])) return bad();
      host.push_back(host_list[i++]);
      continue;
    }
    const size_t close = host_list.find(']', i);
    if (close == absl::string_view::npos) return bad();
    const size_t begin = ++i;
    while (i < close && absl::ascii_isdigit(host_list[i])) {
      host.push_back(host_list[i++]);
    }
    // The first number of a bracket is followed by its range or by the next
    // number.
    if (i == begin ||
        (host_list[i] != '-' && host_list[i] != ',' && host_list[i] != ']')) {
      return bad();
    }
    i = close + 1;
  }
  if (host.empty() || host.size() > 253) return bad();
  return host;
}

}  // namespace internal

absl::StatusOr<LaunchEnvironment> ReadLaunchEnvironment(const GivenPlace& given,
                                                        LookUp look_up) {
  const Reader reader(look_up, given);
  if (given.world_size &&
      (*given.world_size < 1 || *given.world_size > kMaxWorldSize)) {
    return absl::InvalidArgumentError(
        absl::StrCat(given.function, ": world_size is ", *given.world_size,
                     ", expected 1 to ", kMaxWorldSize));
  }
  const int last_rank = given.world_size.value_or(kMaxWorldSize) - 1;
  if (given.rank && (*given.rank < 0 || *given.rank > last_rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat(given.function, ": rank is ", *given.rank,
                     ", expected 0 to ", last_rank));
  }
  SHERD_ASSIGN_OR_RETURN(LaunchEnvironment place, FindPlace(reader, given));
  SHERD_ASSIGN_OR_RETURN(place.one_host, OneHost(reader, place));
  SHERD_ASSIGN_OR_RETURN(place.local_rank, LocalRank(reader, place));
  SHERD_RETURN_IF_ERROR(FindMaster(reader, place));
  place.job_id = JobId(reader, place);
  return place;
}

}  // namespace sherd
