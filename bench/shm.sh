# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts/bench. One host: an application to its daemon and back, beside what two threads of this machine and
# UCX's shared memory can do.
# shellcheck disable=SC2034  # Read by scripts/bench.
BENCH_TITLE='Shared memory on one host: latency and rate, beside the physical limits and UCX'
# shellcheck disable=SC2034
BENCH_PACKAGES=(ucx-utils)
# shellcheck disable=SC2034
BENCH_TARGETS=(sluice-bench sluiced sluicectl)

SHM_PROGRAM=$SLUICE_BIN/bench/sluice-bench
SHM_UCX_PORT=13337

shm_idle() {
  "$SLUICE_BIN/daemon/ctl/sluicectl" --socket "${DAEMON_ADMIN[shm]}" set daemon.idle "$1" >/dev/null
}

# shm_sluice SECONDS ROWS [OPTION...]: each length, one message at a time and as many as go.
shm_sluice() {
  local seconds=$1 rows=$2 bytes
  shift 2
  for bytes in 8 4096 51200; do
    in_host shm "$SHM_PROGRAM" shm messages --socket "${DAEMON_SOCKET[shm]}" --cpu "$SHM_CPU" --bytes "$bytes" \
      --seconds "$seconds" "$@" >>"$rows" || return
    in_host shm "$SHM_PROGRAM" shm messages --socket "${DAEMON_SOCKET[shm]}" --cpu "$SHM_CPU" --bytes "$bytes" \
      --seconds "$seconds" --rate "$@" >>"$rows" || return
  done
}

# shm_ucx SECONDS ROWS
shm_ucx() {
  local seconds=$1 rows=$2 common
  command -v ucx_perftest >/dev/null || { warn "UCX is not measured: ucx_perftest is not installed" && return; }
  common=(--transports 'posix,self' --server-cpu "$SHM_DAEMON_CPU" --client-cpu "$SHM_CPU" --seconds "$seconds")
  # In the host's namespace its ports are its own; one that a run has just used stays taken for a while.
  SHM_UCX_PORT=$((SHM_UCX_PORT + 2))
  in_host shm python3 "$SLUICE_ROOT/bench/ucx.py" --workload round_trip_8B --test tag_lat --size 8 \
    --port "$SHM_UCX_PORT" "${common[@]}" >>"$rows" || return
  in_host shm python3 "$SLUICE_ROOT/bench/ucx.py" --workload rate_8B --test tag_bw --size 64 \
    --port $((SHM_UCX_PORT + 1)) "${common[@]}" >>"$rows"
}

bench_run() {
  local json=$1 quick=$2 folder seconds=1 rounds=5 round cpus
  [[ $quick == no ]] || seconds=0.3 rounds=3
  mapfile -t cpus < <(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)), sep="\n")')
  ((${#cpus[@]} >= 2)) || die "this benchmark needs two CPUs: one for the daemon, one for the application"
  SHM_DAEMON_CPU=${cpus[0]} SHM_CPU=${cpus[1]}
  new_folder
  folder=$REPLY
  make_host shm
  start_daemon shm "daemon.io_cpus = [$SHM_DAEMON_CPU]" 'daemon.idle = "event"'
  for ((round = 1; round <= rounds; ++round)); do
    say "Round $round of $rounds"
    # A daemon that spins would take a CPU from all the others.
    shm_idle spin
    shm_sluice "$seconds" "$folder/rows" --spin || die "measuring Sluice, spinning, failed"
    shm_idle event
    shm_sluice "$seconds" "$folder/rows" || die "measuring Sluice, event-driven, failed"
    "$SHM_PROGRAM" shm limits --cpu "$SHM_CPU" --other-cpu "$SHM_DAEMON_CPU" --seconds "$seconds" >>"$folder/rows" ||
      die "measuring the limits failed"
    shm_ucx "$seconds" "$folder/rows" || die "measuring UCX failed"
  done
  python3 "$SLUICE_ROOT/bench/shm_table.py" --rows "$folder/rows" ${json:+--json "$json"}
}
