#!/bin/bash
# Fetches the distribution's own Abseil source and prints the options that
# --config=tsan needs.
#
# The installed libabsl_synchronization.so is not instrumented, so that
# ThreadSanitizer cannot see absl::Mutex and reports a race for everything that
# it guards. Debian's source package carries upstream's BUILD files:
#   tools/bazel test --config=tsan $(tools/build/tsan_sources.sh) //...
# Needs dpkg-dev. Changes nothing in /etc/apt.
set -euo pipefail
supp="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/tsan.supp"
dir="${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/sherd-sources"
mkdir -p "$dir/lists/partial"
if ! compgen -G "$dir/abseil-*/WORKSPACE" > /dev/null; then
  # The mirrors and suites that this machine uses already, as deb-src.
  # shellcheck disable=SC2016  # apt expands these.
  apt-get indextargets --format 'deb-src $(REPO_URI) $(RELEASE) main' \
    'Created-By: Packages' | sort -u > "$dir/src.list"
  opts=(
    -o "Dir::Etc::sourcelist=$dir/src.list"
    -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$dir/lists"
    -o APT::Get::List-Cleanup=0
    -o APT::Sandbox::User=root
  )
  apt-get update "${opts[@]}" >&2
  (cd "$dir" && apt-get source "${opts[@]}" abseil >&2)
fi
echo "--override_repository=com_google_absl=$(dirname "$(compgen -G "$dir/abseil-*/WORKSPACE")")"
# Tests see the suppressions in their sandboxes.
echo "--sandbox_add_mount_pair=$supp"
echo "--test_env=TSAN_OPTIONS=report_thread_leaks=0:suppressions=$supp"
