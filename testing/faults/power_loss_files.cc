#include "sherd/testing/power_loss_files.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::testing {
namespace {

// Files grow and tear in blocks of this size.
constexpr size_t kBlockBytes = 4096;

std::string Normal(const std::string& path) {
  std::string normal =
      std::filesystem::absolute(path).lexically_normal().string();
  while (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  return normal;
}

// Of a name below the root; "" is the root.
std::string DirectoryOf(const std::string& name) {
  return std::filesystem::path(name).parent_path().string();
}

// What one seed keeps of what was not synced.
class Outcome {
 public:
  // `changes` are those that it decides on.
  Outcome(uint64_t seed, size_t changes) : random_(seed) {
    if (seed < 4) {
      keeps_names_ = seed % 2 == 0 ? 1 : 0;
      keeps_contents_ = seed == 0 || seed == 3 ? 1 : 0;
      return;
    }
    // A missing sync shows when one change is lost, or one alone is kept; what
    // takes several needs them drawn each by itself.
    const uint64_t kind = random_() % 3;
    if (kind < 2) {
      keeps_names_ = keeps_contents_ = static_cast<double>(kind);
      exception_ = random_() % std::max<size_t>(changes, 1);
      return;
    }
    constexpr double kShares[] = {0.1, 0.5, 0.9};
    keeps_names_ = kShares[random_() % 3];
    keeps_contents_ = kShares[random_() % 3];
    tears_ = true;
  }

  bool KeepsName() { return Keeps(keeps_names_); }
  bool KeepsContents() { return Keeps(keeps_contents_); }
  bool LeavesFormerName() { return tears_ && Draw(0.3); }
  bool Tears() { return tears_ && Draw(0.3); }
  bool KeepsBlock() { return Draw(0.5); }

 private:
  bool Keeps(double share) { return Draw(share) != (decided_++ == exception_); }
  bool Draw(double probability) {
    return std::bernoulli_distribution(probability)(random_);
  }

  std::mt19937_64 random_;
  size_t decided_ = 0;
  // The decision that is turned round.
  size_t exception_ = std::numeric_limits<size_t>::max();
  double keeps_names_ = 0;
  double keeps_contents_ = 0;
  bool tears_ = false;
};

// A change of a file's contents.
struct ContentChange {
  // The file is cut off at 0 instead.
  bool truncates = false;
  size_t offset = 0;
  std::string data;
  // The write failed: a sync does not cover it.
  bool in_doubt = false;
  // Ascending.
  int64_t number = 0;
};

void Overwrite(std::string& contents, size_t offset, absl::string_view data) {
  if (data.empty()) return;
  if (contents.size() < offset + data.size()) {
    contents.resize(offset + data.size());
  }
  std::copy(data.begin(), data.end(), contents.begin() + offset);
}

void Apply(const ContentChange& change, std::string& contents) {
  if (change.truncates) contents.clear();
  Overwrite(contents, change.offset, change.data);
}

// Some of the blocks of a write.
void ApplyTorn(const ContentChange& change, Outcome& outcome,
               std::string& contents) {
  const absl::string_view data = change.data;
  for (size_t begin = 0; begin < data.size();) {
    const size_t end =
        std::min(data.size(),
                 begin + kBlockBytes - (change.offset + begin) % kBlockBytes);
    if (outcome.KeepsBlock()) {
      Overwrite(contents, change.offset + begin,
                data.substr(begin, end - begin));
    }
    begin = end;
  }
}

absl::Status WriteWhole(const std::filesystem::path& path,
                        const std::string& contents) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << contents;
  out.close();
  return out ? absl::OkStatus()
             : absl::InternalError(absl::StrCat("writing ", path.string()));
}

}  // namespace

// A file or a directory, whatever its name.
struct PowerLossFiles::Node {
  bool is_directory = false;
  std::string durable;
  std::vector<ContentChange> changes;
  int64_t last_number = 0;

  void Add(ContentChange change) {
    change.number = ++last_number;
    changes.push_back(std::move(change));
  }

  std::string Survivor(Outcome& outcome) const {
    std::string contents = durable;
    for (const ContentChange& change : changes) {
      if (!change.truncates && outcome.Tears()) {
        ApplyTorn(change, outcome, contents);
      } else if (outcome.KeepsContents()) {
        Apply(change, contents);
      }
    }
    return contents;
  }

  // Makes durable what was there when a sync began.
  void Sync(int64_t number) {
    std::vector<ContentChange> left;
    for (ContentChange& change : changes) {
      if (change.in_doubt || change.number > number) {
        left.push_back(std::move(change));
      } else {
        Apply(change, durable);
      }
    }
    changes = std::move(left);
  }
};

class PowerLossFiles::RecordedFile final : public File {
 public:
  RecordedFile(PowerLossFiles& files, NodePtr node, std::unique_ptr<File> file)
      : File(file->path()),
        files_(files),
        node_(std::move(node)),
        file_(std::move(file)) {}

  absl::Status ReadAt(int64_t offset, absl::Span<std::byte> buffer) override {
    SHERD_RETURN_IF_ERROR(files_.Begin("reading", path()));
    return file_->ReadAt(offset, buffer);
  }

  absl::Status WriteAt(int64_t offset,
                       absl::Span<const std::byte> data) override {
    SHERD_RETURN_IF_ERROR(files_.Begin("writing", path()));
    const absl::Status written = file_->WriteAt(offset, data);
    Record({.offset = static_cast<size_t>(offset),
            .data = std::string(reinterpret_cast<const char*>(data.data()),
                                data.size()),
            .in_doubt = !written.ok()});
    return written;
  }

  absl::StatusOr<int64_t> Size() override {
    SHERD_RETURN_IF_ERROR(files_.Begin("asking for the size of", path()));
    return file_->Size();
  }

  absl::Status Reserve(int64_t size) override {
    SHERD_RETURN_IF_ERROR(files_.Begin("reserving space for", path()));
    return file_->Reserve(size);
  }

  absl::Status StartWriteback(int64_t offset, int64_t bytes) override {
    SHERD_RETURN_IF_ERROR(files_.Begin("starting to write back", path()));
    return file_->StartWriteback(offset, bytes);
  }

  absl::Status Sync() override {
    SHERD_RETURN_IF_ERROR(files_.Begin("syncing", path()));
    const int64_t number = LastNumber();
    SHERD_RETURN_IF_ERROR(file_->Sync());
    absl::MutexLock lock(&files_.mutex_);
    if (node_ != nullptr) node_->Sync(number);
    return absl::OkStatus();
  }

  absl::Status Close() override {
    SHERD_RETURN_IF_ERROR(files_.Begin("closing", path()));
    return file_->Close();
  }

 private:
  void Record(ContentChange change) {
    absl::MutexLock lock(&files_.mutex_);
    if (node_ != nullptr) node_->Add(std::move(change));
  }

  int64_t LastNumber() const {
    absl::MutexLock lock(&files_.mutex_);
    return node_ == nullptr ? 0 : node_->last_number;
  }

  PowerLossFiles& files_;
  // Null outside of the directory.
  const NodePtr node_;
  const std::unique_ptr<File> file_;
};

PowerLossFiles::PowerLossFiles(FileSystem& files, const std::string& directory)
    : files_(files),
      root_(Normal(directory)),
      cut_at_(std::numeric_limits<int64_t>::max()) {
  absl::MutexLock lock(&mutex_);
  ReadTree("");
  durable_names_ = names_;
}

PowerLossFiles::~PowerLossFiles() = default;

void PowerLossFiles::ReadTree(const std::string& name) {
  const auto names = files_.List(JoinPath(root_, name));
  SHERD_CHECK(names.ok()) << names.status().ToString();
  for (const std::string& child : *names) {
    const std::string below = name.empty() ? child : JoinPath(name, child);
    const std::string path = JoinPath(root_, below);
    const NodePtr node = names_[below] = std::make_shared<Node>();
    const auto is_directory = files_.IsDirectory(path);
    SHERD_CHECK(is_directory.ok()) << is_directory.status().ToString();
    node->is_directory = *is_directory;
    if (node->is_directory) {
      ReadTree(below);
      continue;
    }
    auto contents = ReadFile(files_, path, std::numeric_limits<int64_t>::max());
    SHERD_CHECK(contents.ok()) << contents.status().ToString();
    node->durable = *std::move(contents);
  }
}

void PowerLossFiles::CutPowerAt(int64_t operation) {
  absl::MutexLock lock(&mutex_);
  cut_at_ = operation;
}

int64_t PowerLossFiles::operations() const {
  absl::MutexLock lock(&mutex_);
  return operations_;
}

absl::Status PowerLossFiles::Begin(absl::string_view what,
                                   const std::string& path) {
  absl::MutexLock lock(&mutex_);
  if (++operations_ < cut_at_) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(what, " ", path, ": the power is off"));
}

std::optional<std::string> PowerLossFiles::NameOf(
    const std::string& path) const {
  const std::string normal = Normal(path);
  if (normal == root_) return "";
  if (!absl::StartsWith(normal, root_ + "/")) return std::nullopt;
  return normal.substr(root_.size() + 1);
}

void PowerLossFiles::Change(NameChange change) {
  if (!change.former.empty()) names_.erase(change.former);
  if (change.node == nullptr) {
    names_.erase(change.name);
  } else {
    names_[change.name] = change.node;
  }
  changes_.push_back(std::move(change));
}

size_t PowerLossFiles::CountChanges() const {
  std::set<const Node*> nodes;
  for (const auto& [name, node] : durable_names_) nodes.insert(node.get());
  for (const NameChange& change : changes_) nodes.insert(change.node.get());
  size_t count = changes_.size();
  for (const Node* node : nodes) {
    if (node != nullptr) count += node->changes.size();
  }
  return count;
}

absl::Status PowerLossFiles::WriteSurvivors(
    uint64_t seed, const std::string& directory) const {
  absl::MutexLock lock(&mutex_);
  Outcome outcome(seed, CountChanges());
  std::map<std::string, NodePtr> names = durable_names_;
  for (const NameChange& change : changes_) {
    if (!outcome.KeepsName()) continue;
    if (!change.former.empty() && !outcome.LeavesFormerName()) {
      names.erase(change.former);
    }
    names[change.name] = change.node;
  }
  // A file may have two names.
  std::map<const Node*, std::string> contents;
  for (const auto& [name, node] : names) {
    if (node == nullptr || contents.contains(node.get())) continue;
    contents[node.get()] = node->Survivor(outcome);
  }
  std::error_code error;
  std::filesystem::remove_all(directory, error);
  if (!error) std::filesystem::create_directories(directory, error);
  // Directories come before what is in them.
  for (const auto& [name, node] : names) {
    if (error) break;
    if (node == nullptr) continue;
    const std::filesystem::path path = JoinPath(directory, name);
    // Where the directory's own name is lost, so is this.
    if (!std::filesystem::is_directory(path.parent_path())) continue;
    if (node->is_directory) {
      std::filesystem::create_directory(path, error);
    } else {
      SHERD_RETURN_IF_ERROR(WriteWhole(path, contents[node.get()]));
    }
  }
  return error ? absl::InternalError(
                     absl::StrCat("writing ", directory, ": ", error.message()))
               : absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<File>> PowerLossFiles::OpenForRead(
    const std::string& path) {
  SHERD_RETURN_IF_ERROR(Begin("opening", path));
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files_.OpenForRead(path));
  return std::make_unique<RecordedFile>(*this, nullptr, std::move(file));
}

absl::StatusOr<std::unique_ptr<File>> PowerLossFiles::Create(
    const std::string& path) {
  SHERD_RETURN_IF_ERROR(Begin("creating", path));
  absl::MutexLock order(&names_mutex_);
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files_.Create(path));
  NodePtr node;
  if (const auto name = NameOf(path)) {
    absl::MutexLock lock(&mutex_);
    const auto it = names_.find(*name);
    if (it == names_.end()) {
      node = std::make_shared<Node>();
      Change({.name = *name, .node = node});
    } else {
      node = it->second;
      node->Add({.truncates = true});
    }
  }
  return std::make_unique<RecordedFile>(*this, std::move(node),
                                        std::move(file));
}

absl::Status PowerLossFiles::CreateDirectories(const std::string& path) {
  SHERD_RETURN_IF_ERROR(Begin("creating directory", path));
  absl::MutexLock order(&names_mutex_);
  SHERD_RETURN_IF_ERROR(files_.CreateDirectories(path));
  const auto name = NameOf(path);
  if (!name.has_value()) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  std::filesystem::path above;
  for (const std::filesystem::path& part : std::filesystem::path(*name)) {
    above /= part;
    if (names_.contains(above.string())) continue;
    auto node = std::make_shared<Node>();
    node->is_directory = true;
    Change({.name = above.string(), .node = std::move(node)});
  }
  return absl::OkStatus();
}

absl::Status PowerLossFiles::RecordRename(const std::string& from,
                                          const std::string& to,
                                          const absl::Status& renamed) {
  SHERD_RETURN_IF_ERROR(renamed);
  const auto former = NameOf(from);
  const auto name = NameOf(to);
  if (!former.has_value() && !name.has_value()) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  const auto it = names_.find(former.value_or(""));
  if (it == names_.end() || !name.has_value() || it->second->is_directory ||
      DirectoryOf(*former) != DirectoryOf(*name)) {
    return absl::UnimplementedError(
        absl::StrCat("renaming ", from, " to ", to,
                     ": only files are recorded, and within a directory"));
  }
  Change({.name = *name, .node = it->second, .former = *former});
  return absl::OkStatus();
}

absl::Status PowerLossFiles::Rename(const std::string& from,
                                    const std::string& to) {
  SHERD_RETURN_IF_ERROR(Begin("renaming", from));
  absl::MutexLock order(&names_mutex_);
  return RecordRename(from, to, files_.Rename(from, to));
}

absl::Status PowerLossFiles::RenameNew(const std::string& from,
                                       const std::string& to) {
  SHERD_RETURN_IF_ERROR(Begin("renaming", from));
  absl::MutexLock order(&names_mutex_);
  return RecordRename(from, to, files_.RenameNew(from, to));
}

absl::Status PowerLossFiles::Remove(const std::string& path) {
  SHERD_RETURN_IF_ERROR(Begin("removing", path));
  absl::MutexLock order(&names_mutex_);
  SHERD_RETURN_IF_ERROR(files_.Remove(path));
  const auto name = NameOf(path);
  if (!name.has_value()) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  Change({.name = *name});
  return absl::OkStatus();
}

absl::Status PowerLossFiles::RemoveAll(const std::string& path) {
  SHERD_RETURN_IF_ERROR(Begin("removing", path));
  absl::MutexLock order(&names_mutex_);
  SHERD_RETURN_IF_ERROR(files_.RemoveAll(path));
  const auto name = NameOf(path);
  if (!name.has_value()) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> gone;
  for (const auto& [below, node] : names_) {
    if (name->empty() || below == *name ||
        absl::StartsWith(below, *name + "/")) {
      gone.push_back(below);
    }
  }
  // What is in a directory goes before it.
  for (auto it = gone.rbegin(); it != gone.rend(); ++it) Change({.name = *it});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> PowerLossFiles::List(
    const std::string& path) {
  SHERD_RETURN_IF_ERROR(Begin("listing", path));
  return files_.List(path);
}

absl::Status PowerLossFiles::SyncDirectory(const std::string& path) {
  SHERD_RETURN_IF_ERROR(Begin("syncing directory", path));
  absl::MutexLock order(&names_mutex_);
  SHERD_RETURN_IF_ERROR(files_.SyncDirectory(path));
  const auto name = NameOf(path);
  if (!name.has_value()) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  std::vector<NameChange> left;
  for (NameChange& change : changes_) {
    if (DirectoryOf(change.name) != *name) {
      left.push_back(std::move(change));
      continue;
    }
    if (!change.former.empty()) durable_names_.erase(change.former);
    if (change.node == nullptr) {
      durable_names_.erase(change.name);
    } else {
      durable_names_[change.name] = change.node;
    }
  }
  changes_ = std::move(left);
  return absl::OkStatus();
}

absl::StatusOr<FileKind> PowerLossFiles::KindOf(const std::string& path) {
  SHERD_RETURN_IF_ERROR(Begin("looking for", path));
  return files_.KindOf(path);
}

absl::StatusOr<int64_t> PowerLossFiles::FreeBytes(const std::string& path) {
  SHERD_RETURN_IF_ERROR(Begin("asking for the free space of", path));
  return files_.FreeBytes(path);
}

}  // namespace sherd::testing
