// Looks up bags of rows in tables that are spread over the ranks, and updates
// the tables by the gradients of what it found:
//
//   sherd run -n 4 -- embedding_collection --in=IN --out=OUT
//     --layout='chunk(0) over 4' --mode=sum --rule=sgd --lr=0.1
//
// IN is a safetensors file with the tables, `table.NAME`, and for each rank R
// and table what that rank looks up in it: `R.NAME.ids`; if there are any
// `R.NAME.offsets` and `R.NAME.weights`; and with --rule `R.NAME.gradient`.
// OUT, which rank 0 writes, has the result of each rank, `R.NAME`, and the
// tables as they are afterwards, `table.NAME`. They do not depend on the
// layout.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/sherd.h"
#include "sherd/tools/sherd/command_line.h"
#include "sherd/tools/sherd/explain/layout_text.h"

namespace sherd {
namespace {

constexpr absl::string_view kTable = "table.";

const std::map<std::string, BagMode> kModes = {
    {"max", BagMode::kMax}, {"mean", BagMode::kMean}, {"sum", BagMode::kSum}};
const std::map<std::string, SparseRule> kRules = {
    {"adagrad", SparseRule::kAdagrad},
    {"rowwise_adagrad", SparseRule::kRowWiseAdagrad},
    {"sgd", SparseRule::kSgd}};

struct Options {
  std::string in, out, layout, backend;
  BagOptions bags = {.mode = BagMode::kSum};
  std::optional<SparseRule> rule;
  UpdateOptions update;
};

// A table, and this rank's part of the batch.
struct Table {
  std::string name;
  ShardedTensor weight;
  Bags bags;
  Tensor gradient;
};

// "0.user.ids".
std::string NameOf(int rank, absl::string_view table, absl::string_view part) {
  return absl::StrCat(rank, ".", table, ".", part);
}

std::vector<std::string> TableNames(const SafetensorsFile& file) {
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : file.entries()) {
    absl::string_view name = entry.name;
    if (absl::ConsumePrefix(&name, kTable)) names.emplace_back(name);
  }
  return names;
}

// All ranks look at the inputs of all, and find the same errors.
absl::Status CheckNames(const SafetensorsFile& file,
                        absl::Span<const std::string> tables, int ranks,
                        bool updates) {
  if (tables.empty()) {
    return absl::NotFoundError(absl::StrCat(
        file.path(), " has no table: expected tensors named table.NAME"));
  }
  std::map<std::string, bool> known;  // and whether they have to be there
  for (const std::string& table : tables) {
    known[absl::StrCat(kTable, table)] = true;
    for (int rank = 0; rank < ranks; ++rank) {
      known[NameOf(rank, table, "ids")] = true;
      known[NameOf(rank, table, "offsets")] = false;
      known[NameOf(rank, table, "weights")] = false;
      known[NameOf(rank, table, "gradient")] = updates;
    }
  }
  for (const SafetensorsEntry& entry : file.entries()) {
    if (known.erase(entry.name) != 0) continue;
    int rank = -1;
    const std::string begin = entry.name.substr(0, entry.name.find('.'));
    if (absl::SimpleAtoi(begin, &rank) && rank >= ranks) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), " has ", entry.name, " for rank ", rank,
                       ", but there are ", ranks, " ranks"));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        file.path(), " has ", entry.name,
        ", which is neither table.NAME nor "
        "R.NAME.ids, .offsets, .weights or .gradient of a table.NAME"));
  }
  for (const auto& [name, required] : known) {
    if (!required) continue;
    const std::string need = absl::EndsWith(name, ".gradient")
                                 ? "--rule needs"
                                 : absl::StrCat(ranks, " ranks need");
    return absl::NotFoundError(
        absl::StrCat(file.path(), " has no ", name, ", which ", need));
  }
  return absl::OkStatus();
}

// The layout of each table, from "LAYOUT" or "NAME=LAYOUT;NAME=LAYOUT". One
// without a name is that of all tables that are not named.
absl::StatusOr<std::map<std::string, std::string>> LayoutsOf(
    absl::string_view text, absl::Span<const std::string> tables) {
  std::map<std::string, std::string> given;
  for (const absl::string_view item :
       absl::StrSplit(text, ';', absl::SkipWhitespace())) {
    const std::vector<absl::string_view> sides =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    const auto name = sides.size() < 2
                          ? std::string()
                          : std::string(absl::StripAsciiWhitespace(sides[0]));
    if (!given.emplace(name, sides.back()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--layout: ", name.empty() ? "all tables" : name,
                       " has two layouts"));
    }
  }
  std::map<std::string, std::string> layouts;
  const auto common = given.find("");
  for (const std::string& table : tables) {
    const auto own = given.find(table);
    if (own == given.end() && common == given.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--layout: none for table ", table));
    }
    layouts[table] = (own == given.end() ? common : own)->second;
  }
  for (const auto& [name, layout] : given) {
    if (name.empty() || layouts.count(name) != 0) continue;
    return absl::NotFoundError(
        absl::StrCat("--layout: there is no table ", name));
  }
  return layouts;
}

absl::StatusOr<ShardingSpecPtr> SpecOf(const std::string& layout,
                                       const Dims& size, int ranks) {
  SHERD_ASSIGN_OR_RETURN(const std::vector<PlacedBox> boxes,
                         ParseLayout(layout, size));
  std::vector<ShardMetadata> shards;
  for (const PlacedBox& box : boxes) {
    if (box.rank >= ranks) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", layout, "\" has a shard on rank ", box.rank,
                       ", but there are ", ranks, " ranks"));
    }
    shards.push_back({box.offsets, box.sizes, Placement::OnRank(box.rank)});
  }
  return InferShardingSpec(shards, Replicas::kAllowed);
}

// Reads the shards of this rank, and nothing else.
absl::StatusOr<ShardedTensor> ReadTable(
    const SafetensorsFile& file, const std::string& name,
    const std::string& layout, const std::shared_ptr<ProcessGroup>& group) {
  SHERD_ASSIGN_OR_RETURN(const SafetensorsEntry* const entry, file.Find(name));
  const absl::StatusOr<ShardingSpecPtr> spec =
      SpecOf(layout, entry->shape, group->size());
  if (!spec.ok()) {
    return absl::Status(
        spec.status().code(),
        absl::StrCat("--layout of ", name, ": ", spec.status().message()));
  }
  SHERD_ASSIGN_OR_RETURN(
      const ShardedTensor table,
      ShardedTensor::Empty(*spec, entry->shape,
                           {.dtype = entry->dtype, .group = group}));
  for (const Shard& shard : table.local_shards()) {
    if (shard.tensor.numel() == 0) continue;
    SHERD_ASSIGN_OR_RETURN(
        const Tensor rows,
        file.ReadSlice(name, shard.metadata.offsets, shard.metadata.sizes));
    Tensor own = shard.tensor;
    SHERD_RETURN_IF_ERROR(own.CopyFrom(rows));
  }
  return table;
}

// Undefined if there is none.
absl::StatusOr<Tensor> ReadPart(const SafetensorsFile& file,
                                const std::string& name) {
  if (!file.Find(name).ok()) return Tensor();
  return file.ReadTensor(name);
}

absl::StatusOr<std::vector<Table>> ReadTables(
    const Options& options, const std::shared_ptr<ProcessGroup>& group) {
  FileSystem& files = FileSystem::Posix();
  SHERD_ASSIGN_OR_RETURN(const bool exists, files.Exists(options.out));
  if (exists) {
    return absl::AlreadyExistsError(absl::StrCat(
        options.out, " exists: remove it, or name another file with --out"));
  }
  SHERD_ASSIGN_OR_RETURN(const SafetensorsFile file,
                         SafetensorsFile::Open(files, options.in));
  const std::vector<std::string> names = TableNames(file);
  SHERD_RETURN_IF_ERROR(
      CheckNames(file, names, group->size(), options.rule.has_value()));
  SHERD_ASSIGN_OR_RETURN(const auto layouts, LayoutsOf(options.layout, names));
  std::vector<Table> tables;
  for (const std::string& name : names) {
    const auto part = [&](absl::string_view which) {
      return ReadPart(file, NameOf(group->rank(), name, which));
    };
    Table& table = tables.emplace_back();
    table.name = name;
    SHERD_ASSIGN_OR_RETURN(
        table.weight,
        ReadTable(file, absl::StrCat(kTable, name), layouts.at(name), group));
    SHERD_ASSIGN_OR_RETURN(table.bags.ids, part("ids"));
    SHERD_ASSIGN_OR_RETURN(table.bags.offsets, part("offsets"));
    SHERD_ASSIGN_OR_RETURN(table.bags.per_sample_weights, part("weights"));
    SHERD_ASSIGN_OR_RETURN(table.gradient, part("gradient"));
  }
  return tables;
}

// Errors of lookups and updates have the numbers of tables.
absl::Status WithNames(const absl::Status& status,
                       absl::Span<const Table> tables) {
  if (status.ok()) return status;
  const auto name = [](std::string* text, const Table& table) {
    text->append(table.name);
  };
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), " (tables from 0 on: ",
                                   absl::StrJoin(tables, ", ", name), ")"));
}

// The tables as one module, and what it is called with.
struct ModelOfTables {
  EmbeddingBagCollection tables;
  ValueMap inputs;
  ValueMap gradients;
};

absl::Status MakeModel(absl::Span<const Table> tables,
                       const BagOptions& options, ModelOfTables& model) {
  for (const Table& table : tables) {
    SHERD_RETURN_IF_ERROR(model.tables.Insert(
        table.name, std::make_shared<EmbeddingBag>(table.weight, options)));
    model.inputs[table.name] = ValueList{table.bags.ids, table.bags.offsets,
                                         table.bags.per_sample_weights};
    model.gradients[table.name] = table.gradient;
  }
  return absl::OkStatus();
}

// The result of each table.
absl::StatusOr<std::vector<Tensor>> LookUpAll(ModelOfTables& model,
                                              absl::Span<const Table> tables) {
  SHERD_ASSIGN_OR_RETURN(const Value output, model.tables.Call({model.inputs}));
  SHERD_ASSIGN_OR_RETURN(const ValueMap by_name, output.Get<ValueMap>());
  std::vector<Tensor> results;
  for (const Table& table : tables) {
    SHERD_ASSIGN_OR_RETURN(results.emplace_back(),
                           by_name.at(table.name).Get<Tensor>());
  }
  return results;
}

// The results of all ranks, in their order, on rank 0; nothing on others.
absl::StatusOr<std::vector<Tensor>> GatherResults(ProcessGroup& group,
                                                  const Tensor& own) {
  const int64_t own_bags = own.sizes()[0];
  std::vector<int64_t> bags(static_cast<size_t>(group.size()));
  SHERD_RETURN_IF_ERROR(group.AllGather<int64_t>(
      absl::MakeConstSpan(&own_bags, 1), absl::MakeSpan(bags)));
  std::vector<Tensor> results;
  if (group.rank() == 0) {
    for (const int64_t n : bags) {
      SHERD_ASSIGN_OR_RETURN(
          results.emplace_back(),
          Tensor::Empty({n, own.sizes()[1]}, {.dtype = own.dtype()}));
    }
  }
  SHERD_RETURN_IF_ERROR(Gather(group, own, absl::MakeSpan(results), 0));
  return results;
}

SafetensorsTensorInfo InfoOf(const std::string& name, DType dtype,
                             absl::Span<const int64_t> sizes) {
  return {name, dtype, Dims(sizes.begin(), sizes.end())};
}

using ByName = std::map<std::string, Tensor>;

// The results of all ranks under their names, on rank 0.
absl::StatusOr<ByName> GatherAllResults(ProcessGroup& group,
                                        absl::Span<const Table> tables,
                                        absl::Span<const Tensor> results) {
  ByName gathered;
  for (size_t t = 0; t < tables.size(); ++t) {
    SHERD_ASSIGN_OR_RETURN(const std::vector<Tensor> of_ranks,
                           GatherResults(group, results[t]));
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      gathered[absl::StrCat(rank, ".", tables[t].name)] = of_ranks[rank];
    }
  }
  return gathered;
}

// Creates the file for results and tables, and writes the results.
absl::StatusOr<std::unique_ptr<SafetensorsWriter>> WriteResults(
    const std::string& path, absl::Span<const Table> tables,
    const ByName& results) {
  std::vector<SafetensorsTensorInfo> infos;
  for (const auto& [name, result] : results) {
    infos.push_back(InfoOf(name, result.dtype(), result.sizes()));
  }
  for (const Table& table : tables) {
    infos.push_back(InfoOf(absl::StrCat(kTable, table.name),
                           table.weight.dtype(), table.weight.size()));
  }
  SHERD_ASSIGN_OR_RETURN(
      auto writer, SafetensorsWriter::Create(FileSystem::Posix(), path, infos));
  for (const auto& [name, result] : results) {
    SHERD_RETURN_IF_ERROR(writer->Write(name, result));
  }
  return writer;
}

// Tables come to rank 0 one after another. Whether it could write is what all
// ranks return.
absl::Status Write(const std::string& path, ProcessGroup& group,
                   absl::Span<const Table> tables,
                   absl::Span<const Tensor> results) {
  SHERD_ASSIGN_OR_RETURN(const ByName gathered,
                         GatherAllResults(group, tables, results));
  absl::StatusOr<std::unique_ptr<SafetensorsWriter>> writer(nullptr);
  if (group.rank() == 0) writer = WriteResults(path, tables, gathered);
  absl::Status written = writer.status();
  SHERD_RETURN_IF_ERROR(Agree(group, "write", written));
  for (const Table& table : tables) {
    SHERD_ASSIGN_OR_RETURN(const Tensor whole, table.weight.Gather(0));
    if (*writer == nullptr || !written.ok()) continue;
    written = (*writer)->Write(absl::StrCat(kTable, table.name), whole);
  }
  if (*writer != nullptr && written.ok()) written = (*writer)->Finish();
  SHERD_RETURN_IF_ERROR(Agree(group, "write", written));
  if (*writer == nullptr) return absl::OkStatus();
  std::cout << path << ": " << tables.size() << " tables and "
            << gathered.size() << " results" << std::endl;
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  SHERD_ASSIGN_OR_RETURN(const auto group, Init({.backend = options.backend}));
  const absl::StatusOr<std::vector<Table>> tables = ReadTables(options, group);
  // What one rank cannot read, the others would wait for. Also, rank 0 writes
  // the output only when all have seen that there was none.
  SHERD_RETURN_IF_ERROR(Agree(*group, "read", tables.status()));
  ModelOfTables model;
  SHERD_RETURN_IF_ERROR(MakeModel(*tables, options.bags, model));
  const absl::StatusOr<std::vector<Tensor>> results = LookUpAll(model, *tables);
  SHERD_RETURN_IF_ERROR(WithNames(results.status(), *tables));
  if (options.rule.has_value()) {
    SHERD_RETURN_IF_ERROR(WithNames(
        model.tables.Update({model.inputs}, model.gradients, options.update),
        *tables));
  }
  SHERD_RETURN_IF_ERROR(Write(options.out, *group, *tables, *results));
  return group->Destroy();
}

void Declare(CLI::App& app, Options& options) {
  app.add_option("--in", options.in, "Tables and batches, a safetensors file")
      ->required()
      ->type_name("FILE");
  app.add_option("--out", options.out, "Results and tables; must not exist")
      ->required()
      ->type_name("FILE");
  app.add_option("--layout", options.layout,
                 "Layout of the tables, or NAME=LAYOUT;NAME=LAYOUT; see below")
      ->required();
  app.add_option("--backend", options.backend, "As shm or gloo");
  app.add_option("--mode", options.bags.mode, "What becomes of a bag's rows")
      ->transform(CLI::CheckedTransformer(kModes));
  app.add_option("--padding-idx", options.bags.padding_idx,
                 "An id that is left out");
  app.add_option("--max-norm", options.bags.max_norm,
                 "Rows with a larger norm are scaled to it, in the table");
  app.add_option("--norm-type", options.bags.norm_type, "The norm's exponent");
  app.add_flag("--include-last-offset", options.bags.include_last_offset,
               "The last offset is the number of ids");
  CLI::Option* const rule =
      app.add_option("--rule", options.rule, "Update the tables by it")
          ->transform(CLI::CheckedTransformer(kRules));
  app.add_option("--lr", options.update.learning_rate, "Learning rate")
      ->needs(rule);
  app.add_option("--eps", options.update.eps, "Added to Adagrad's divisor")
      ->needs(rule);
  app.footer(kLayoutHelp);
}

int Main(std::vector<std::string> arguments) {
  CLI::App app("Looks up rows of tables that are spread over the ranks.",
               "embedding_collection");
  Options options;
  Declare(app, options);
  int exit_code = 0;
  app.callback([&] {
    if (options.rule.has_value()) options.update.rule = *options.rule;
    const absl::Status status = Run(options);
    if (status.ok()) return;
    std::cerr << "embedding_collection: " << status.message() << std::endl;
    exit_code = 1;
  });
  return RunCommandLine(app, std::move(arguments), exit_code);
}

}  // namespace
}  // namespace sherd

int main(int argc, char** argv) {
  sherd::PrepareProgram();
  return sherd::Main(std::vector<std::string>(argv + 1, argv + argc));
}
