#include "sherd/testing/conformance.h"

SHERD_CONFORMANCE_SUITE(Nccl, .small_floats_rounded_once = false,
                        .on_devices = true);
