#include "sherd/serialization/checkpoint/save/manifest_plan.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/version.h"
#include "sherd/serialization/checkpoint/save/equal_shards.h"
#include "sherd/serialization/manifest/data_file.h"

namespace sherd {
namespace {

// Shards of a tensor that are planned together.
struct Part : EqualShards {
  int32_t tensor = 0;
};

// Those of all tensors in the order of files; behind them those without
// elements.
std::vector<Part> PartsOf(const SaveLayout& layout) {
  std::vector<Part> parts;
  for (size_t t = 0; t < layout.tensors.size(); ++t) {
    ForEachEqualShards(layout.tensors[t], [&](const EqualShards& shards) {
      parts.push_back({shards, static_cast<int32_t>(t)});
    });
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    const auto order_a = OrderInFile(a.bytes, a.tensor);
    const auto order_b = OrderInFile(b.bytes, b.tensor);
    return order_a != order_b ? order_a < order_b : a.first < b.first;
  });
  return parts;
}

// How far a file is filled.
struct FileEnd {
  int64_t data_bytes = 0;
  int64_t chunks = 0;

  // By so many shards more.
  void Add(int64_t shards, int64_t bytes) {
    data_bytes += shards * bytes;
    chunks += shards * NumChunks(bytes, kChunkBytes);
  }

  friend FileEnd operator+(FileEnd a, const FileEnd& b) {
    return {a.data_bytes + b.data_bytes, a.chunks + b.chunks};
  }
  friend bool operator==(const FileEnd&, const FileEnd&) = default;
};

// The ranks, in classes whose files have the same sizes of the same tensors.
class RankClasses {
 public:
  static constexpr int32_t kNoFile = -1;

  RankClasses(int world_size, absl::Span<const Part> parts)
      : class_of_rank_(static_cast<size_t>(world_size), kNoFile) {
    FindClasses(parts);
  }

  size_t size() const { return lowest_.size(); }
  int32_t ClassOf(int rank) const {
    return class_of_rank_[static_cast<size_t>(rank)];
  }
  // The rank behind the last one from `rank` on, before `end`, that is of the
  // same class.
  int EndOf(int rank, int end) const {
    return std::min(end, end_of_class_[static_cast<size_t>(rank)]);
  }
  // Whether the lowest rank of the class is among these, which are of it.
  bool HasLowest(int32_t of, int rank, int end) const {
    const int lowest = lowest_[static_cast<size_t>(of)];
    return rank <= lowest && lowest < end;
  }

 private:
  // A sum of hashes, in which order does not count: of what a rank has.
  using Contents = std::array<uint64_t, 2>;

  static uint64_t Mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
  }

  static Contents HashOf(int32_t tensor, int64_t bytes) {
    const uint64_t x = Mix(static_cast<uint64_t>(tensor) + 0x9e3779b97f4a7c15) +
                       static_cast<uint64_t>(bytes);
    return {Mix(x), Mix(x ^ 0xd1b54a32d192ed03)};
  }

  void FindClasses(absl::Span<const Part> parts) {
    // Entry r is what rank r has more than rank r - 1.
    std::vector<Contents> contents(class_of_rank_.size() + 1);
    for (const Part& part : parts) {
      if (part.bytes == 0) continue;
      const Contents hash = HashOf(part.tensor, part.bytes);
      const uint64_t times = part.rank_step == 0 ? part.shards : 1;
      for (size_t i = 0; i < hash.size(); ++i) {
        contents[part.rank][i] += times * hash[i];
        contents[part.end_rank()][i] -= times * hash[i];
      }
    }
    absl::flat_hash_map<Contents, int32_t> known;
    Contents sum = {};
    for (size_t r = 0; r < class_of_rank_.size(); ++r) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += contents[r][i];
      if (sum == Contents()) continue;
      const auto [it, added] =
          known.emplace(sum, static_cast<int32_t>(lowest_.size()));
      if (added) lowest_.push_back(static_cast<int>(r));
      class_of_rank_[r] = it->second;
    }
    end_of_class_.resize(class_of_rank_.size());
    for (size_t r = class_of_rank_.size(); r-- > 0;) {
      const bool continues = r + 1 < class_of_rank_.size() &&
                             class_of_rank_[r] == class_of_rank_[r + 1];
      end_of_class_[r] =
          continues ? end_of_class_[r + 1] : static_cast<int>(r) + 1;
    }
  }

  // By class.
  std::vector<int> lowest_;
  // By rank.
  std::vector<int32_t> class_of_rank_;
  std::vector<int> end_of_class_;
};

// Whether one rule fits the extents of both; `run` then has that rule.
bool ContinueExtents(const SavedRun& next, SavedRun& run) {
  if (run.extents.empty() || next.extents.empty()) {
    return run.extents.empty() && next.extents.empty();
  }
  const SavedExtent& first = run.extents[0];
  const SavedExtent& then = next.extents[0];
  const int64_t n = run.shards;
  if (first.data_offset == then.data_offset &&
      first.first_chunk == then.first_chunk && first.file + n == then.file &&
      !run.advances && !next.advances && (n == 1 || run.file_step == 1)) {
    run.file_step = 1;
    return true;
  }
  if (first.file == then.file && run.file_step == 0 && next.file_step == 0 &&
      first.data_offset + n * first.bytes == then.data_offset &&
      first.first_chunk + n * NumChunks(first.bytes, kChunkBytes) ==
          then.first_chunk &&
      (next.shards == 1 || first.bytes == then.bytes)) {
    run.advances = true;
    return true;
  }
  return false;
}

// Continues `run` by `next`, which begins where it ends, if one rule fits both.
bool Continue(const SavedRun& next, SavedRun& run) {
  const int32_t step =
      run.shards == 1 ? next.placement - run.placement : run.placement_step;
  if (step < 0 || step > 1 ||
      next.placement != run.placement + run.shards * step ||
      (next.shards > 1 && next.placement_step != step) ||
      !ContinueExtents(next, run)) {
    return false;
  }
  run.placement_step = step;
  run.shards += next.shards;
  return true;
}

void Append(SavedRun run, SavedRuns& runs) {
  if (run.shards == 1) run.placement_step = 0;
  if (runs.empty() || runs.back().first + runs.back().shards != run.first ||
      !Continue(run, runs.back())) {
    runs.push_back(std::move(run));
  }
}

}  // namespace

// Where the shards of all tensors are. Most classes of ranks have the same
// shards of most tensors, so that their files are filled alike: what is kept of
// a class is by how much its files are ahead of the others'.
class RunPlan {
 public:
  explicit RunPlan(const SaveLayout& layout)
      : parts_(PartsOf(layout)),
        classes_(layout.world_size, parts_),
        common_(1),
        leads_(classes_.size()),
        groups_of_tensor_(layout.tensors.size()) {
    NumberFiles(layout.world_size);
    for (size_t i = 0; i < parts_.size();) {
      const size_t begin = i;
      while (i < parts_.size() && parts_[i].tensor == parts_[begin].tensor &&
             parts_[i].bytes == parts_[begin].bytes) {
        ++i;
      }
      AddGroup(begin, i);
    }
  }

  const std::vector<int>& rank_of_file() const { return rank_of_file_; }

  // The end of the file of `rank`, which has one.
  FileEnd EndOfFile(int rank) const {
    return EndBefore(classes_.ClassOf(rank), groups_.size());
  }

  SavedRuns RunsOf(size_t tensor) const {
    SavedRuns found;
    for (const int32_t group : groups_of_tensor_[tensor]) {
      AppendGroup(static_cast<size_t>(group), found);
    }
    if (groups_of_tensor_[tensor].size() == 1) return found;
    // Sizes may alternate.
    std::sort(
        found.begin(), found.end(),
        [](const SavedRun& a, const SavedRun& b) { return a.first < b.first; });
    SavedRuns runs;
    runs.reserve(found.size());
    for (SavedRun& run : found) Append(std::move(run), runs);
    return runs;
  }

 private:
  // All parts of one tensor and size.
  struct Group {
    size_t begin = 0;
    size_t end = 0;
    // Whether each rank owns at most one of the shards, and later ones are
    // owned by later ranks.
    bool owners_ascend = false;
  };
  // By how much the files of a class are ahead of `common_` behind each of some
  // groups, and so up to the next of these. Two lists, since the first is
  // searched often.
  struct Leads {
    std::vector<int32_t> groups;
    std::vector<FileEnd> ahead;
  };

  void NumberFiles(int world_size) {
    file_of_rank_.resize(static_cast<size_t>(world_size));
    for (int rank = 0; rank < world_size; ++rank) {
      if (classes_.ClassOf(rank) == RankClasses::kNoFile) continue;
      file_of_rank_[static_cast<size_t>(rank)] =
          static_cast<int32_t>(rank_of_file_.size());
      rank_of_file_.push_back(rank);
    }
  }

  absl::Span<const Part> PartsOfGroup(const Group& group) const {
    return absl::MakeConstSpan(parts_).subspan(group.begin,
                                               group.end - group.begin);
  }

  static bool OwnersAscend(absl::Span<const Part> parts) {
    int next = 0;
    for (const Part& part : parts) {
      if (part.rank < next || (part.rank_step == 0 && part.shards > 1)) {
        return false;
      }
      next = part.end_rank();
    }
    return true;
  }

  // How many of the shards each rank of a class has.
  std::vector<int64_t> CountShards(absl::Span<const Part> parts) const {
    std::vector<int64_t> shards(classes_.size());
    for (const Part& part : parts) {
      const int64_t each = part.rank_step == 0 ? part.shards : 1;
      for (int rank = part.rank; rank < part.end_rank();) {
        const int end = classes_.EndOf(rank, part.end_rank());
        const int32_t of = classes_.ClassOf(rank);
        if (classes_.HasLowest(of, rank, end)) {
          shards[static_cast<size_t>(of)] += each;
        }
        rank = end;
      }
    }
    return shards;
  }

  void AddGroup(size_t begin, size_t end) {
    const int64_t bytes = parts_[begin].bytes;
    Group group = {.begin = begin, .end = end};
    const absl::Span<const Part> parts = PartsOfGroup(group);
    group.owners_ascend = OwnersAscend(parts);
    groups_of_tensor_[static_cast<size_t>(parts[0].tensor)].push_back(
        static_cast<int32_t>(groups_.size()));
    FileEnd common = common_.back();
    if (bytes > 0) {
      const std::vector<int64_t> shards = CountShards(parts);
      const int64_t usual = UsualCount(shards);
      for (size_t c = 0; c < shards.size(); ++c) {
        if (shards[c] == usual) continue;
        Leads& leads = leads_[c];
        FileEnd ahead = leads.ahead.empty() ? FileEnd() : leads.ahead.back();
        ahead.Add(shards[c] - usual, bytes);
        leads.groups.push_back(static_cast<int32_t>(groups_.size()));
        leads.ahead.push_back(ahead);
      }
      common.Add(usual, bytes);
    }
    common_.push_back(common);
    groups_.push_back(group);
  }

  // One that more than half of the classes have, if there is one.
  static int64_t UsualCount(absl::Span<const int64_t> shards) {
    int64_t usual = 0;
    int64_t ahead = 0;
    for (const int64_t count : shards) {
      if (ahead == 0) usual = count;
      ahead += count == usual ? 1 : -1;
    }
    return usual;
  }

  // Where the shards of a group begin in the files of a class.
  FileEnd EndBefore(int32_t of, size_t group) const {
    const Leads& leads = leads_[static_cast<size_t>(of)];
    const auto behind = std::lower_bound(
        leads.groups.begin(), leads.groups.end(), static_cast<int32_t>(group));
    const FileEnd& common = common_[group];
    if (behind == leads.groups.begin()) return common;
    return common + leads.ahead[behind - leads.groups.begin() - 1];
  }

  void AppendGroup(size_t group, SavedRuns& runs) const {
    const absl::Span<const Part> parts = PartsOfGroup(groups_[group]);
    if (parts[0].bytes == 0) {
      for (const Part& part : parts) AppendEmpty(part, runs);
    } else if (groups_[group].owners_ascend) {
      for (const Part& part : parts) AppendStretches(part, group, runs);
    } else {
      AppendEach(parts, group, runs);
    }
  }

  static void AppendEmpty(const Part& part, SavedRuns& runs) {
    Append({.first = part.first,
            .shards = part.shards,
            .placement = part.placement,
            .placement_step = part.placement_step},
           runs);
  }

  // Each rank has one shard at most: those of ranks whose files are equally
  // long are one run.
  void AppendStretches(const Part& part, size_t group, SavedRuns& runs) const {
    FileEnd next = EndBefore(classes_.ClassOf(part.rank), group);
    for (int rank = part.rank; rank < part.end_rank();) {
      const FileEnd begin = next;
      int end = rank;
      do {
        end = classes_.EndOf(end, part.end_rank());
        if (end == part.end_rank()) break;
        next = EndBefore(classes_.ClassOf(end), group);
      } while (next == begin);
      Append(RunOf(part, rank, end, begin), runs);
      rank = end;
    }
  }

  // A rank may have several of the shards.
  void AppendEach(absl::Span<const Part> parts, size_t group,
                  SavedRuns& runs) const {
    // By rank, where its next shard begins.
    absl::flat_hash_map<int, FileEnd> ends;
    for (const Part& part : parts) {
      for (int rank = part.rank; rank < part.end_rank(); ++rank) {
        const auto [end, is_new] = ends.try_emplace(rank);
        if (is_new) end->second = EndBefore(classes_.ClassOf(rank), group);
        SavedRun run = RunOf(part, rank, rank + 1, end->second);
        end->second.Add(run.shards, part.bytes);
        Append(std::move(run), runs);
      }
    }
  }

  // The shards of the ranks [rank, end): all of the part if it has one owner.
  SavedRun RunOf(const Part& part, int rank, int end,
                 const FileEnd& begin) const {
    const int32_t k = rank - part.rank;
    const int64_t count = part.rank_step == 0 ? part.shards : end - rank;
    SavedRun run = {.first = part.first + k,
                    .shards = count,
                    .placement = part.placement + k * part.placement_step,
                    .placement_step = count > 1 ? part.placement_step : 0,
                    .file_step = end - rank > 1 ? 1 : 0,
                    .advances = part.rank_step == 0 && count > 1};
    run.extents.push_back({.file = file_of_rank_[static_cast<size_t>(rank)],
                           .data_offset = begin.data_bytes,
                           .bytes = part.bytes,
                           // Number 0 is the CRC of the header.
                           .first_chunk = 1 + begin.chunks});
    return run;
  }

  const std::vector<Part> parts_;
  const RankClasses classes_;
  std::vector<int> rank_of_file_;
  std::vector<int32_t> file_of_rank_;
  // In the order of files.
  std::vector<Group> groups_;
  // Entry g: the end of a file before group g, but for the leads of its class.
  std::vector<FileEnd> common_;
  // By class.
  std::vector<Leads> leads_;
  std::vector<std::vector<int32_t>> groups_of_tensor_;
};

SavedRuns ManifestPlan::RunsOf(size_t tensor) const {
  return runs->RunsOf(tensor);
}

Manifest ManifestPlan::WithRuns() const {
  Manifest whole = manifest;
  for (size_t t = 0; t < whole.tensors.size(); ++t) {
    whole.tensors[t].runs = RunsOf(t);
  }
  return whole;
}

ManifestPlan PlanManifest(const SaveLayout& layout) {
  auto runs = std::make_shared<const RunPlan>(layout);
  ManifestPlan plan;
  plan.rank_of_file = runs->rank_of_file();
  Manifest& manifest = plan.manifest;
  manifest.writer = absl::StrCat("sherd ", kVersion);
  manifest.world_size = layout.world_size;
  manifest.placements = layout.placements;
  for (const int rank : plan.rank_of_file) {
    const FileEnd file = runs->EndOfFile(rank);
    manifest.files.push_back(
        {.size = file.data_bytes + CrcTableBytes(file.chunks),
         .chunks = file.chunks});
  }
  manifest.tensors.reserve(layout.tensors.size());
  for (const TensorLayout& tensor : layout.tensors) {
    manifest.tensors.push_back({.name = tensor.name,
                                .dtype = tensor.dtype,
                                .requires_grad = tensor.requires_grad,
                                .kind = tensor.kind,
                                .chunk_dim = tensor.chunk_dim,
                                .layout = tensor.layout});
  }
  plan.runs = std::move(runs);
  return plan;
}

}  // namespace sherd
