#!/bin/bash
# Eight ranks on two nodes:      sbatch tools/launch/slurm.sh PROGRAM ARGS…
#
# srun sets SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID and
# SLURM_STEP_NODELIST, which Init({}) reads. Rank 0 listens on the first node,
# on a port that SLURM_JOB_ID and SLURM_STEP_ID choose; export MASTER_PORT to
# choose it yourself.
#SBATCH --job-name=sherd
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=00:30:00
set -euo pipefail

# One secret for all ranks, in a folder that all nodes share.
export SHERD_SECRET_FILE="$SLURM_SUBMIT_DIR/.sherd-secret-$SLURM_JOB_ID"
trap 'rm -f "$SHERD_SECRET_FILE"' EXIT
(umask 077 && head -c 32 /dev/urandom | base64 > "$SHERD_SECRET_FILE")

# If the nodes' default route is not the fast network:
# export SHERD_SOCKET_IFNAME=ib

srun "$@"
