#ifndef SHERD_CORE_BASE_VERSION_H_
#define SHERD_CORE_BASE_VERSION_H_

namespace sherd {

// "0.1.0": the contents of the file VERSION. README.md describes what it
// guarantees.
extern const char kVersion[];

}  // namespace sherd

#endif  // SHERD_CORE_BASE_VERSION_H_
