#!/bin/bash
# failing_test_report.sh TEST PLUGIN: TEST fails on rank 2 of 4, and reports it.
set -euo pipefail
output="$TEST_TMPDIR/output"
# Files of external repositories are beside the runfiles of this one.
plugin="${2/#external\//../}"
# Bazel's own report of this test is not meant for the program in it.
unset TEST_PREMATURE_EXIT_FILE TEST_UNDECLARED_OUTPUTS_DIR XML_OUTPUT_FILE
status=0
SHERD_PLUGIN_PATH="$(dirname "$plugin")" "$1" > "$output" 2>&1 || status=$?
cat "$output"
fail() { echo "FAILED: $*"; exit 1; }
[[ "$status" == 1 ]] || fail "the test ended with $status, expected 1"
expect() { grep -q -e "$1" "$output" || fail "no line matches: $1"; }
expect '^\[  FAILED  \] SumTest.IsThatOfAllRanks'
expect '^root cause: rank 2 failed at .*failing_test.cc:[0-9]*: Expected equality'
expect '^\[rank 2\] Expected equality of these values:'
for rank in 0 1 3; do
  if grep -q "^\[rank $rank\] Expected" "$output"; then fail "rank $rank is reported as failed"; fi
done
