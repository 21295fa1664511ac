#ifndef SHERD_CORE_NN_PLAN_TENSOR_HOLDERS_H_
#define SHERD_CORE_NN_PLAN_TENSOR_HOLDERS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sherd/core/nn/module.h"
#include "sherd/core/nn/tree/value_identity.h"
#include "sherd/core/nn/value.h"

namespace sherd::internal {

// A member that holds a tensor.
struct TensorHolder {
  Module* module = nullptr;
  MemberKind kind = MemberKind::kParameter;
  std::string path;
  // The tensor is the member itself, and not in a list or map.
  bool whole = false;
};

// Which members of a tree hold each tensor: tied ones hold the same.
class TensorHolders {
 public:
  //   Errors. As ForEachModule.
  static absl::StatusOr<TensorHolders> Find(Module& root);

  // In the order of MembersOf. Empty for a tensor without elements here.
  absl::Span<const TensorHolder> Of(const Value& tensor) const;

  // Puts `replacement` in the place of `tensor` wherever that is held.
  void Replace(const Value& tensor, const Value& replacement) const;

  // Whether members of `root` that were one tensor in these still are, where
  // both still exist. Those within lists and maps are not compared.
  //   kFailedPrecondition  With two paths that were.
  absl::Status CheckTies(Module& root) const;

 private:
  std::vector<std::vector<TensorHolder>> holders_;
  // Positions in holders_.
  absl::flat_hash_map<ValueIdentity, size_t> positions_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_NN_PLAN_TENSOR_HOLDERS_H_
