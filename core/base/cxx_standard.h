#ifndef SHERD_CORE_BASE_CXX_STANDARD_H_
#define SHERD_CORE_BASE_CXX_STANDARD_H_

// Before all else in headers that others include first: what a compiler says of
// them under an older standard does not lead anybody to the cause.
#if __cplusplus < 202002L
#error \
    "Sherd is C++20. Put into .bazelrc: \
build --cxxopt=-std=c++20 --host_cxxopt=-std=c++20"
#endif

#endif  // SHERD_CORE_BASE_CXX_STANDARD_H_
