#include "sherd/testing/conformance.h"

SHERD_CONFORMANCE_SUITE(Sockets);
