#include "sherd/testing/conformance.h"

SHERD_CONFORMANCE_SUITE(Tiny, .ranks_are_threads = true);
