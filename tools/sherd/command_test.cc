// Runs the program as a user does.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/tools/sherd/shell.h"

namespace sherd {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

// `arguments` are words of a shell.
ShellResult Sherd(const std::string& arguments) {
  return Shell("tools/sherd/sherd " + arguments);
}

std::string MakeTiny(const std::string& folder) {
  const std::string path = folder + "/tiny.safetensors";
  const ShellResult made =
      Shell("tools/examples/make_model --preset tiny --out " + Quoted(path));
  EXPECT_EQ(made.exit_code, 0) << made.output;
  EXPECT_THAT(made.output, HasSubstr("tiny.safetensors: "));
  return path;
}

TEST(CommandTest, HelpListsTheCommands) {
  const ShellResult help = Sherd("--help");
  EXPECT_EQ(help.exit_code, 0);
  for (const char* command :
       {"run", "info", "inspect", "verify", "recover", "flight", "explain"}) {
    EXPECT_THAT(help.output, HasSubstr(absl::StrCat("\n  ", command, " ")));
    const ShellResult own = Sherd(absl::StrCat(command, " --help"));
    EXPECT_EQ(own.exit_code, 0);
    EXPECT_THAT(own.output, HasSubstr("Usage: "));
  }
}

TEST(CommandTest, AnUnknownCommandListsTheKnownOnes) {
  const ShellResult unknown = Sherd("quickstart prepare");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(
      unknown.output,
      "sherd: \"quickstart\" is not a command, expected one of run, info, "
      "inspect, verify, recover, explain, flight\n");
}

TEST(CommandTest, VersionIsThatOfTheFile) {
  const ShellResult version = Sherd("--version");
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.output, MatchesRegex("sherd [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  EXPECT_EQ(version.output, "sherd " + Shell("cat VERSION").output);
}

TEST(CommandTest, InfoShowsBackendsSearchPathAndKnobs) {
  const ShellResult info = Shell(
      "SHERD_TIMEOUT=17s SHERD_PLUGIN_PATH=/no/such/place "
      "tools/sherd/sherd info");
  EXPECT_EQ(info.exit_code, 0);
  EXPECT_THAT(info.output,
              AllOf(::testing::ContainsRegex("\n  gloo +ok "),
                    ::testing::ContainsRegex("\n  mpi +absent "),
                    HasSubstr("\n  /no/such/place\n"),
                    ::testing::ContainsRegex(
                        "\n  SHERD_TIMEOUT +17s +environment +stable "),
                    ::testing::ContainsRegex(
                        "\n  SHERD_BACKEND +auto +default +stable "),
                    ::testing::ContainsRegex(
                        "\n  read by (io_uring, 8 reads in flight|pread: .+)"
                        "\n  in \\.: (direct|through the page cache: .+)\n")));
  EXPECT_THAT(
      Sherd("info --dir=/no/such/place").output,
      HasSubstr("\n  in /no/such/place: unknown: no file could be created "
                "there to try: No such file or directory\n"));
  const ShellResult json = Sherd("info --json");
  const auto parsed = nlohmann::json::parse(json.output, nullptr, false);
  ASSERT_TRUE(parsed.is_object()) << json.output;
  EXPECT_EQ(parsed["backends"][0]["usable"], true);
  EXPECT_GE(parsed["knobs"].size(), 8u);
  EXPECT_EQ(parsed["files"]["directory"], ".");
  EXPECT_NE(parsed["files"]["reads"], "");
}

constexpr char kEmulator[] = "testing/emulated_gpu/libsherd_emulated_gpu.so";

TEST(CommandTest, InfoReportsWhyNoDeviceWorks) {
  const std::string missing = "SHERD_CUDA_LIBRARY=/no/such/libcuda.so.1 ";
  EXPECT_THAT(
      Shell(missing + "tools/sherd/sherd info").output,
      ::testing::ContainsRegex("\n  cuda +unusable .*/no/such/libcuda.so.1"));
  const ShellResult json = Shell(missing + "tools/sherd/sherd info --json");
  const auto parsed = nlohmann::json::parse(json.output, nullptr, false);
  ASSERT_TRUE(parsed.is_object()) << json.output;
  const auto& cuda = parsed["device_plugins"][0];
  EXPECT_EQ(cuda["name"], "cuda");
  EXPECT_EQ(cuda["usable"], false);
  EXPECT_THAT(cuda["reason"].get<std::string>(),
              HasSubstr("/no/such/libcuda.so.1"));
  EXPECT_TRUE(cuda["devices"].empty());
}

TEST(CommandTest, InfoShowsDevicesAndLibrariesOfTheVendor) {
  const std::string emulated =
      absl::StrCat("SHERD_EMULATED_GPUS=2 SHERD_CUDA_LIBRARY=", kEmulator,
                   " SHERD_NCCL_LIBRARY=", kEmulator, " ");
  EXPECT_THAT(
      Shell(emulated + "tools/sherd/sherd info").output,
      AllOf(::testing::ContainsRegex(
                "\n  cuda +ok +.*libsherd_emulated_gpu.so.* linked statically"),
            ::testing::ContainsRegex(
                "\n  nccl +ok +.*libsherd_emulated_gpu.so.* linked statically"),
            ::testing::ContainsRegex("\n  cuda:0 +[0-9a-f:.]+ +[0-9.]+ GiB "),
            ::testing::ContainsRegex("\n  cuda:1 +[0-9a-f:.]+ +[0-9.]+ GiB ")));
  const ShellResult json = Shell(emulated + "tools/sherd/sherd info --json");
  const auto parsed = nlohmann::json::parse(json.output, nullptr, false);
  ASSERT_TRUE(parsed.is_object()) << json.output;
  const auto& devices = parsed["device_plugins"][0]["devices"];
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[1]["device"], "cuda:1");
  EXPECT_GT(devices[1]["total_bytes"], 0u);
  EXPECT_NE(devices[0]["bus_id"], devices[1]["bus_id"]);
}

TEST(CommandTest, InspectPrintsTextJsonAndPicture) {
  const std::string folder = ShellTestFolder();
  const std::string model = Quoted(MakeTiny(folder));
  EXPECT_THAT(Sherd("inspect " + model).output, HasSubstr("\nscalar.step "));
  const auto json = nlohmann::json::parse(
      Sherd("inspect --json " + model).output, nullptr, false);
  EXPECT_EQ(json["kind"], "safetensors");
  const std::string svg = folder + "/who.svg";
  const ShellResult drawn = Sherd("inspect --svg=" + Quoted(svg) + " " + model);
  EXPECT_EQ(drawn.exit_code, 0) << drawn.output;
  EXPECT_THAT(Shell("cat " + Quoted(svg)).output,
              AllOf(StartsWith("<svg"), EndsWith("</svg>\n")));
  for (const std::string& arguments : {model + " --svg", "--svg " + model}) {
    EXPECT_THAT(Sherd("inspect " + arguments).output,
                AllOf(StartsWith("<svg"), EndsWith("</svg>\n")));
  }
}

TEST(CommandTest, ExplainForeseesAReshardAsTextJsonAndPicture) {
  const std::string move =
      "explain reshard --size=8x12 --dtype=float64 --from='chunk(0) over 2' "
      "--to='grid(1x2)' ";
  EXPECT_THAT(Sherd(move).output,
              AllOf(StartsWith("2 shards to 2 shards on 2 ranks, elements of 8 "
                               "bytes\n"),
                    ::testing::ContainsRegex(
                        "moved +384 B  1.00 times the lower bound, 384 B\n")));
  const auto json =
      nlohmann::json::parse(Sherd(move + "--json").output, nullptr, false);
  EXPECT_EQ(json["bytes_moved"], 384);
  EXPECT_EQ(json["heat_map"]["bytes"][1][0], 192);
  const std::string svg = ShellTestFolder() + "/moves.svg";
  const ShellResult drawn = Sherd(move + "--svg=" + Quoted(svg));
  EXPECT_EQ(drawn.output, svg + "\n");
  for (const std::string& picture :
       {Shell("cat " + Quoted(svg)).output, Sherd(move + "--svg").output}) {
    EXPECT_THAT(picture, AllOf(StartsWith("<svg"), EndsWith("</svg>\n")));
  }
  // Sizes are powers of 1024 with an i; two messages out and two in, in two
  // rounds at once.
  EXPECT_THAT(Sherd(move + "--staging=1KiB").output, HasSubstr("1.02 kB"));
  const auto direct = nlohmann::json::parse(
      Sherd(move + "--json --direct --ranks-per-host=1").output, nullptr,
      false);
  EXPECT_EQ(direct["messages"], 0);
  EXPECT_EQ(direct["bytes_between_hosts"], 384);
}

TEST(CommandTest, ExplainReportsWhatIsWrongWithItsArguments) {
  struct Case {
    const char* arguments;
    int exit_code;
    const char* phrase;
  };
  const Case cases[] = {
      {"explain", 2, "subcommand"},
      {"explain reshard --size=8x8 --from='grid(2x2)'", 2, "--to is required"},
      {"explain reshard --size=8x8 --from='grid(2x2)' --to='rows'", 1,
       "sherd explain reshard: --to: \"rows\": expected chunk(DIM) over"},
      {"explain reshard --size=8x8 --from='chunk(2) over 2' --to='grid(2x2)'",
       1, "sherd explain reshard: --from: Invalid sharding dim"},
      {"explain reshard --size=8,8 --from='grid(2x2)' --to='grid(2x2)'", 1,
       "sherd explain reshard: --size: \"8,8\": expected a number from 0 to "},
      {"explain reshard --size=8x8 --dtype=real --from='grid(2x2)' "
       "--to='grid(2x2)'",
       1, "real"},
      {"explain reshard --size=8x8 --staging=8 --from='grid(1x2)' "
       "--to='grid(2x1)'",
       1, "max_staging_bytes is 8, expected "},
      {"explain reshard --size=2305843009213693951 --dtype=float64 "
       "--from='chunk(0) over 2' --to='chunk(0) over 3'",
       1, "64 bits"},
      {"explain reshard --size=8x8 --json --svg --from='grid(1x2)' "
       "--to='grid(2x1)'",
       2, "--svg"},
  };
  for (const Case& c : cases) {
    const ShellResult result = Sherd(c.arguments);
    EXPECT_EQ(result.exit_code, c.exit_code) << c.arguments;
    EXPECT_THAT(result.output, HasSubstr(c.phrase)) << c.arguments;
  }
}

TEST(CommandTest, FlightComparesDumpsAndWritesATrace) {
  const std::string folder = ShellTestFolder();
  const ShellResult empty = Sherd("flight " + Quoted(folder));
  EXPECT_EQ(empty.exit_code, 1);
  EXPECT_THAT(empty.output, StartsWith(absl::StrCat("sherd flight: ", folder,
                                                    ": no flight.rank-")));
  // The dump of rank 5; rank 4, of the same group, left none.
  ASSERT_EQ(Shell("cp core/comm/testdata/flight_dump.json " +
                  Quoted(folder + "/flight.rank-5.json"))
                .exit_code,
            0);
  const std::string trace = folder + "/trace.json";
  const ShellResult text =
      Sherd("flight --trace=" + Quoted(trace) + " " + Quoted(folder));
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_THAT(text.output, HasSubstr("\n  ! rank 4 left no dump"));
  const auto spans = nlohmann::json::parse(Shell("cat " + Quoted(trace)).output,
                                           nullptr, false);
  ASSERT_TRUE(spans.is_object());
  EXPECT_EQ(spans["traceEvents"].back()["name"], "barrier");
  const ShellResult json = Sherd("flight --json " + Quoted(folder));
  EXPECT_EQ(json.exit_code, 1);
  EXPECT_EQ(nlohmann::json::parse(json.output, nullptr, false)["deviation"],
            true);
}

TEST(CommandTest, ErrorsNameTheCommandAndTheFile) {
  const std::string folder = ShellTestFolder();
  for (const char* command : {"inspect", "verify"}) {
    const ShellResult missing =
        Sherd(absl::StrCat(command, " ", Quoted(folder + "/nothing")));
    EXPECT_EQ(missing.exit_code, 1);
    EXPECT_EQ(missing.output,
              absl::StrCat("sherd ", command, ": ", folder,
                           "/nothing: no such file or directory, expected a "
                           "safetensors file or a checkpoint directory\n"));
    EXPECT_EQ(Sherd(command).exit_code, 2);
  }
}

TEST(CommandTest, VerifyDistinguishesSoundFromDamaged) {
  const std::string folder = ShellTestFolder();
  const std::string model = MakeTiny(folder);
  const ShellResult sound = Sherd("verify " + Quoted(model));
  EXPECT_EQ(sound.exit_code, 0);
  EXPECT_THAT(sound.output, HasSubstr(": sound: "));
  ASSERT_EQ(Shell("truncate -s -1 " + Quoted(model)).exit_code, 0);
  const ShellResult damaged = Sherd("verify " + Quoted(model));
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.output, AllOf(StartsWith("sherd verify: "),
                                    HasSubstr("tiny.safetensors")));
}

TEST(CommandTest, RecoverReportsAFolderWithoutDataFiles) {
  const std::string folder = ShellTestFolder();
  const ShellResult nothing = Sherd("recover " + Quoted(folder));
  EXPECT_EQ(nothing.exit_code, 1);
  EXPECT_THAT(nothing.output, AllOf(StartsWith("sherd recover: "),
                                    HasSubstr("has no data files")));
  EXPECT_EQ(Sherd("recover").exit_code, 2);
}

}  // namespace
}  // namespace sherd
