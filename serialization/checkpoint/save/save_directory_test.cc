#include "sherd/serialization/checkpoint/save/save_directory.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/kits/forwarding_files.h"
#include "sherd/serialization/kits/sample_manifest.h"
#include "sherd/serialization/manifest/directory_names.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_codec.h"
#include "sherd/serialization/wire/little_endian.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::FailFileOperation;
using sherd::testing::IsOk;
using sherd::testing::StatusIs;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

// When a rename of a staged manifest takes effect that is reported as unknown.
enum class Effect { kAtOnce, kBeforeNextRemoval, kBeforeDataIsRemoved, kNever };

// A server whose answer to the rename of a staged manifest is lost.
class UnsureFiles final : public ForwardingFiles {
 public:
  explicit UnsureFiles(Effect effect) : effect_(effect) {}

  absl::Status Rename(const std::string& from, const std::string& to) override {
    return IsManifest(to) ? Lose(from, to) : ForwardingFiles::Rename(from, to);
  }
  absl::Status RenameNew(const std::string& from,
                         const std::string& to) override {
    return IsManifest(to) ? Lose(from, to)
                          : ForwardingFiles::RenameNew(from, to);
  }
  absl::Status Remove(const std::string& path) override {
    if (effect_ == Effect::kBeforeNextRemoval) Arrive();
    if (effect_ == Effect::kBeforeDataIsRemoved &&
        absl::EndsWith(path, ".safetensors")) {
      Arrive();
    }
    return ForwardingFiles::Remove(path);
  }

  // Not of the lease, whose holder removes it before.
  void Arm() { armed_ = true; }

 private:
  static bool IsManifest(const std::string& path) {
    return IsManifestName(absl::string_view(path).substr(path.rfind('/') + 1));
  }
  absl::Status Lose(const std::string& from, const std::string& to) {
    from_ = from;
    to_ = to;
    if (effect_ == Effect::kAtOnce) Posix().Rename(from, to).IgnoreError();
    return absl::UnknownError("no answer");
  }
  void Arrive() {
    if (armed_) Posix().Rename(from_, to_).IgnoreError();
  }

  const Effect effect_;
  bool armed_ = false;
  std::string from_;
  std::string to_;
};

// The names in the directory after a save of one file whose switch ended with
// an error, whose effect came as given, and which then removed its files.
std::vector<std::string> NamesAfterUnsureSwitch(Effect effect,
                                                std::optional<int64_t> step,
                                                std::string* data_file) {
  const std::string path =
      JoinPath(::testing::TempDir(), "save_directory_unsure");
  EXPECT_THAT(FileSystem::Posix().RemoveAll(path), IsOk());
  UnsureFiles files(effect);
  SaveDirectory directory(files, path, /*sync=*/true,
                          [] { return absl::OkStatus(); }, {.step = step});
  const absl::StatusOr<uint64_t> id = directory.Take(absl::Minutes(2), 0);
  EXPECT_THAT(id, IsOk());
  if (!id.ok()) return {};
  directory.SetSaveId(*id);
  *data_file = DataFileName(0, 1, directory.save_id());
  EXPECT_THAT(WriteFileAtomically(files, JoinPath(path, *data_file), {}),
              IsOk());
  Manifest manifest = SampleManifest();
  manifest.save_id = directory.save_id();
  manifest.files[0].name = *data_file;
  const auto bytes = EncodeManifest(manifest);
  EXPECT_THAT(bytes, IsOk());
  if (!bytes.ok()) return {};
  EXPECT_THAT(directory.Switch(manifest, *bytes),
              StatusIs(absl::StatusCode::kUnknown));
  directory.Release();
  files.Arm();
  directory.RemoveOwnFiles();
  const auto names = FileSystem::Posix().List(path);
  EXPECT_THAT(names, IsOk());
  return names.value_or(std::vector<std::string>());
}

TEST(SaveDirectoryTest, ASwitchThatTakesEffectLateKeepsItsFilesOrHasNone) {
  for (const bool is_step : {false, true}) {
    SCOPED_TRACE(is_step);
    std::optional<int64_t> step;
    if (is_step) step = 7;
    const std::string manifest =
        is_step ? StepManifestName(7) : std::string(kManifestFileName);
    std::string data;
    for (const Effect effect : {Effect::kAtOnce, Effect::kBeforeNextRemoval}) {
      const auto names = NamesAfterUnsureSwitch(effect, step, &data);
      EXPECT_THAT(names, UnorderedElementsAre(manifest, data));
    }
    for (const Effect effect : {Effect::kBeforeDataIsRemoved, Effect::kNever}) {
      EXPECT_THAT(NamesAfterUnsureSwitch(effect, step, &data), IsEmpty());
    }
  }
}

// As of an object store, where a removal takes an entry of the index.
TEST(SaveDirectoryTest, OfASwitchThatFindsNoSpaceTheDataFilesGo) {
  const std::string path =
      JoinPath(::testing::TempDir(), "save_directory_full");
  EXPECT_THAT(FileSystem::Posix().RemoveAll(path), IsOk());
  for (const absl::Status& error : {absl::ResourceExhaustedError("disk full"),
                                    absl::InternalError("no answer")}) {
    SaveDirectory directory(FileSystem::Posix(), path, /*sync=*/true,
                            [] { return absl::OkStatus(); });
    SHERD_ASSERT_OK_AND_ASSIGN(const uint64_t id,
                               directory.Take(absl::Minutes(2), 0));
    directory.SetSaveId(id);
    const std::string data = DataFileName(0, 1, directory.save_id());
    ASSERT_THAT(
        WriteFileAtomically(FileSystem::Posix(), JoinPath(path, data), {}),
        IsOk());
    Manifest manifest = SampleManifest();
    manifest.save_id = directory.save_id();
    manifest.files[0].name = data;
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                               EncodeManifest(manifest));
    const FailFileOperation rename("rename", JoinPath(path, kManifestFileName),
                                   error);
    const FailFileOperation removal("remove", JoinPath(path, "manifest*.tmp"),
                                    error);
    EXPECT_THAT(directory.Switch(manifest, bytes), StatusIs(error.code()));
    directory.RemoveOwnFiles();
    SHERD_ASSERT_OK_AND_ASSIGN(const auto names,
                               FileSystem::Posix().List(path));
    // If the switch may still take effect, it finds them.
    EXPECT_EQ(std::count(names.begin(), names.end(), data),
              absl::IsResourceExhausted(error) ? 0 : 1);
  }
}

// Of two hosts whose clocks are behind that of the one that saved last.
TEST(SaveDirectoryTest, SavesAfterTheSameOneHaveNumbersOfTheirOwn) {
  const std::string path =
      JoinPath(::testing::TempDir(), "save_directory_numbers");
  EXPECT_THAT(FileSystem::Posix().RemoveAll(path), IsOk());
  ASSERT_THAT(FileSystem::Posix().CreateDirectories(path), IsOk());
  constexpr uint64_t kLast = 0x7fff'ffff'0000'0000;
  Manifest manifest = SampleManifest();
  manifest.save_id = "7fffffff00000000";
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, EncodeManifest(manifest));
  ASSERT_THAT(
      WriteFileAtomically(FileSystem::Posix(),
                          JoinPath(path, kManifestFileName), AsBytes(bytes)),
      IsOk());
  std::set<uint64_t> ids;
  for (int i = 0; i < 3; ++i) {
    SaveDirectory directory(FileSystem::Posix(), path, /*sync=*/true,
                            [] { return absl::OkStatus(); });
    SHERD_ASSERT_OK_AND_ASSIGN(const uint64_t id,
                               directory.Take(absl::Minutes(2), 0));
    EXPECT_GT(id, kLast);
    EXPECT_LE(id, kLast + (uint64_t{1} << 30));
    ids.insert(id);
  }
  EXPECT_THAT(ids, SizeIs(3));
}

}  // namespace
}  // namespace sherd
