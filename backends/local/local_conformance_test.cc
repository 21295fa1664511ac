#include "sherd/testing/conformance.h"

SHERD_CONFORMANCE_SUITE(Local, .ranks_are_threads = true);
