#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/tools/bench/peers/bare_mpi.h"
#include "sherd/tools/bench/peers/move.h"
#include "sherd/tools/bench/peers/mpi_peers.h"
#include "sherd/tools/bench/peers/word_memory.h"

namespace sherd {
namespace {

constexpr int kDescriptorSize = 9;

// ScaLAPACK's C interface. It has no headers, and is opened when it is needed:
// bench runs without it.
struct Scalapack {
  using Redistribute = void (*)(int rows, int cols, const void* from,
                                int from_row, int from_col,
                                const int* from_descriptor, void* to,
                                int to_row, int to_col,
                                const int* to_descriptor, int context);

  Redistribute doubles = nullptr;
  Redistribute integers = nullptr;
  void (*get)(int context, int what, int* value) = nullptr;
  void (*grid_init)(int* context, const char* order, int rows,
                    int cols) = nullptr;
};

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

absl::StatusOr<Scalapack> OpenScalapack() {
  for (const char* name :
       {"libscalapack-openmpi.so", "libscalapack-openmpi.so.2.2",
        "libscalapack-openmpi.so.2.1"}) {
    // Stays open: what it starts ends with the process.
    void* const library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    Scalapack scalapack;
    if (library != nullptr && Find(library, "Cpdgemr2d", scalapack.doubles) &&
        Find(library, "Cpigemr2d", scalapack.integers) &&
        Find(library, "Cblacs_get", scalapack.get) &&
        Find(library, "Cblacs_gridinit", scalapack.grid_init)) {
      return scalapack;
    }
  }
  return absl::NotFoundError(
      "no ScaLAPACK here: apt-get install libscalapack-openmpi-dev");
}

// One side of the move in ScaLAPACK's terms. Its matrices are stored by
// columns: it is given the transpose, whose rows are our columns, in elements
// of `element_words` words.
class LocalMatrix {
 public:
  LocalMatrix(const WordTensor& matrix, const RankBoxes& boxes,
              const CyclicLayout& layout, int rank, int element_words,
              const Scalapack& scalapack)
      : boxes_(boxes), layout_(layout) {
    const int grid_row = rank / layout.grid_cols;
    const int grid_col = rank % layout.grid_cols;
    local_rows_ =
        Share(matrix.rows(), layout.block_rows, layout.grid_rows, grid_row);
    local_cols_ =
        Share(matrix.cols(), layout.block_cols, layout.grid_cols, grid_col);
    int context;
    scalapack.get(-1, 0, &context);
    scalapack.grid_init(&context, "C", layout.grid_cols, layout.grid_rows);
    const int dense_matrix = 1;
    descriptor_ = {dense_matrix,
                   context,
                   static_cast<int>(matrix.cols() / element_words),
                   static_cast<int>(matrix.rows()),
                   static_cast<int>(layout.block_cols / element_words),
                   static_cast<int>(layout.block_rows),
                   0,
                   0,
                   std::max(1, static_cast<int>(local_cols_ / element_words))};
  }

  absl::Status Allocate() {
    SHERD_ASSIGN_OR_RETURN(memory_,
                           WordMemory::Allocate(local_rows_ * local_cols_));
    return absl::OkStatus();
  }

  void* data() const { return memory_.words(); }
  const int* descriptor() const { return descriptor_.data(); }

  // This rank's blocks, which are side by side in one matrix.
  std::vector<StoredBox> stored() const {
    std::vector<StoredBox> stored;
    for (const WordBox& box : boxes_) {
      const int64_t row =
          LocalOf(box.offsets[1], layout_.block_rows, layout_.grid_rows);
      const int64_t col =
          LocalOf(box.offsets[2], layout_.block_cols, layout_.grid_cols);
      stored.push_back({box, memory_.words() + row * local_cols_ + col,
                        local_cols_, local_rows_ * local_cols_});
    }
    return stored;
  }

 private:
  // How many of `size` belong to place `at` of `places`.
  static int64_t Share(int64_t size, int64_t block, int places, int at) {
    int64_t share = 0;
    for (int64_t start = at * block; start < size; start += places * block) {
      share += std::min(block, size - start);
    }
    return share;
  }

  // Where the block that begins at `offset` begins in its place.
  static int64_t LocalOf(int64_t offset, int64_t block, int places) {
    return offset / block / places * block;
  }

  const RankBoxes boxes_;
  const CyclicLayout layout_;
  int64_t local_rows_;
  int64_t local_cols_;
  std::array<int, kDescriptorSize> descriptor_;
  WordMemory memory_;
};

class ScalapackMove final : public RankWork {
 public:
  ScalapackMove(const Scalapack& scalapack, const Move& move, int rank)
      : scalapack_(scalapack),
        tensor_(move.tensor),
        element_words_(HasDoubles(move) ? 2 : 1),
        from_(move.tensor, move.from[rank], *move.cyclic_from, rank,
              element_words_, scalapack),
        to_(move.tensor, move.to[rank], *move.cyclic_to, rank, element_words_,
            scalapack) {
    // All processes, which is what both grids have in common.
    scalapack.get(-1, 0, &everybody_);
    scalapack.grid_init(&everybody_, "C", static_cast<int>(move.from.size()),
                        1);
  }

  absl::Status Init() {
    SHERD_RETURN_IF_ERROR(from_.Allocate());
    Fill(tensor_, from_.stored());
    return absl::OkStatus();
  }

  absl::Status Prepare() override {
    if (!first_) Spoil(tensor_, to_.stored());
    return absl::OkStatus();
  }

  absl::Status Run() override {
    if (first_) SHERD_RETURN_IF_ERROR(to_.Allocate());
    first_ = false;
    (element_words_ == 2 ? scalapack_.doubles : scalapack_.integers)(
        static_cast<int>(tensor_.cols() / element_words_),
        static_cast<int>(tensor_.rows()), from_.data(), 1, 1,
        from_.descriptor(), to_.data(), 1, 1, to_.descriptor(), everybody_);
    return absl::OkStatus();
  }

  absl::Status Check() override { return sherd::Check(tensor_, to_.stored()); }

 private:
  static bool HasDoubles(const Move& move) {
    return move.tensor.cols() % 2 == 0 &&
           move.cyclic_from->block_cols % 2 == 0 &&
           move.cyclic_to->block_cols % 2 == 0;
  }

  const Scalapack scalapack_;
  const WordTensor tensor_;
  const int element_words_;
  LocalMatrix from_;
  LocalMatrix to_;
  int everybody_ = 0;
  bool first_ = true;
};

}  // namespace

absl::Status FindScalapack() { return OpenScalapack().status(); }

absl::StatusOr<std::unique_ptr<RankWork>> MakeScalapackMove(
    RankContext& context, const Move& move) {
  SHERD_ASSIGN_OR_RETURN(const Scalapack scalapack, OpenScalapack());
  StartMpi();
  auto work = std::make_unique<ScalapackMove>(scalapack, move, context.rank());
  SHERD_RETURN_IF_ERROR(work->Init());
  return work;
}

}  // namespace sherd
