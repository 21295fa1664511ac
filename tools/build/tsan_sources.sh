#!/bin/bash
# Fetches Abseil's source and prints the options that --config=tsan needs.
#
# The installed libabsl_synchronization.so is not instrumented, so that
# ThreadSanitizer cannot see absl::Mutex and reports a race for everything that
# it guards:
#   tools/bazel test --config=tsan $(tools/build/tsan_sources.sh) //...
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
supp="$here/tsan.supp"
abseil="$("$here/abseil_sources.sh")"
echo "--override_repository=com_google_absl=$abseil"
# Tests see the suppressions in their sandboxes.
echo "--sandbox_add_mount_pair=$supp"
echo "--test_env=TSAN_OPTIONS=report_thread_leaks=0:suppressions=$supp"
