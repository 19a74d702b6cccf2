#!/bin/bash
# One study on nodes of a Slurm cluster: `sbatch deploy/slurm.sh STUDY.yaml storage.path=... --tracking-uri ...` in the
# directory of .venv, on a file system that all nodes see. What follows slurm.sh are the arguments of `nlgraft run`.
# Submitted again or requeued, the study resumes.
#SBATCH --job-name=nlgraft
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=1
#SBATCH --time=2-00:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Two minutes before its time is over, Slurm tells this script alone, which ends the study in order and requeues the
# job. Where slurm.conf has PreemptParameters=send_user_signal, it does so when it preempts the job, too; elsewhere it
# sends SIGTERM to Ray as well: all end at once, and trials resume from their last checkpoints all the same.
#SBATCH --signal=B:USR1@120
set -euo pipefail
: "${SLURM_JOB_ID:?is not set: submit this file by sbatch}"

end_in_order() {
  trap '' USR1
  if [ -n "${study-}" ]; then
    # In a step beside the study's, on the node of the driver, which hears of the file.
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" touch "$RAY_TMPDIR/end" || true
    ! wait "$study" || exit 0 # the study was just over
  fi
  scontrol requeue "$SLURM_JOB_ID"
  exit 1
}
trap end_in_order USR1

# Other jobs may share these nodes, the user's own among them. Ports and files are this job's alone, and a token
# keeps others out. Ports lie below those that Linux hands out by itself; jobs whose numbers differ by less than
# 10,000 have different ones.
port=$((12000 + 2 * (SLURM_JOB_ID % 10000)))
export NLGRAFT_CLIENT_PORT=$((port + 1))
export RAY_TMPDIR="/tmp/nlgraft-$SLURM_JOB_ID" # short: paths of Ray's sockets have at most 107 characters
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300 RAY_USAGE_STATS_ENABLED=0 MLFLOW_DISABLE_TELEMETRY=true
export PATH="$PWD/.venv/bin:$PATH"

# By address and not by name, which the head itself may resolve to 127.0.1.1.
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes%%$'\n'*}
addresses=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname -I)
export RAY_ADDRESS="${addresses%% *}:$port"

# What each node runs. `ray symmetric-run` refuses to start where it sees another Ray, and ends with `ray stop`,
# which ends every Ray that it sees: so it sees the processes of this job alone, in a namespace of their own.
node() {
  trap 'rm -rf "$RAY_TMPDIR"' EXIT
  rm -rf "$RAY_TMPDIR" # of this job before it was requeued
  mkdir -m 700 "$RAY_TMPDIR"
  local status=0 isolated=(unshare --user --map-root-user --pid --fork --kill-child --mount-proc)
  "${isolated[@]}" true || {
    echo "$(hostname): no user namespaces (unshare --user --pid), so jobs that share a node would end each" \
      "other's Ray. Submit with --exclusive from deploy/slurm.sh without \`isolated\`, or ask for them" >&2
    return 1
  }
  # Ports that nobody needs to know are chosen free by Ray. Artifacts pass through the store, so that Ray's own
  # needs little memory; by default it would take a third of the node's, whoever else is there.
  local options=(
    --num-cpus="${SLURM_CPUS_PER_TASK:-1}" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" --object-store-memory=1000000000
    --ray-client-server-port="$NLGRAFT_CLIENT_PORT" --object-manager-port=0 --node-manager-port=0
    --dashboard-agent-listen-port=0 --dashboard-agent-grpc-port=0 --runtime-env-agent-port=0
    --metrics-export-port=0 --min-worker-port=0 --max-worker-port=0
  )
  [ "$SLURM_NODEID" != 0 ] || options+=(--include-dashboard=false) # a worker node refuses the option
  # The driver ends in order by SIGTERM. The lock of one that was killed expires after a minute, for which it waits.
  # As long as --time, because the option also bounds the wait for stages that other jobs on the store compute.
  # shellcheck disable=SC2016 # what is quoted is expanded by the inner shells
  local driver='touch "$RAY_TMPDIR/has-started"
    until [ -e "$RAY_TMPDIR/end" ]; do sleep 1; done && kill -TERM $$ &
    exec python -m nlgraft run --wait-timeout 48h "$@"'
  # A shell above it, because the first process of a namespace has to take leave of Ray's, which `ray stop` awaits.
  # shellcheck disable=SC2016 # what is quoted is expanded by the inner shells
  "${isolated[@]}" bash -c '"$@" || exit $?' init \
    ray symmetric-run --address "$RAY_ADDRESS" --min-nodes "$SLURM_JOB_NUM_NODES" "${options[@]}" -- \
    bash -c "$driver" nlgraft "$@" || status=$?
  # Ray's own failures to start end with status 0.
  if [ "$SLURM_NODEID" = 0 ] && [ ! -e "$RAY_TMPDIR/has-started" ]; then
    echo "$(hostname): Ray did not start, see above; is port ${RAY_ADDRESS##*:} taken?" >&2
    return 1
  fi
  return "$status"
}

srun --kill-on-bad-exit=1 bash -euc "$(declare -f node); node \"\$@\"" node "$@" &
study=$!
wait "$study"
