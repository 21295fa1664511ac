// The suite as the author of a backend would build it; conformance_test runs it
// on good and bad plugins.

#include "sherd/testing/conformance.h"

SHERD_CONFORMANCE_SUITE(Planted, .ranks_are_threads = true);
