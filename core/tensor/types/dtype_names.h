#ifndef SHERD_CORE_TENSOR_TYPES_DTYPE_NAMES_H_
#define SHERD_CORE_TENSOR_TYPES_DTYPE_NAMES_H_

// Of the standard library alone, for plugins.

namespace sherd::internal {

// The names that NumPy, ml_dtypes and PyTorch use, in the order of DType's
// numbers.
inline constexpr const char* kDTypeNames[] = {
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "complex32",
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_TENSOR_TYPES_DTYPE_NAMES_H_
