#include "sherd/testing/conformance.h"

SHERD_CONFORMANCE_SUITE(Mpi, .dies_together = true);
