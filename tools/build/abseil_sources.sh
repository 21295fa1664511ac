#!/bin/bash
# Fetches the distribution's own Abseil source, which carries upstream's BUILD
# files, and prints the folder it lies in. Needs dpkg-dev. Changes nothing in
# /etc/apt.
set -euo pipefail
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
dirname "$(compgen -G "$dir/abseil-*/WORKSPACE")"
