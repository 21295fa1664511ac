#ifndef SHERD_SERIALIZATION_CHECKPOINT_SAVE_SAVER_H_
#define SHERD_SERIALIZATION_CHECKPOINT_SAVE_SAVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/file.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/collective/operation_label.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/checkpoint.h"
#include "sherd/serialization/checkpoint/incremental/increment.h"
#include "sherd/serialization/checkpoint/incremental/save_base.h"
#include "sherd/serialization/checkpoint/phase_clock.h"
#include "sherd/serialization/checkpoint/save/kept_plans.h"
#include "sherd/serialization/checkpoint/save/rank_file.h"
#include "sherd/serialization/checkpoint/save/replica_check.h"
#include "sherd/serialization/checkpoint/save/save_directory.h"

namespace sherd {

// What a save has done before it begins, where it runs on another thread than
// the call.
struct PreparedSave {
  // Of the checks and the plan. An error becomes that of all ranks.
  absl::Status status;
  std::shared_ptr<const SavePlan> plan;
  // If replicas are compared.
  ReplicaCrcs replicas;
  // With a base: elements can be asked for in the order of the file alone, so
  // that this rank writes all of them and leaves its base as it is.
  bool whole = false;
};

// What a save saves, and where. The same on all ranks but for the elements.
struct SaveJob {
  using Tensors = std::map<std::string, ShardedTensor>;
  // To be called after each part of what may take a while: a sign of life for
  // the other ranks. An error ends the work.
  using Progress = absl::FunctionRef<absl::Status()>;

  // The directory.
  std::string path;
  std::shared_ptr<const Tensors> tensors;
  std::shared_ptr<ProcessGroup> group;
  SaveOptions options;
  // What went wrong on this rank before: the save fails with it on all ranks.
  absl::Status failure = {};
  // Null: Saver prepares the save. Otherwise called first; the tensors need
  // have no elements, and may belong to another group of the same ranks.
  std::function<std::shared_ptr<const PreparedSave>(Progress)> prepare;
  // Finds the elements of a shard, which are asked for in the order of the
  // file; once another shard is asked for, they are not used any more. With a
  // base, they are asked for more than once, and in any order. Null: those of
  // the tensors.
  std::function<absl::StatusOr<Tensor>(const PlannedShard&, Progress)> elements;
  // This rank's own. Not null: the save is incremental, and the next one can
  // be: see SaveBase. The files that its manifest names, those of earlier saves
  // too, must stay as long as it. A rank that has none writes all, whatever the
  // others do. Null on all ranks or on none.
  std::shared_ptr<SaveBase> base;
  // Which manifest of the directory; the step is the same on all ranks.
  SaveTarget target = {};
};

// A job that borrows `tensors`.
SaveJob SaveJobOf(const std::string& path, const SaveJob::Tensors& tensors,
                  std::shared_ptr<ProcessGroup> group,
                  const SaveOptions& options);

// One rank's part of one save: see SaveCheckpoint. All ranks create one alike.
//
// A save is a plan, on which the ranks agree; the comparison of replicas, if
// they are to be compared; the writing of data files, which ends with their
// reports; and the commit by rank 0, whose result is that of all.
class Saver {
 public:
  // Of error messages, and their beginning.
  static constexpr char kOperation[] = "save_checkpoint";
  static std::string LabelOf(const std::string& path);

  explicit Saver(SaveJob job);

  // Collective.
  absl::Status Run();

  // After Run() returned OK.
  const CheckpointStats& stats() const { return stats_; }
  const OperationLabel& operation() const { return operation_; }

 private:
  // The end of the writing, from each rank to all; sent as it is in memory.
  struct Note {
    RankFileReport report;
    SavePhases phases;
  };

  // Ranks wait in the agreement that ends the step as long as the others make
  // progress.
  void BeginStep(size_t note_bytes = 0);
  std::string DescribeCall() const;

  absl::Status CheckTarget() const;
  // Everything that can go wrong before anything is written.
  absl::Status Prepare();
  absl::Status MakePlan();
  absl::StatusOr<ReplicaCrcs> CrcsOfReplicas();
  absl::Status WriteAndCommit();
  absl::Status WriteFile();
  // With a base: checks that there is space for what this rank writes.
  absl::Status CheckOwnSpace(int64_t bytes);
  // For writing the file.
  int NumThreads() const;
  // With job_.base: plans what this rank writes.
  absl::Status PlanIncrement();
  absl::StatusOr<Tensor> ElementsOf(const PlannedShard& shard);
  bool SumsTravelWithReports() const;
  size_t NoteBytes() const;
  // Ends the writing on all ranks, and brings the notes of all to all.
  absl::Status Report(const absl::Status& written);
  void AddNote(const Note& note);
  // Brings the sums of all ranks to rank 0, if Report() has not.
  absl::Status SumFingerprints();
  // Brings the lists of all ranks to rank 0, if there are any.
  absl::Status GatherExtents();
  // Whether this save refers to files of earlier ones.
  bool SharesFiles() const;
  // What the next save can refer to.
  void UpdateBase();
  // Makes the new files the checkpoint. Rank 0 only.
  absl::Status Commit();

  const SaveJob job_;
  // The beginning of error messages.
  const std::string label_;
  const OperationLabel operation_;
  const SaveJob::Tensors& tensors_;
  ProcessGroup& group_;
  FileSystem& files_;
  SaveDirectory directory_;
  // By index in the plan, as in tensors_.
  std::vector<NamedTensor> named_;

  // The step that this rank is in.
  std::optional<LongStep> step_;
  // Of the plan, in the form of Fingerprint.
  int64_t agreed_ = 0;
  // Null if this object has prepared the save.
  std::shared_ptr<const PreparedSave> prepared_;
  // On rank 0: the number of the save.
  uint64_t own_id_ = 0;
  std::shared_ptr<const SavePlan> plan_;
  // For each tensor the linear CRC of what this rank wrote of it, then, on rank
  // 0, of all of it.
  std::vector<uint32_t> sums_;
  RankFileReport report_;
  std::vector<RankFileReport> reports_;
  // With job_.base: this rank's part, its extents as rank 0 needs them, and
  // the fingerprints of the chunks that it wrote. On rank 0 the extents of all.
  std::optional<Increment> increment_;
  std::string extents_;
  std::vector<uint32_t> fingerprints_;
  std::vector<std::string> extent_lists_;
  PhaseClock clock_;
  SavePhases phases_;
  CheckpointStats stats_;
};

// Runs a save: with errors as those of the operation, and options.stats.
// Collective.
absl::Status RunSave(SaveJob job);

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_CHECKPOINT_SAVE_SAVER_H_
