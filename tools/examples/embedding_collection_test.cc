#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/safetensors.h"
#include "sherd/testing/matchers.h"
#include "sherd/tools/sherd/shell.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::testing::HasSubstr;

constexpr int kRanks = 4;

using Tensors = std::map<std::string, Tensor>;

// What the program is asked to do.
struct Task {
  std::string mode = "sum";
  // Empty: no update.
  std::string rule = "";
  bool weighted = false;
  bool include_last_offset = false;
  // -1: none.
  int64_t padding_idx = -1;
  double max_norm = std::numeric_limits<double>::infinity();

  std::string Arguments() const {
    std::string text = absl::StrCat(" --mode=", mode);
    if (!rule.empty()) {
      absl::StrAppend(&text, " --rule=", rule, " --lr=0.5 --eps=0.001");
    }
    if (include_last_offset) text += " --include-last-offset";
    if (padding_idx >= 0)
      absl::StrAppend(&text, " --padding-idx=", padding_idx);
    if (std::isfinite(max_norm))
      absl::StrAppend(&text, " --max-norm=", max_norm);
    return text;
  }
};

Tensor Floats(const Dims& sizes, std::mt19937& random) {
  Tensor tensor = *Tensor::Empty(sizes);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    tensor.mutable_data_as<float>()[i] =
        std::uniform_real_distribution<float>(-1, 1)(random);
  }
  return tensor;
}

Tensor Ids(const Dims& sizes, int64_t rows, std::mt19937& random) {
  Tensor tensor = *Tensor::Empty(sizes, {.dtype = kInt64});
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    // Half of them are among three rows, so that rows occur several times.
    const int64_t end = random() % 2 == 0 ? 3 : rows;
    tensor.mutable_data_as<int64_t>()[i] =
        std::uniform_int_distribution<int64_t>(0, end - 1)(random);
  }
  return tensor;
}

// Bags of b % 4 ids, for b from `first` on.
Tensor Offsets(int64_t bags, int64_t first, bool with_last) {
  Tensor offsets =
      *Tensor::Empty({bags + (with_last ? 1 : 0)}, {.dtype = kInt64});
  int64_t at = 0;
  for (int64_t b = 0; b < offsets.numel(); ++b) {
    offsets.mutable_data_as<int64_t>()[b] = at;
    at += (first + b) % 4;
  }
  return offsets;
}

// Two tables with uneven sizes, and batches that differ between ranks.
Tensors Inputs(const Task& task) {
  std::mt19937 random(17);
  Tensors inputs = {{"table.user", Floats({37, 8}, random)},
                    {"table.item", Floats({11, 5}, random)}};
  for (int rank = 0; rank < kRanks; ++rank) {
    const int64_t bags = 3 + rank;
    const Tensor offsets = Offsets(bags, rank, task.include_last_offset);
    int64_t ids = 0;
    for (int64_t b = 0; b < bags; ++b) ids += (rank + b) % 4;
    for (const auto& [name, rows, columns] :
         {std::tuple("user", 37, 8), std::tuple("item", 11, 5)}) {
      const std::string prefix = absl::StrCat(rank, ".", name, ".");
      inputs[prefix + "ids"] = Ids({ids}, rows, random);
      inputs[prefix + "offsets"] = offsets;
      if (task.weighted) inputs[prefix + "weights"] = Floats({ids}, random);
      if (!task.rule.empty()) {
        inputs[prefix + "gradient"] = Floats({bags, columns}, random);
      }
    }
  }
  return inputs;
}

void WriteFile(const std::string& path, const Tensors& tensors) {
  std::vector<SafetensorsTensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    infos.push_back({name, tensor.dtype(),
                     Dims(tensor.sizes().begin(), tensor.sizes().end())});
  }
  auto writer =
      SafetensorsWriter::Create(FileSystem::Posix(), path, std::move(infos));
  ASSERT_THAT(writer, IsOk());
  for (const auto& [name, tensor] : tensors) {
    ASSERT_THAT((*writer)->Write(name, tensor), IsOk());
  }
  ASSERT_THAT((*writer)->Finish(), IsOk());
}

// The program's work on one table by loops over numbers in double precision.
class Model {
 public:
  Model(const Task& task, const Tensors& inputs, const std::string& name)
      : task_(task), inputs_(inputs), name_(name) {
    const Tensor& table = inputs.at("table." + name);
    columns_ = table.sizes()[1];
    for (int64_t i = 0; i < table.numel(); ++i) {
      table_.push_back(table.data_as<float>()[i]);
    }
    LimitNorms();
    for (int rank = 0; rank < kRanks; ++rank) LookUp(rank);
    if (!task.rule.empty()) Update();
  }

  // The results of the ranks, and the table afterwards.
  const std::map<std::string, std::vector<double>>& outputs() {
    outputs_["table." + name_] = table_;
    return outputs_;
  }

 private:
  const Tensor& Part(int rank, const char* part) const {
    return inputs_.at(absl::StrCat(rank, ".", name_, ".", part));
  }
  int64_t Id(int rank, int64_t k) const {
    return Part(rank, "ids").data_as<int64_t>()[k];
  }
  int64_t Bags(int rank) const { return 3 + rank; }
  // The ids of a bag that are not padding, by position.
  std::vector<int64_t> Bag(int rank, int64_t bag) const {
    const auto* const offsets = Part(rank, "offsets").data_as<int64_t>();
    const int64_t end =
        bag + 1 < Bags(rank) ? offsets[bag + 1] : Part(rank, "ids").numel();
    std::vector<int64_t> positions;
    for (int64_t k = offsets[bag]; k < end; ++k) {
      if (Id(rank, k) != task_.padding_idx) positions.push_back(k);
    }
    return positions;
  }
  double Factor(int rank, int64_t k, size_t bag_size) const {
    if (task_.weighted) return Part(rank, "weights").data_as<float>()[k];
    return task_.mode == "mean" ? 1.0 / static_cast<double>(bag_size) : 1;
  }
  double& At(int64_t row, int64_t column) {
    return table_[static_cast<size_t>(row * columns_ + column)];
  }

  void LimitNorms() {
    std::set<int64_t> named;
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int64_t k = 0; k < Part(rank, "ids").numel(); ++k) {
        named.insert(Id(rank, k));
      }
    }
    for (const int64_t row : named) {
      double squares = 0;
      for (int64_t c = 0; c < columns_; ++c) squares += At(row, c) * At(row, c);
      const double norm = std::sqrt(squares);
      if (norm <= task_.max_norm) continue;
      for (int64_t c = 0; c < columns_; ++c) {
        At(row, c) *= task_.max_norm / (norm + 1e-7);
      }
    }
  }

  void LookUp(int rank) {
    std::vector<double>& result = outputs_[absl::StrCat(rank, ".", name_)];
    for (int64_t b = 0; b < Bags(rank); ++b) {
      const std::vector<int64_t> bag = Bag(rank, b);
      for (int64_t c = 0; c < columns_; ++c) {
        double value = 0;
        for (const int64_t k : bag) {
          const double element = At(Id(rank, k), c);
          if (task_.mode != "max") {
            value += element * Factor(rank, k, bag.size());
          } else if (k == bag.front() || element > value) {
            value = element;
          }
        }
        result.push_back(value);
      }
    }
  }

  void Update() {
    std::map<int64_t, std::vector<double>> gradients;
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto* const of_result = Part(rank, "gradient").data_as<float>();
      for (int64_t b = 0; b < Bags(rank); ++b) {
        const std::vector<int64_t> bag = Bag(rank, b);
        for (const int64_t k : bag) {
          std::vector<double>& sum = gradients[Id(rank, k)];
          sum.resize(static_cast<size_t>(columns_));
          for (int64_t c = 0; c < columns_; ++c) {
            sum[static_cast<size_t>(c)] +=
                of_result[b * columns_ + c] * Factor(rank, k, bag.size());
          }
        }
      }
    }
    for (const auto& [row, gradient] : gradients) UpdateRow(row, gradient);
  }

  // Of the first step: Adagrad's sums begin with 0.
  void UpdateRow(int64_t row, const std::vector<double>& gradient) {
    double squares = 0;
    for (const double g : gradient) squares += g * g;
    for (int64_t c = 0; c < columns_; ++c) {
      const double g = gradient[static_cast<size_t>(c)];
      double divisor = 1;
      if (task_.rule == "adagrad") divisor = std::abs(g) + 0.001;
      if (task_.rule == "rowwise_adagrad") {
        divisor = std::sqrt(squares / static_cast<double>(columns_)) + 0.001;
      }
      At(row, c) -= 0.5 * g / divisor;
    }
  }

  const Task task_;
  const Tensors& inputs_;
  const std::string name_;
  int64_t columns_ = 0;
  std::vector<double> table_;
  std::map<std::string, std::vector<double>> outputs_;
};

class EmbeddingCollectionTest : public ::testing::Test {
 protected:
  // Quotes of the folder, which has a blank, and of the layout are the shell's.
  ShellResult RunRanks(int ranks, const std::string& arguments) const {
    return Shell(absl::StrCat(
        "timeout 120 tools/sherd/sherd run -n ", ranks,
        " -- tools/examples/embedding_collection --in=", Quoted(in_),
        " --out=", Quoted(out_), " ", arguments));
  }

  void ExpectResults(const Task& task, const Tensors& inputs) const {
    const auto file = SafetensorsFile::Open(FileSystem::Posix(), out_);
    ASSERT_THAT(file, IsOk());
    size_t expected = 0;
    for (const char* table : {"user", "item"}) {
      Model model(task, inputs, table);
      for (const auto& [name, numbers] : model.outputs()) {
        ++expected;
        const auto tensor = file->ReadTensor(name);
        ASSERT_THAT(tensor, IsOk());
        ASSERT_EQ(tensor->numel(), static_cast<int64_t>(numbers.size()));
        for (size_t i = 0; i < numbers.size(); ++i) {
          ASSERT_NEAR(tensor->data_as<float>()[i], numbers[i], 2e-6)
              << name << ", element " << i;
        }
      }
    }
    EXPECT_EQ(file->entries().size(), expected);
  }

  // Runs the task with a layout and compares with the model.
  void ExpectWork(const Task& task, const std::string& backend,
                  const std::string& layout) const {
    SCOPED_TRACE(absl::StrCat(backend, ", ", layout, ",", task.Arguments()));
    const Tensors inputs = Inputs(task);
    WriteFile(in_, inputs);
    const ShellResult result =
        RunRanks(kRanks, absl::StrCat("--backend=", backend, " --layout='",
                                      layout, "'", task.Arguments()));
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("2 tables and 8 results"));
    ExpectResults(task, inputs);
    EXPECT_EQ(Shell("rm " + Quoted(out_)).exit_code, 0);
  }

  const std::string folder_ = ShellTestFolder();
  const std::string in_ = folder_ + "/in";
  const std::string out_ = folder_ + "/out";
};

TEST_F(EmbeddingCollectionTest, LooksUpInEveryModeAndLayout) {
  ExpectWork({.mode = "sum"}, "shm", "chunk(0) over 4");
  ExpectWork({.mode = "mean", .include_last_offset = true}, "gloo",
             "chunk(1) over 3,1,0,2");
  ExpectWork({.mode = "max", .padding_idx = 1}, "shm", "grid(2x2)");
  ExpectWork({.weighted = true, .max_norm = 0.5}, "gloo",
             "user=mesh(2x2: shard(0), replicate);item=whole over 2-2");
}

TEST_F(EmbeddingCollectionTest, UpdatesByEveryRuleInEveryLayout) {
  ExpectWork({.rule = "sgd", .weighted = true}, "gloo", "chunk(0) over 4");
  ExpectWork({.mode = "mean", .rule = "adagrad", .padding_idx = 2}, "shm",
             "chunk(1) over 4");
  ExpectWork({.rule = "rowwise_adagrad"}, "shm",
             "cyclic(3x2, 2x2);item=whole over 3-3");
  ExpectWork({.rule = "rowwise_adagrad", .include_last_offset = true}, "gloo",
             "chunk(1) over 4");
}

TEST_F(EmbeddingCollectionTest, LayoutAndBackendChangeNoBitOfAnUpdate) {
  const Task task = {.rule = "rowwise_adagrad", .weighted = true};
  WriteFile(in_, Inputs(task));
  const auto run = [&](const std::string& arguments) {
    const ShellResult result = RunRanks(
        kRanks, absl::StrCat(arguments, task.Arguments(), "; mv ", Quoted(out_),
                             " ", Quoted(folder_ + "/other")));
    EXPECT_EQ(result.exit_code, 0) << result.output;
  };
  run("--backend=shm --layout='chunk(0) over 4'");
  ASSERT_EQ(Shell(absl::StrCat("mv ", Quoted(folder_ + "/other"), " ",
                               Quoted(folder_ + "/first")))
                .exit_code,
            0);
  for (const char* arguments : {"--backend=shm --layout='chunk(1) over 4'",
                                "--backend=gloo --layout='whole over 1-1'"}) {
    run(arguments);
    EXPECT_EQ(Shell(absl::StrCat("cmp ", Quoted(folder_ + "/first"), " ",
                                 Quoted(folder_ + "/other")))
                  .output,
              "")
        << arguments;
  }
}

TEST_F(EmbeddingCollectionTest, WrongInputIsOneClearErrorOfAllRanks) {
  const Task task = {.rule = "sgd"};
  const Tensors good = Inputs(task);
  struct BadCase {
    std::string what;
    int ranks = kRanks;
    std::string layout = "chunk(0) over 4";
    // Taken from the file, and put there.
    std::string without = "";
    Tensors with = {};
    std::string expected;
  };
  const Tensor floats = *Tensor::Zeros(good.at("2.user.ids").sizes());
  Tensor outside = good.at("3.item.ids").Clone().value();
  outside.mutable_data_as<int64_t>()[1] = 11;
  const std::vector<BadCase> bad = {
      {.what = "a missing table",
       .without = "table.item",
       .expected = "item.ids, which is neither table.NAME nor R.NAME.ids"},
      {.what = "ids of another dtype",
       .with = {{"2.user.ids", floats}},
       .expected = "rank 2: "},
      {.what = "an id outside its table",
       .with = {{"3.item.ids", outside}},
       .expected = "rank 3: "},
      {.what = "a gradient of another size",
       .with = {{"0.user.gradient", floats}},
       .expected = "(tables from 0 on: "},
      {.what = "missing ids",
       .without = "1.user.ids",
       .expected = "has no 1.user.ids, which 4 ranks need"},
      {.what = "a missing gradient",
       .without = "1.item.gradient",
       .expected = "has no 1.item.gradient, which --rule needs"},
      {.what = "an unknown layout",
       .layout = "diagonal over 4",
       .expected = "\"diagonal over 4\": expected chunk(DIM) over RANKS"},
      {.what = "a layout for more ranks",
       .layout = "chunk(0) over 5",
       .expected = "has a shard on rank 4, but there are 4 ranks"},
      {.what = "a layout for one table alone",
       .layout = "user=chunk(0) over 4",
       .expected = "--layout: none for table item"},
      {.what = "a layout for a table that is not there",
       .layout = "chunk(0) over 4;ghost=chunk(0) over 4",
       .expected = "--layout: there is no table ghost"},
      {.what = "batches of more ranks",
       .ranks = 3,
       .layout = "chunk(0) over 3",
       .expected = " for rank 3, but there are 3 ranks"},
  };
  for (const BadCase& c : bad) {
    SCOPED_TRACE(c.what);
    Tensors inputs = good;
    inputs.erase(c.without);
    for (const auto& [name, tensor] : c.with) inputs[name] = tensor;
    WriteFile(in_, inputs);
    const ShellResult result =
        RunRanks(c.ranks, absl::StrCat("--backend=shm --layout='", c.layout,
                                       "'", task.Arguments()));
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_THAT(result.output, HasSubstr("embedding_collection: "));
    EXPECT_THAT(result.output, HasSubstr(c.expected));
    EXPECT_NE(Shell("ls " + Quoted(out_)).exit_code, 0);
  }
}

TEST_F(EmbeddingCollectionTest, FilesAreNeitherGuessedNorOverwritten) {
  const std::string layout = "--backend=gloo --layout='chunk(0) over 4'";
  ShellResult result = RunRanks(kRanks, layout);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("/in"));
  WriteFile(in_, Inputs({}));
  ASSERT_EQ(Shell("echo mine > " + Quoted(out_)).exit_code, 0);
  result = RunRanks(kRanks, layout);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output,
              HasSubstr("/out exists: remove it, or name another"));
  EXPECT_EQ(Shell("cat " + Quoted(out_)).output, "mine\n");
}

// What all ranks say of it: "[3] embedding_collection: read: rank 2: …".
void ExpectErrorOfAllRanks(const ShellResult& result, const std::string& text) {
  EXPECT_EQ(result.exit_code, 1) << result.output;
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_THAT(
        result.output,
        HasSubstr(absl::StrCat("[", rank, "] embedding_collection: ", text)));
  }
}

TEST_F(EmbeddingCollectionTest, AFileThatOneRankLacksIsAnErrorOfAllRanks) {
  WriteFile(in_, Inputs({}));
  for (const char* backend : {"shm", "gloo"}) {
    const ShellResult result = Shell(absl::StrCat(
        "timeout 120 tools/sherd/sherd run -n ", kRanks,
        " -- sh -c 'test $RANK != 2 || set -- \"$1.none\" \"$2\"; "
        "exec tools/examples/embedding_collection --in=\"$1\" --out=\"$2\" "
        "\"--layout=chunk(0) over 4\" --backend=",
        backend, "' sh ", Quoted(in_), " ", Quoted(out_)));
    ExpectErrorOfAllRanks(result, "read: rank 2: ");
    EXPECT_THAT(result.output, HasSubstr("/in.none"));
    EXPECT_NE(Shell("ls " + Quoted(out_)).exit_code, 0);
  }
}

TEST_F(EmbeddingCollectionTest, AnOutputThatCannotBeWrittenIsOneOfAllRanks) {
  WriteFile(in_, Inputs({}));
  for (const char* backend : {"shm", "gloo"}) {
    const ShellResult result = Shell(absl::StrCat(
        "timeout 120 tools/sherd/sherd run -n ", kRanks,
        " -- tools/examples/embedding_collection --in=", Quoted(in_),
        " --out=", Quoted(folder_ + "/none/out"), " --backend=", backend,
        " --layout='chunk(0) over 4'"));
    ExpectErrorOfAllRanks(result, "write: rank 0: ");
    EXPECT_THAT(result.output, HasSubstr("/none: No such file or directory"));
  }
}

TEST_F(EmbeddingCollectionTest, AWrongCommandLineExitsWithTwo) {
  for (const char* arguments :
       {"", "--layout=x", "--mode=median --in=a --out=b --layout=x",
        "--lr=1 --in=a --out=b --layout=x",
        "--rule=adam --in=a --out=b --layout=x"}) {
    const ShellResult result =
        Shell(absl::StrCat("tools/examples/embedding_collection ", arguments));
    EXPECT_EQ(result.exit_code, 2) << arguments << "\n" << result.output;
  }
}

}  // namespace
}  // namespace sherd
