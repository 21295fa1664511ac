#!/bin/bash
# Ranks started by Open MPI's mpirun:      tools/launch/mpirun.sh N PROGRAM ARGS…
#
# mpirun sets OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK and _LOCAL_SIZE, which
# Init({}) reads. On one host nothing else is needed: ranks meet in a file below
# TMPDIR. With the backend "mpi" they meet through MPI itself, also across
# hosts. Other backends across hosts need the address of rank 0:
#
#   MASTER_ADDR=node01 MASTER_PORT=29500 HOSTS=node01:4,node02:4 \
#       tools/launch/mpirun.sh 8 PROGRAM ARGS…
set -euo pipefail
ranks="$1"
shift
arguments=(-n "$ranks")
if [[ -n "${HOSTS:-}" ]]; then arguments+=(--host "$HOSTS"); fi
for variable in MASTER_ADDR MASTER_PORT SHERD_BACKEND SHERD_SECRET_FILE \
  SHERD_SOCKET_IFNAME; do
  if [[ -n "${!variable:-}" ]]; then arguments+=(-x "$variable"); fi
done
exec mpirun "${arguments[@]}" "$@"
