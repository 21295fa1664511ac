#include "sherd/tools/bench/cases/embedding_cases.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/tools/bench/embedding/embedding_work.h"
#include "sherd/tools/bench/peers/torch_program.h"

namespace sherd {
namespace {

constexpr int64_t kTables = 10;
constexpr int64_t kRowBytes =
    EmbeddingShape::kWidth * static_cast<int64_t>(sizeof(float));

// The categories of Criteo's terabyte of click logs, as the example of TorchRec
// counts them: github.com/facebookresearch/dlrm, torchrec_dlrm/README.MD,
// --num_embeddings_per_feature.
constexpr int64_t kCriteo[] = {
    45833188, 36746,    17245,    7413,     20243,  3,     7114, 1441, 62,
    29275261, 1572176,  345138,   10,       2209,   11267, 128,  4,    974,
    14,       48937457, 11316796, 40094537, 452104, 12606, 104,  35};
constexpr int64_t kMostCriteoRows = 1'000'000;

constexpr char kTorchRec[] = "torchrec";

struct EmbeddingKind {
  const char* name;
  const char* help;
  TableCut cut = TableCut::kRows;
  bool zipf = false;
  bool step = false;
  bool criteo = false;
  // PyTorch's ShardedTensor looks up in tables that are cut like this.
  bool torch_sharded = false;
};

std::vector<int64_t> CriteoRows(int64_t most) {
  std::vector<int64_t> rows;
  for (const int64_t n : kCriteo) rows.push_back(std::min(n, most));
  return rows;
}

// The most rows per table with which all tables have at most `bytes`, or 1.
int64_t MostCriteoRows(int64_t bytes) {
  int64_t least = 1;
  int64_t end = kMostCriteoRows + 1;
  while (end - least > 1) {
    const int64_t middle = least + (end - least) / 2;
    const EmbeddingShape shape = {.rows = CriteoRows(middle)};
    (shape.table_bytes() <= bytes ? least : end) = middle;
  }
  return least;
}

EmbeddingShape ShapeOf(const EmbeddingKind& kind, int64_t bytes) {
  EmbeddingShape shape = {
      .cut = kind.cut, .zipf = kind.zipf, .step = kind.step};
  if (kind.criteo) {
    shape.rows = CriteoRows(MostCriteoRows(bytes));
  } else {
    shape.rows.assign(kTables,
                      std::max<int64_t>(bytes / (kTables * kRowBytes), 1));
  }
  return shape;
}

BenchPeer SherdPeer(const std::string& name, const std::string& help,
                    const std::string& backend) {
  return {.name = name, .help = help, .make = [backend](RankContext& context) {
            return MakeSherdEmbedding(context, backend);
          }};
}

std::vector<std::string> TorchArguments(const std::string& peer,
                                        const EmbeddingKind& kind,
                                        int64_t bytes) {
  const EmbeddingShape shape = ShapeOf(kind, bytes);
  const char* const cut = shape.cut == TableCut::kRows      ? "rows"
                          : shape.cut == TableCut::kColumns ? "columns"
                                                            : "tables";
  std::vector<std::string> arguments = {
      absl::StrCat("--peer=", peer), absl::StrCat("--cut=", cut),
      absl::StrCat("--rows=", absl::StrJoin(shape.rows, ","))};
  if (shape.zipf) arguments.push_back("--zipf");
  if (shape.step) arguments.push_back("--step");
  if (kind.criteo) arguments.push_back("--measures-tables");
  return arguments;
}

BenchPeer TorchPeer(const EmbeddingKind& kind, const std::string& name,
                    const std::string& help,
                    const std::vector<std::string>& modules) {
  return {.name = name,
          .help = help,
          .measuring_program =
              [kind, name](const BenchTask& task, const std::string& report) {
                return TorchEmbeddingProgram(
                    TorchArguments(name, kind, task.bytes), task, report);
              },
          .check =
              [kind, name, modules](int world, int64_t, const std::string&) {
                if (name == kTorchRec && kind.cut == TableCut::kColumns &&
                    EmbeddingShape::kWidth % world != 0) {
                  return absl::InvalidArgumentError(absl::StrCat(
                      "TorchRec does not cut ", EmbeddingShape::kWidth,
                      " columns into ", world, " uneven parts"));
                }
                return FindPythonModules(modules);
              }};
}

std::vector<BenchPeer> PeersOf(const EmbeddingKind& kind) {
  std::vector<BenchPeer> peers = {
      SherdPeer("sherd-shm", "over shm: rows are read where they are", "shm"),
      SherdPeer("sherd-gloo", "over gloo: by messages", "gloo")};
  // Each rank would update tables of its own.
  if (!kind.step && !kind.criteo) {
    peers.push_back(
        SherdPeer("local", "LookUpInto, each rank with whole tables", ""));
  }
  peers.push_back(TorchPeer(kind, kTorchRec,
                            "TorchRec's sharded EmbeddingBagCollection, over "
                            "gloo",
                            {"torch", "torchrec", "fbgemm_gpu"}));
  if (kind.torch_sharded) {
    peers.push_back(TorchPeer(kind, "torch-sharded",
                              "PyTorch's embedding_bag of a ShardedTensor, "
                              "over gloo",
                              {"torch"}));
  }
  if (!kind.step && !kind.criteo) {
    peers.push_back(TorchPeer(kind, "torch-local",
                              "PyTorch's embedding_bag, each rank with whole "
                              "tables",
                              {"torch"}));
  }
  BenchPeer& limit = peers.emplace_back();
  limit.name = "limit";
  limit.help = "plain loops over shards in shared memory";
  limit.make = MakeLimitEmbedding;
  return peers;
}

BenchCase CaseOf(const EmbeddingKind& kind) {
  BenchCase result = {
      .name = kind.name, .help = kind.help, .peers = PeersOf(kind)};
  result.bytes = {int64_t{256} << 20};
  result.shared_bytes = [kind](int world, int64_t bytes) {
    return LimitEmbeddingBytes(ShapeOf(kind, bytes), world);
  };
  result.share = [kind](RankContext& context) {
    ShareEmbeddingBatch(context, ShapeOf(kind, context.bytes()));
  };
  result.compares_cpu = true;
  if (kind.criteo) {
    result.measures_tables = true;
    // All of kMostCriteoRows.
    result.bytes = {ShapeOf(kind, int64_t{1} << 40).table_bytes()};
    result.fit = [kind](int64_t bytes) {
      return std::min(bytes, ShapeOf(kind, bytes).table_bytes());
    };
  }
  return result;
}

}  // namespace

std::vector<BenchCase> EmbeddingCases() {
  constexpr char kBags[] =
      "512 bags of 20 ids per rank in each of 10 tables cut by rows";
  constexpr char kColumns[] = "the same, cut by columns";
  constexpr char kWhole[] = "the same, each table whole on one rank";
  constexpr char kStep[] = "such bags by rows, and then row-wise Adagrad";
  const EmbeddingKind kinds[] = {
      {.name = "embedding_rows", .help = kBags, .torch_sharded = true},
      {.name = "embedding_columns",
       .help = kColumns,
       .cut = TableCut::kColumns,
       .torch_sharded = true},
      {.name = "embedding_tables", .help = kWhole, .cut = TableCut::kTables},
      {.name = "embedding_zipf_rows",
       .help = "the same by rows, with few rows that have most ids",
       .zipf = true,
       .torch_sharded = true},
      {.name = "embedding_zipf_columns",
       .help = kColumns,
       .cut = TableCut::kColumns,
       .zipf = true,
       .torch_sharded = true},
      {.name = "embedding_zipf_tables",
       .help = kWhole,
       .cut = TableCut::kTables,
       .zipf = true},
      {.name = "embedding_step_rows", .help = kStep, .step = true},
      {.name = "embedding_step_columns",
       .help = kColumns,
       .cut = TableCut::kColumns,
       .step = true},
      {.name = "embedding_step_tables",
       .help = kWhole,
       .cut = TableCut::kTables,
       .step = true},
      {.name = "embedding_step_zipf_rows",
       .help = "a step with few rows that have most ids, by rows",
       .zipf = true,
       .step = true},
      {.name = "embedding_step_zipf_columns",
       .help = kColumns,
       .cut = TableCut::kColumns,
       .zipf = true,
       .step = true},
      {.name = "embedding_step_zipf_tables",
       .help = kWhole,
       .cut = TableCut::kTables,
       .zipf = true,
       .step = true},
      {.name = "embedding_criteo",
       .help =
           "such bags in 26 tables with the categories of Criteo's logs, at "
           "most 1,000,000, cut by rows, and the memory that they take",
       .criteo = true}};
  std::vector<BenchCase> cases;
  for (const EmbeddingKind& kind : kinds) cases.push_back(CaseOf(kind));
  return cases;
}

}  // namespace sherd
