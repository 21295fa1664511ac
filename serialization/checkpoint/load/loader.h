#ifndef SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOADER_H_
#define SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOADER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/parallel_run.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/collective/operation_label.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/core/tensor/types/memory_overlap.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/extent_reader.h"
#include "sherd/serialization/checkpoint/load/chunk_ledger.h"
#include "sherd/serialization/checkpoint/load/load_moves.h"
#include "sherd/serialization/checkpoint/load/load_plan.h"
#include "sherd/serialization/checkpoint/load/piece_reader.h"
#include "sherd/serialization/checkpoint/load/read_units.h"
#include "sherd/serialization/checkpoint/phase_clock.h"
#include "sherd/serialization/manifest/manifest.h"
#include "sherd/serialization/manifest/manifest_reader.h"

namespace sherd {

// One rank's part of one load. All ranks create one alike, and call the
// collective functions in the same order.
//
// A load is a plan, on which the ranks agree; then steps, each of which ends
// with an agreement and an exchange of data: in the first a rank reads what
// goes straight into place, in each a round of every LoadExchange; then
// replicas are copied; and at the end the ranks report, and check together the
// chunks that several of them read and, if they are asked to, what they loaded.
//
// A rank that has its plan does not wait for the others where it need not: what
// changes no tensor of the caller it reads before the ranks agree. That is the
// first round of an exchange, and all that goes into new tensors. That ranks
// differ in what they load is found after it.
class Loader {
 public:
  // The checkpoint when a load has failed, as seen by the rank that sees most:
  // that which it read before, or one that a save has put in its place.
  enum Found : uint64_t { kNothing, kTheSame, kAnother };

  // Of error messages, and their beginning.
  static constexpr char kOperation[] = "load_checkpoint";
  static std::string LabelOf(const std::string& path);

  // The tensors to load into, by the positions of their names: those that are
  // given, which stay where they are as long as the loader, or new ones.
  struct Destinations {
    absl::Span<const ShardedTensor* const> given;
    // Makes one; before data moves, again if the load starts over. Nobody has
    // them after an error. Null if they are given, on all ranks or on none.
    std::function<absl::StatusOr<ShardedTensor>(size_t number,
                                                const ManifestTensor& saved)>
        make;

    bool are_new() const { return make != nullptr; }
  };

  // `path`, `names`, `group` and `options` are borrowed. Names ascend.
  Loader(const std::string& path, absl::Span<const absl::string_view> names,
         Destinations destinations, ProcessGroup& group,
         const LoadOptions& options);

  // Collective.
  absl::Status Run();

  // After success: the new tensors, by position of their names; not defined
  // where nothing was loaded.
  std::vector<ShardedTensor> TakeNew() { return std::move(made_); }
  LoadReport TakeReport() { return std::move(report_); }
  const CheckpointStats& stats() const { return stats_; }
  // Of the save that was loaded.
  const std::string& save_id() const { return save_id_; }

  // After an error, which all ranks have alike: what the ranks find when they
  // look again. Collective.
  absl::StatusOr<Found> LookAgain();

  const OperationLabel& operation() const { return operation_; }

 private:
  struct Item {
    // Position of its name.
    size_t number = 0;
    std::shared_ptr<const ManifestTensor> saved;
    const ShardedTensor* tensor = nullptr;
    // Of `tensor`.
    DType dtype = kFloat32;
    ReadStrategy strategy = ReadStrategy::kPieces;
    // What this rank reads into place.
    absl::InlinedVector<WantedBox, 1> boxes;
  };
  // What is alike for all destinations of a layout.
  struct WantedLayout {
    uint64_t boxes_fingerprint = 0;
    // Those of the largest box.
    Dims largest_sizes;
    bool has_replicas = false;
  };
  // The last tensor that was planned: most have the layouts of one beside them.
  struct LastPlan {
    SavedLayout saved;
    // Of the largest box of `saved`.
    Dims largest_sizes;
    // LayoutFingerprintOf the destination, and its shards on this rank, which
    // that does not tell where placements name workers.
    uint64_t wanted = 0;
    absl::InlinedVector<int, 4> shards;
    // Its reads, if they depend on the layouts alone; otherwise none.
    size_t first_read = 0;
    size_t last_read = 0;
  };
  // Copies of replicas, by element size.
  struct Copies {
    ShardNumbers numbers;
    MoveList moves;
  };
  // The end of a load, from each rank to all; sent as it is in memory.
  struct Note {
    int64_t bytes_read = 0;
    int64_t bytes_exchanged = 0;
    int64_t partial_chunks = 0;
    LoadPhases phases;
  };

  // Ranks wait in the agreement that ends the step as long as the others read.
  void BeginStep(bool with_notes);
  // Ends a step that has them: brings those of all ranks to all.
  absl::StatusOr<std::vector<Note>> EndStep(const absl::Status& status,
                                            const AgreedValue& value);
  std::string DescribeCall() const;

  // Everything that can go wrong before data moves.
  absl::Status Prepare();
  absl::Status CheckFileSizes();
  absl::Status CheckExtents(const ManifestTensor& saved);
  std::string SavedName(absl::string_view name) const;
  absl::string_view NameOf(const Item& item) const {
    return names_[item.number];
  }
  const WantedLayout& LayoutOf(const ShardedTensor& tensor);
  absl::Status FindTensors(StrategyChooser& chooser);
  // The tensors of the checkpoint with these names; null for one that is not
  // there, unless the load is strict.
  absl::StatusOr<std::vector<std::shared_ptr<const ManifestTensor>>> FindSaved(
      absl::Span<const absl::string_view> sorted_names) const;
  // The destination of that number.
  absl::StatusOr<const ShardedTensor*> Destination(size_t number,
                                                   const ManifestTensor& saved);
  absl::Status AddItem(size_t number,
                       std::shared_ptr<const ManifestTensor> saved,
                       StrategyChooser& chooser);
  absl::Status ListUnexpected();
  absl::Status CheckFits(absl::string_view name, const ManifestTensor& saved,
                         const ShardedTensor& tensor);
  absl::Status CheckApart();
  // Plans for the last item.
  absl::Status PlanItem(const WantedLayout& wanted, StrategyChooser& chooser);
  absl::Status PlanExchange();
  absl::Status PlanPieces(const WantedLayout& layout, Item& item);

  // Reads, after `prepared`, what changes no tensor of the caller.
  absl::Status ReadEarly(const absl::Status& prepared);
  // Whether that was all; the same on all ranks that agree on the plan.
  bool IsComplete() const {
    return NumMoves() == 0 && (destinations_.are_new() || !has_pieces_);
  }
  // Once this rank has read all.
  absl::Status CloseLedger();

  int64_t part_bytes() const;
  int64_t NumMoves() const;
  absl::Status Move();
  absl::Status MadeProgress();
  ChunkLedger MakeLedger();
  absl::Status ReadPieces();
  // That may work for this rank.
  int NumThreads() const;
  // That may read pieces, if there is enough for all.
  int MostThreads() const;
  std::vector<ReadUnit> DivideReads(int& threads) const;
  absl::Status ReadBoxes(const ReadUnit& unit, PieceReader& reader) const;
  absl::Status ReadWholeRun(const ShardRead& read, const Item& item,
                            std::byte* data, PieceReader& reader) const;
  // `sizes`: of the shard, for ReadBox.
  ShardSource SourceOf(const Item& item, int32_t number, int64_t shard,
                       const Dims& sizes) const;
  // Of a shard; zeros if it has none.
  SavedExtent FirstExtentOf(const ManifestTensor& saved, int64_t shard) const;
  // Whether another thread reads the next round while data moves: a core is
  // free for it, or it will wait for the medium most of the time.
  bool ReadsAhead() const;
  // The rounds of an exchange; `left` counts the moves of the load.
  absl::Status MoveRounds(LoadExchange& exchange, size_t element_size,
                          int64_t& left);
  absl::StatusOr<MoveList> ReadRound(LoadExchange& exchange, int64_t round,
                                     bool ahead);
  absl::Status RunMove(absl::StatusOr<MoveList> moves, size_t element_size,
                       bool is_last);

  // `notes`: of the step that was the last.
  absl::Status Finish(absl::Span<const Note> notes);
  void SumUp(absl::Span<const Note> notes);
  absl::Status CheckPartial(absl::Span<const Note> notes);
  absl::StatusOr<std::vector<PartialChunk>> GatherPartial(
      absl::Span<const Note> notes);
  absl::StatusOr<std::vector<PartialChunk>> TradePartial();
  absl::Status CheckElements();

  const std::string& path_;
  // The beginning of error messages.
  const std::string label_;
  const OperationLabel operation_;
  const absl::Span<const absl::string_view> names_;
  const Destinations destinations_;
  ProcessGroup& group_;
  const LoadOptions& options_;
  FileSystem& files_;
  // Of each collective that moves data.
  const CollectiveOptions collective_;
  // This rank's share of the memory.
  const int64_t memory_;

  // The step that this rank is in.
  std::optional<LongStep> step_;
  PhaseClock clock_;

  // To be read, so that all ranks read about as much.
  std::vector<int64_t> elements_of_rank_;
  Fingerprint fingerprint_;
  // By LayoutFingerprintOf.
  absl::flat_hash_map<uint64_t, WantedLayout> layouts_;
  std::string save_id_;
  // Whether this rank did not learn the save, since another one had failed.
  bool gave_up_reading_ = false;
  std::optional<ExtentReader> files_reader_;
  // The bytes of data in the files before each, and in all.
  std::vector<uint64_t> data_before_;
  std::optional<ChunkLedger> ledger_;
  std::optional<PieceReader> reader_;
  // Chunks of which this rank read a part, in the end.
  std::vector<PartialChunk> partial_;
  // New tensors, by position of their names; none if they are given.
  std::vector<ShardedTensor> made_;
  std::vector<Item> items_;
  // Those that go through an exchange.
  std::vector<size_t> exchanged_;
  // Whether any of them is read in pieces; the same on all ranks.
  bool has_pieces_ = false;
  // What is written to, and by which item; until that has been checked.
  std::optional<internal::ConflictFinder> writes_;
  std::vector<size_t> owners_;
  bool has_device_shards_ = false;
  // Whether most of what the last round read was not in the page cache.
  bool is_cold_ = false;
  std::vector<ShardRead> reads_;
  LastPlan last_plan_;
  std::map<size_t, LoadExchange> exchanges_;
  // That of the first exchange, from ReadEarly to MoveRounds.
  std::optional<MoveList> first_round_;
  std::map<size_t, Copies> copies_;
  // While threads read beside this one, or may.
  ParallelRun* readers_ = nullptr;
  // The error of this rank while data moved.
  absl::Status failure_;
  LoadPhases phases_;
  int64_t bytes_exchanged_ = 0;
  int64_t num_exchanges_ = 0;
  LoadReport report_;
  CheckpointStats stats_;
};

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_LOAD_LOADER_H_
