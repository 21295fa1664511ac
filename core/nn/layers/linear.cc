#include "sherd/core/nn/linear.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/base/const_init.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/fingerprint.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/random.h"
#include "sherd/core/tensor/shape.h"

namespace sherd {
namespace {

constexpr char kOperation[] = "linear";

// A build of OpenBLAS without threads, such as Debian's "serial", has no locks
// unless it was made with USE_LOCKING (its README): two threads that multiply
// at once share its buffer, and get wrong products.
ABSL_CONST_INIT absl::Mutex one_product_at_a_time(absl::kConstInit);

// float32 or float64 in which products of `dtype` are computed.
//   kInvalidArgument  The dtype is not a floating-point one.
absl::StatusOr<DType> ProductType(DType dtype) {
  if (dtype == kFloat64) return kFloat64;
  if (dtype == kFloat32 || dtype == kFloat16 || dtype == kBFloat16) {
    return kFloat32;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("Expected float32, float64, float16 or bfloat16, but found ",
                   Name(dtype)));
}

// out += x w^T, for x of size [m, k], w of size [n, k] and out of size [m, n],
// in host memory, of one dtype: that of ProductType. Rows of `out` are
// contiguous, but need not follow each other.
//   kInvalidArgument  A size exceeds that of an int, which CBLAS takes.
absl::Status AddProduct(const Tensor& x, const Tensor& w, Tensor& out) {
  SHERD_ASSIGN_OR_RETURN(const Tensor left, x.Contiguous());
  SHERD_ASSIGN_OR_RETURN(const Tensor right, w.Contiguous());
  const int64_t m = left.sizes()[0];
  const int64_t k = left.sizes()[1];
  const int64_t n = right.sizes()[0];
  if (m == 0 || n == 0 || k == 0) return absl::OkStatus();
  const int64_t stride = m > 1 ? out.strides()[0] : n;
  if (std::max({m, n, k, stride}) > std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a product of ", FormatDims(left.sizes()), " and ",
        FormatDims(right.sizes()), " exceeds CBLAS, whose sizes are at most ",
        std::numeric_limits<int>::max()));
  }
  const auto rows = static_cast<int>(m);
  const auto columns = static_cast<int>(n);
  const auto inner = static_cast<int>(k);
  absl::MutexLock lock(&one_product_at_a_time);
  if (out.dtype() == kFloat64) {
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, columns, inner,
                1.0, left.data_as<double>(), inner, right.data_as<double>(),
                inner, 1.0, out.mutable_data_as<double>(),
                static_cast<int>(stride));
  } else {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, columns, inner,
                1.0F, left.data_as<float>(), inner, right.data_as<float>(),
                inner, 1.0F, out.mutable_data_as<float>(),
                static_cast<int>(stride));
  }
  return absl::OkStatus();
}

// What a tensor of either kind has.
struct Form {
  absl::Span<const int64_t> size;
  DType dtype = kFloat32;
  bool on_host = true;
};

absl::StatusOr<Form> FormOf(const Value& value, absl::string_view what) {
  if (const auto* tensor = value.get_if<Tensor>()) {
    return Form{tensor->sizes(), tensor->dtype(), tensor->device().is_cpu()};
  }
  if (const auto* sharded = value.get_if<ShardedTensor>()) {
    bool on_host = true;
    for (const Shard& shard : sharded->local_shards()) {
      on_host = on_host && shard.tensor.device().is_cpu();
    }
    return Form{sharded->size(), sharded->dtype(), on_host};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("Expected ", what,
                   " to be a tensor or a sharded tensor, "
                   "but found ",
                   Name(value.kind())));
}

absl::Status CheckMembers(const Form& x, const Form& weight,
                          const Value& bias) {
  SHERD_RETURN_IF_ERROR(ProductType(weight.dtype).status());
  if (weight.size.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("Expected a weight of two dimensions, but found ",
                     FormatDims(weight.size)));
  }
  if (x.size.empty() || x.size.back() != weight.size[1] ||
      x.dtype != weight.dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("Expected a ", Name(weight.dtype),
                     " input whose last size is ", weight.size[1],
                     ", but found ", Name(x.dtype), " ", FormatDims(x.size)));
  }
  if (!x.on_host || !weight.on_host) {
    return absl::UnimplementedError("Linear computes in host memory only");
  }
  if (bias.is_none()) return absl::OkStatus();
  SHERD_ASSIGN_OR_RETURN(const Form form, FormOf(bias, "the bias"));
  if (form.size.size() != 1 || form.size[0] != weight.size[0] ||
      form.dtype != weight.dtype) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Expected a ", Name(weight.dtype), " bias of size [", weight.size[0],
        "], but found ", Name(form.dtype), " ", FormatDims(form.size)));
  }
  return absl::OkStatus();
}

// [..., k] as rows of k elements.
absl::StatusOr<Tensor> AsRows(const Tensor& x, DType dtype) {
  const int64_t columns = x.sizes().back();
  SHERD_ASSIGN_OR_RETURN(const Tensor dense, x.Contiguous());
  SHERD_ASSIGN_OR_RETURN(const Tensor converted, dense.To(dtype));
  return converted.Reshape({columns == 0
                                ? Volume(x.sizes().first(x.sizes().size() - 1))
                                : converted.numel() / columns,
                            columns});
}

Dims WithLast(absl::Span<const int64_t> size, int64_t last) {
  Dims result(size.begin(), size.end());
  result.back() = last;
  return result;
}

// [m, n], each row a copy of `bias`, or 0 if that is not defined.
absl::StatusOr<Tensor> RowsOf(const Tensor& bias, int64_t m, int64_t n,
                              DType dtype) {
  if (!bias.defined()) return Tensor::Zeros({m, n}, {.dtype = dtype});
  SHERD_ASSIGN_OR_RETURN(const Tensor row, bias.To(dtype));
  SHERD_ASSIGN_OR_RETURN(Tensor rows, Tensor::Empty({m, n}, {.dtype = dtype}));
  for (int64_t i = 0; i < m; ++i) {
    SHERD_ASSIGN_OR_RETURN(Tensor one, rows.Select(0, i));
    SHERD_RETURN_IF_ERROR(one.CopyFrom(row));
  }
  return rows;
}

// x w^T + bias, of x's sizes but the last.
absl::StatusOr<Tensor> Apply(const Tensor& x, const Tensor& weight,
                             const Tensor& bias) {
  SHERD_ASSIGN_OR_RETURN(const DType dtype, ProductType(weight.dtype()));
  SHERD_ASSIGN_OR_RETURN(const Tensor rows, AsRows(x, dtype));
  SHERD_ASSIGN_OR_RETURN(const Tensor w, AsRows(weight, dtype));
  SHERD_ASSIGN_OR_RETURN(Tensor out,
                         RowsOf(bias, rows.sizes()[0], w.sizes()[0], dtype));
  SHERD_RETURN_IF_ERROR(AddProduct(rows, w, out));
  SHERD_ASSIGN_OR_RETURN(out, out.To(weight.dtype()));
  return out.Reshape(WithLast(x.sizes(), weight.sizes()[0]));
}

// A Linear whose weight is sharded.
class ShardedLinear {
 public:
  ShardedLinear(const ShardedTensor& weight, const Value& bias)
      : weight_(weight), bias_(bias), group_(weight.group()) {
    const int64_t columns = weight.size()[1];
    const int64_t rows = weight.size()[0];
    for (const ShardMetadata& shard : weight.metadata().shards) {
      by_rows_ = by_rows_ && shard.sizes[1] == columns;
      by_columns_ = by_columns_ && shard.sizes[0] == rows;
    }
  }

  absl::StatusOr<Value> Run(const Value& input) {
    SHERD_ASSIGN_OR_RETURN(const ShardedTensor x, Joined(input));
    Tensor bias;
    if (const auto* sharded = bias_.get_if<ShardedTensor>()) {
      SHERD_ASSIGN_OR_RETURN(bias, sharded->AllGather());
    } else if (const auto* plain = bias_.get_if<Tensor>()) {
      bias = *plain;
    }
    if (by_rows_) return ByRows(x, bias);
    return Partial(x, bias);
  }

 private:
  // The inputs of all ranks as one tensor.
  absl::StatusOr<ShardedTensor> Joined(const Value& input) const {
    if (const auto* sharded = input.get_if<ShardedTensor>()) return *sharded;
    Tensor x = *input.get_if<Tensor>();
    if (x.dim() == 1) {
      SHERD_ASSIGN_OR_RETURN(x, x.ReshapeOrCopy({1, x.numel()}));
    }
    SHERD_ASSIGN_OR_RETURN(x, x.Contiguous());
    Dims size(x.sizes().begin(), x.sizes().end());
    const Dims shard_size = size;
    size[0] = kUnknownSize;
    const int world_rank =
        group_->world_ranks()[static_cast<size_t>(group_->rank())];
    const Shard shard = {x,
                         {.offsets = Dims(shard_size.size(), 0),
                          .sizes = shard_size,
                          .placement = Placement::OnRank(world_rank)}};
    return ShardedTensor::FromLocalShards(
        {shard}, size, {.dtype = x.dtype(), .group = group_});
  }

  // The last dimension of x, or of y, cut as this one of the weight.
  std::vector<ShardMetadata> ShardsOf(const ShardedTensor& x,
                                      size_t dim) const {
    std::vector<ShardMetadata> shards = weight_.metadata().shards;
    for (ShardMetadata& shard : shards) {
      const int64_t first = shard.offsets[dim];
      shard.sizes = WithLast(x.size(), shard.sizes[dim]);
      shard.offsets.assign(x.size().size(), 0);
      shard.offsets.back() = first;
    }
    return shards;
  }

  absl::StatusOr<Value> ByRows(const ShardedTensor& x, const Tensor& bias) {
    SHERD_ASSIGN_OR_RETURN(const Tensor whole, x.AllGather());
    const Dims size = WithLast(x.size(), weight_.size()[0]);
    ShardedTensorMetadata metadata = weight_.metadata();
    metadata.size = size;
    metadata.properties.requires_grad = false;
    metadata.shards = ShardsOf(x, 0);
    std::vector<Shard> shards;
    for (size_t i = 0; i < weight_.local_shards().size(); ++i) {
      const Shard& part = weight_.local_shards()[i];
      Tensor piece;
      // An empty shard may be past the end.
      if (bias.defined() && part.metadata.sizes[0] > 0) {
        SHERD_ASSIGN_OR_RETURN(piece, bias.Narrow(0, part.metadata.offsets[0],
                                                  part.metadata.sizes[0]));
      }
      SHERD_ASSIGN_OR_RETURN(Tensor y, Apply(whole, part.tensor, piece));
      const auto index = static_cast<size_t>(weight_.local_shard_indices()[i]);
      shards.push_back({std::move(y), metadata.shards[index]});
    }
    SHERD_ASSIGN_OR_RETURN(ShardingSpecPtr spec,
                           EnumerableShardingSpec::Create(metadata.shards));
    if (const auto* chunks =
            dynamic_cast<const ChunkShardingSpec*>(weight_.spec().get())) {
      SHERD_ASSIGN_OR_RETURN(
          spec, ChunkShardingSpec::Create(-1, chunks->placements()));
    }
    return ShardedTensor::FromLocalShardsAndMetadata(
        std::move(shards), metadata, {.group = group_}, spec);
  }

  // The columns of x that are the columns of this weight, on the same ranks.
  absl::StatusOr<ShardedTensor> ColumnsOf(ShardedTensor x) const {
    SHERD_ASSIGN_OR_RETURN(ShardingSpecPtr spec,
                           EnumerableShardingSpec::Create(ShardsOf(x, 1)));
    SHERD_RETURN_IF_ERROR(x.Reshard(spec));
    return x;
  }

  absl::StatusOr<Value> Partial(const ShardedTensor& x, const Tensor& bias) {
    SHERD_ASSIGN_OR_RETURN(const DType dtype, ProductType(weight_.dtype()));
    Tensor whole;
    ShardedTensor columns;
    if (by_columns_) {
      SHERD_ASSIGN_OR_RETURN(columns, ColumnsOf(x));
    } else {
      SHERD_ASSIGN_OR_RETURN(whole, x.AllGather());
    }
    const Dims size = WithLast(x.size(), weight_.size()[0]);
    const int64_t m = Volume(x.size().first(x.size().size() - 1));
    // One rank's summand has the bias.
    SHERD_ASSIGN_OR_RETURN(Tensor out,
                           RowsOf(group_->rank() == 0 ? bias : Tensor(), m,
                                  weight_.size()[0], dtype));
    for (size_t i = 0; i < weight_.local_shards().size(); ++i) {
      const Shard& part = weight_.local_shards()[i];
      if (part.tensor.numel() == 0) continue;
      const Dims& offsets = part.metadata.offsets;
      Tensor input;
      if (by_columns_) {
        input = columns.local_shards()[i].tensor;
      } else {
        SHERD_ASSIGN_OR_RETURN(
            input, whole.Narrow(-1, offsets[1], part.metadata.sizes[1]));
      }
      SHERD_ASSIGN_OR_RETURN(const Tensor rows, AsRows(input, dtype));
      SHERD_ASSIGN_OR_RETURN(const Tensor w, AsRows(part.tensor, dtype));
      SHERD_ASSIGN_OR_RETURN(Tensor to,
                             out.Narrow(1, offsets[0], part.metadata.sizes[0]));
      SHERD_RETURN_IF_ERROR(AddProduct(rows, w, to));
    }
    SHERD_ASSIGN_OR_RETURN(out, out.To(weight_.dtype()));
    SHERD_ASSIGN_OR_RETURN(out, out.Reshape(size));
    return PartialTensor::Create(std::move(out), ReduceOp::kSum, group_);
  }

  const ShardedTensor& weight_;
  const Value& bias_;
  const std::shared_ptr<ProcessGroup> group_;
  bool by_rows_ = true;
  bool by_columns_ = true;
};

// Whether an element is in several shards: they cover the tensor.
bool HasReplicas(const ShardedTensor& tensor) {
  int64_t others = tensor.numel();
  for (const ShardMetadata& shard : tensor.metadata().shards) {
    others -= Volume(shard.sizes);
    if (others < 0) return true;
  }
  return false;
}

// What ranks pass alike: kinds of values decide on the collectives.
std::string DescribeKinds(absl::Span<const Value> inputs, const Value& bias) {
  std::string text;
  for (const Value& input : inputs) {
    absl::StrAppend(&text, "the input is a ", Name(input.kind()), "\n");
  }
  return absl::StrCat(text, "the bias is a ", Name(bias.kind()), "\n");
}

// What a rank can check alone.
absl::Status CheckCall(absl::Span<const Value> inputs, const Value& weight,
                       const Value& bias) {
  if (inputs.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("Expected one input, but found ", inputs.size()));
  }
  SHERD_ASSIGN_OR_RETURN(const Form x, FormOf(inputs[0], "the input"));
  SHERD_ASSIGN_OR_RETURN(const Form w, FormOf(weight, "the weight"));
  SHERD_RETURN_IF_ERROR(CheckMembers(x, w, bias));
  const auto* sharded = weight.get_if<ShardedTensor>();
  const auto* sharded_x = inputs[0].get_if<ShardedTensor>();
  const auto* sharded_bias = bias.get_if<ShardedTensor>();
  for (const ShardedTensor* other : {sharded_x, sharded_bias}) {
    if (other == nullptr) continue;
    if (sharded == nullptr || other->group() != sharded->group()) {
      return absl::FailedPreconditionError(
          "a sharded input or bias needs a weight that is sharded over the "
          "same group");
    }
  }
  if (sharded != nullptr && HasReplicas(*sharded)) {
    return absl::UnimplementedError("a weight with replicas is not supported");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<Linear>> Linear::Create(
    int64_t in_features, int64_t out_features, const LinearOptions& options) {
  SHERD_RETURN_IF_ERROR(ProductType(options.dtype).status());
  SHERD_ASSIGN_OR_RETURN(
      Tensor weight,
      Tensor::Empty({out_features, in_features}, {.dtype = options.dtype}));
  const double bound =
      in_features == 0 ? 0 : 1 / std::sqrt(static_cast<double>(in_features));
  SHERD_RETURN_IF_ERROR(FillUniform(weight, -bound, bound));
  if (!options.bias) return std::make_shared<Linear>(std::move(weight));
  SHERD_ASSIGN_OR_RETURN(
      Tensor bias, Tensor::Empty({out_features}, {.dtype = options.dtype}));
  SHERD_RETURN_IF_ERROR(FillUniform(bias, -bound, bound));
  return std::make_shared<Linear>(std::move(weight), std::move(bias));
}

absl::StatusOr<Value> Linear::Forward(absl::Span<const Value> inputs) {
  const absl::Status local = CheckCall(inputs, weight_, bias_);
  const auto* weight = weight_.get_if<ShardedTensor>();
  if (weight == nullptr || weight->group() == nullptr) {
    SHERD_RETURN_IF_ERROR(local);
    if (weight != nullptr) {
      return absl::FailedPreconditionError(
          "the sharded weight has no group to compute with");
    }
    const auto* bias = bias_.get_if<Tensor>();
    return Apply(*inputs[0].get_if<Tensor>(), *weight_.get_if<Tensor>(),
                 bias == nullptr ? Tensor() : *bias);
  }
  const std::string kinds = DescribeKinds(inputs, bias_);
  SHERD_RETURN_IF_ERROR(
      Agree(*weight->group(), kOperation, local,
            {Fingerprint().Add(kinds).value(), [&kinds] { return kinds; }}));
  return ShardedLinear(*weight, bias_).Run(inputs[0]);
}

void Linear::Visit(ModuleVisitor& v) {
  v.Parameter("weight", weight_);
  v.Parameter("bias", bias_);
}

}  // namespace sherd
