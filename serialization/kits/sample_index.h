#ifndef SHERD_SERIALIZATION_KITS_SAMPLE_INDEX_H_
#define SHERD_SERIALIZATION_KITS_SAMPLE_INDEX_H_

#include "sherd/serialization/store/index_table.h"

namespace sherd {

// The index of a directory with a checkpoint, a step and a lease, the same in
// every build; for golden files.
inline IndexTable SampleIndex() {
  return {.number = 5,
          .nonces = {0x0123456789abcdef, 2, 0xffffffffffffffff, 0,
                     0xfedcba9876543210},
          .names = {{"lease.sherd",
                     "lease.sherd.18c251e97a0589a9.tmp-00000000000004d2"},
                    {"manifest.sherd",
                     "manifest.sherd.18c251e97a0589a8.tmp-a1b2c3d4e5f60718"},
                    {"step-00000000000000000007.sherd",
                     "manifest.sherd.18c251e97a0589a7.tmp-1112131415161718"}},
          .removed = {"manifest.sherd.18c251e97a0589a6.tmp-2122232425262728"}};
}

}  // namespace sherd

#endif  // SHERD_SERIALIZATION_KITS_SAMPLE_INDEX_H_
