#!/bin/bash
# Ranks started by torchrun:      tools/launch/torchrun.sh N PROGRAM ARGS…
#
# torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
# MASTER_PORT, which Init({}) reads. Where it sets
# TORCHELASTIC_USE_AGENT_STORE=True it listens on MASTER_PORT itself, and ranks
# meet on the next port. On several hosts, the same on each:
#
#   HOSTS=2 ENDPOINT=node01:29400 tools/launch/torchrun.sh 4 PROGRAM ARGS…
set -euo pipefail
ranks_per_host="$1"
shift
if [[ -n "${ENDPOINT:-}" ]]; then
  where=(--nnodes "${HOSTS:-1}" --rdzv-backend c10d
    --rdzv-endpoint "$ENDPOINT" --rdzv-id "${JOB_NAME:-sherd}")
else
  where=(--standalone)
fi
exec torchrun "${where[@]}" --nproc-per-node "$ranks_per_host" \
  --no-python "$@"
