#ifndef SHERD_CORE_BASE_CXX_STANDARD_H_
#define SHERD_CORE_BASE_CXX_STANDARD_H_

// Include this first in public headers: the compiler's errors under an older
// standard do not show the cause.
#if __cplusplus < 202002L
#error \
    "Sherd is C++20. Put into .bazelrc: \
build --cxxopt=-std=c++20 --host_cxxopt=-std=c++20"
#endif

#endif  // SHERD_CORE_BASE_CXX_STANDARD_H_
