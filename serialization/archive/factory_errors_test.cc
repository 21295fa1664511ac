// Each error that the factories of files, checkpoints, series and archives
// document, and no other.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/serialization/archive.h"
#include "sherd/serialization/checkpoint_reader.h"
#include "sherd/serialization/checkpoint_series.h"
#include "sherd/serialization/kits/sample_archive.h"
#include "sherd/serialization/kits/sample_manifest.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/serialization/store.h"
#include "sherd/serialization/wire/little_endian.h"
#include "sherd/testing/kits/contract_cards.h"
#include "sherd/testing/local_ranks.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::DocumentedError;
using ::sherd::testing::ExpectCardsHold;
using ::sherd::testing::IsOk;
using ::sherd::testing::RunLocalRanks;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr absl::StatusCode kPrecondition =
    absl::StatusCode::kFailedPrecondition;
constexpr absl::StatusCode kMissing = absl::StatusCode::kUnimplemented;
constexpr absl::StatusCode kDamaged = absl::StatusCode::kDataLoss;
constexpr absl::StatusCode kNone = absl::StatusCode::kNotFound;
constexpr absl::StatusCode kSpace = absl::StatusCode::kResourceExhausted;
constexpr absl::StatusCode kLate = absl::StatusCode::kDeadlineExceeded;
constexpr absl::StatusCode kGone = absl::StatusCode::kUnavailable;

std::string In(const char* header, const char* phrase) {
  return std::string("serialization/") + header + ": " + phrase;
}

class FactoryErrorsTest : public ::testing::Test {
 protected:
  FactoryErrorsTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = JoinPath(::testing::TempDir(),
                       absl::StrCat("factory_errors_", info->name()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  std::string Path(absl::string_view name) const {
    return JoinPath(folder_, std::string(name));
  }

  // The path of a new file, or one of a folder that the path creates.
  std::string Write(absl::string_view name, absl::string_view bytes) const {
    const std::string path = Path(name);
    std::filesystem::create_directories(
        std::filesystem::path(path).parent_path());
    EXPECT_THAT(WriteFileAtomically(files_, path, AsBytes(bytes)), IsOk());
    return path;
  }

  FileSystem& files_ = FileSystem::Posix();
  std::string folder_;
};

TEST_F(FactoryErrorsTest, OfSafetensors) {
  // A header of this text, and data.
  const auto file = [&](const std::string& name, const std::string& json) {
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(json.size());
    return Write(name, bytes + json + "data");
  };
  const auto open = [&](const std::string& path) {
    return
        [this, path] { return SafetensorsFile::Open(files_, path).status(); };
  };
  const auto create = [&](const std::string& name,
                          std::vector<SafetensorsTensorInfo> tensors,
                          std::map<std::string, std::string> metadata = {}) {
    return [=, this] {
      return SafetensorsWriter::Create(files_, Path(name), tensors, metadata)
          .status();
    };
  };
  ExpectCardsHold({
      {"SafetensorsFile::Open",
       {In("safetensors.h", "Reads the header, nothing else"),
        In("safetensors/safetensors_header.h", "Parses a header, without")},
       {{"no file", kNone, open(Path("none"))},
        {"a directory", kInvalid, open(folder_)},
        {"shorter than 8 bytes", kDamaged, open(Write("short", "12345"))},
        {"cut short", kDamaged,
         open(Write("cut", absl::string_view("\x7f\0\0\0\0\0\0\0{}", 10)))},
        {"a header longer than allowed", kDamaged,
         open(Write("long", "\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f{}"))},
        {"not JSON", kDamaged, open(file("text", "a text"))},
        {"a dtype that there is not", kMissing,
         open(file("dtype",
                   "{\"a\":{\"dtype\":\"F2\",\"shape\":[1],"
                   "\"data_offsets\":[0,4]}}"))}}},
      {"SafetensorsWriter::Create",
       {In("safetensors.h", "Creates the file, reserves its space")},
       {{"no name", kInvalid, create("x", {{"", kFloat32, {1}}})},
        {"a name twice", kInvalid,
         create("x", {{"a", kFloat32, {1}}, {"a", kFloat32, {1}}})},
        {"a negative size", kInvalid, create("x", {{"a", kFloat32, {-1}}})},
        {"2^63 bytes", kInvalid,
         create("x", {{"a", kFloat32, {std::numeric_limits<int64_t>::max()}}})},
        {"metadata that is not UTF-8", kInvalid,
         create("x", {{"a", kFloat32, {1}}}, {{"key", "\xff"}})},
        {"no directory", kNone, create("no/folder/x", {{"a", kFloat32, {1}}})},
        {"too little space", kSpace,
         create("x", {{"a", kUInt8, {int64_t{1} << 60}}})}}},
  });
}

TEST_F(FactoryErrorsTest, OfCheckpoints) {
  const std::string manifest = EncodeManifest(SampleManifest()).value();
  std::string later = manifest;
  later[8] = 3;
  std::string damaged = manifest;
  damaged.back() ^= 1;
  const std::string large = Path(absl::StrCat("large/", kManifestFileName));
  Write(absl::StrCat("large/", kManifestFileName), "");
  std::filesystem::resize_file(large, kMaxManifestBytes + 1);
  std::filesystem::create_directories(
      Path(absl::StrCat("directory/", kManifestFileName)));
  std::filesystem::create_directories(Path("link"));
  std::filesystem::create_symlink(
      "nowhere", Path(absl::StrCat("link/", kManifestFileName)));
  Write(absl::StrCat("later/", kManifestFileName), later);
  Write(absl::StrCat("damaged/", kManifestFileName), damaged);
  Write(absl::StrCat("text/", kManifestFileName), "a text");
  Write(absl::StrCat("sound/", kManifestFileName), manifest);
  const auto open = [&](const std::string& path) {
    return [path] { return CheckpointReader::Open(path).status(); };
  };
  EXPECT_THAT(open(Path("sound"))(), IsOk());
  const CheckpointStoreFactory none = [](const std::string&) {
    return absl::UnavailableError("there is none");
  };
  ExpectCardsHold({
      {"CheckpointReader::Open",
       {In("checkpoint_reader.h", "Reads what ManifestReader::Open reads")},
       {{"no directory", kNone, open(Path("none"))},
        {"no manifest", kNone, open(folder_)},
        {"a directory in its place", kInvalid, open(Path("directory"))},
        {"no such store", kInvalid, open("nostore://x")},
        {"a link to nothing", kPrecondition, open(Path("link"))},
        {"a later version", kMissing, open(Path("later"))},
        {"a damaged manifest", kDamaged, open(Path("damaged"))},
        {"another file", kDamaged, open(Path("text"))},
        {"a manifest that is too large", kSpace, open(Path("large"))}}},
      {"OpenCheckpointStore",
       {In("store.h", "The store of an address, \"scheme:location\".")},
       {{"a path", kInvalid,
         [] { return OpenCheckpointStore("/tmp/x").status(); }},
        {"no such scheme", kInvalid,
         [] { return OpenCheckpointStore("nostore://x").status(); }},
        {"no location", kInvalid,
         [] { return OpenCheckpointStore("objects:").status(); }}}},
      {"RegisterCheckpointStore",
       {In("store.h", "From here on, for the rest of the process, paths")},
       {{"not a scheme", kInvalid,
         [=] { return RegisterCheckpointStore("S3", none); }},
        {"no factory", kInvalid,
         [] { return RegisterCheckpointStore("store", nullptr); }},
        {"a built-in scheme", absl::StatusCode::kAlreadyExists,
         [=] { return RegisterCheckpointStore("objects", none); }}}},
  });
}

TEST_F(FactoryErrorsTest, OfSeries) {
  // The error of rank 0 of two, whose options may differ.
  const auto of_two = [this](std::function<void(int rank, std::string& path,
                                                SeriesOptions& options)>
                                 edit) {
    return [=, this] {
      absl::Status status;
      RunLocalRanks(2, [&](ProcessGroup& group) {
        std::string path = Path("steps");
        SeriesOptions options;
        edit(group.rank(), path, options);
        const absl::Status own =
            CheckpointSeries::Open(path, nullptr, options).status();
        if (group.rank() == 0) status = own;
      });
      return status;
    };
  };
  ExpectCardsHold({
      {"CheckpointSeries::Open",
       {In("checkpoint_series.h", "Creates and changes no file. Collective")},
       {{"no directory", kInvalid,
         of_two([](int, std::string& path, SeriesOptions&) { path = ""; })},
        {"a copy in the same place", kInvalid,
         of_two([](int, std::string& path, SeriesOptions& options) {
           options.copy_to = path;
         })},
        {"keep_last", kInvalid,
         of_two([](int, std::string&, SeriesOptions& options) {
           options.keep_last = -1;
         })},
        {"keep_every", kInvalid,
         of_two([](int, std::string&, SeriesOptions& options) {
           options.keep_every = -1;
         })},
        {"other directories", kInvalid,
         of_two([](int rank, std::string& path, SeriesOptions&) {
           absl::StrAppend(&path, rank);
         })},
        {"other options", kInvalid,
         of_two([](int rank, std::string&, SeriesOptions& options) {
           options.incremental = rank == 1;
         })},
        {"no group", kPrecondition,
         [this] { return CheckpointSeries::Open(Path("steps")).status(); }},
        {"a rank that waits for this one", kLate,
         [this] {
           absl::Status status;
           absl::Notification over;
           RunLocalRanks(2, [&](ProcessGroup& group) {
             if (group.rank() == 1) return over.WaitForNotification();
             SeriesOptions options;
             options.save.timeout = absl::Milliseconds(20);
             status = CheckpointSeries::Open(Path("steps"), nullptr, options)
                          .status();
             over.Notify();
           });
           return status;
         }},
        {"a rank that left", kGone,
         [this] {
           absl::Status status;
           RunLocalRanks(2, [&](ProcessGroup& group) {
             if (group.rank() == 1) return;
             status = CheckpointSeries::Open(Path("steps")).status();
           });
           return status;
         }}}},
  });
}

TEST_F(FactoryErrorsTest, OfArchives) {
  const std::string bytes = SaveToString(SampleState().value()).value();
  const std::string sound = Write("sound", bytes);
  std::string later = bytes;
  later[8] = 100;
  std::string damaged = bytes;
  damaged[40] ^= 1;
  const auto open = [](const std::string& path,
                       const ArchiveLoadOptions& options = {}) {
    return [=] { return Archive::Open(path, options).status(); };
  };
  EXPECT_THAT(open(sound)(), IsOk());
  ArchiveLoadOptions foo;
  foo.device = Device("foo");
  ExpectCardsHold({
      {"Archive::Open",
       {In("archive.h", "Reads the tree and checks it, without elements")},
       {{"no file", kNone, open(Path("none"))},
        {"a directory", kInvalid, open(folder_)},
        {"no such store", kInvalid, open("nostore://x")},
        {"a map of a store", kInvalid,
         open(absl::StrCat("file:", sound), {.map = true})},
        {"a map of bytes: see archive_test", kInvalid, nullptr},
        {"text that is not a device", kPrecondition, open(sound, foo)},
        {"a later version", kMissing, open(Write("later", later))},
        {"a damaged tree", kDamaged, open(Write("damaged", damaged))},
        {"cut short", kDamaged,
         open(Write("cut",
                    absl::string_view(bytes).substr(0, bytes.size() - 1)))},
        {"another file", kDamaged, open(Write("text", "a text"))}}},
  });
  RunLocalRanks(1, [](ProcessGroup&) {
    const auto scope = ScopedLoadGroup::Create(DefaultGroup().value());
    ASSERT_THAT(scope, IsOk());
    ExpectCardsHold({
        {"ScopedLoadGroup::Create",
         {In("archive.h", "This process need not be a member of `group`.")},
         {{"no group", kInvalid,
           [] { return ScopedLoadGroup::Create(nullptr).status(); }},
          {"one already", kPrecondition,
           [] {
             return ScopedLoadGroup::Create(DefaultGroup().value()).status();
           }}}},
    });
  });
}

}  // namespace
}  // namespace sherd
