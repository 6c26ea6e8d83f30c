# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts/bench. What a daemon costs that has clients and sockets but nothing to do.
# shellcheck disable=SC2034  # Read by scripts/bench.
BENCH_TITLE='A daemon without work: CPU with 100 clients, memory of 10,000 sockets, connect rate'
# shellcheck disable=SC2034
BENCH_TARGETS=(sluice-bench sluiced sluicectl)

bench_run() {
  local json=$1 quick=$2 folder seconds=10 rounds=3 round
  [[ $quick == no ]] || seconds=5 rounds=1
  new_folder
  folder=$REPLY
  make_two_hosts left right
  for ((round = 1; round <= rounds; ++round)); do
    say "Round $round of $rounds"
    # Fresh ones: a daemon that had sockets before has memory left for the next.
    start_daemon left
    start_daemon right
    python3 "$SLUICE_ROOT/bench/idle.py" --program "$SLUICE_BIN/bench/sluice-bench" --seconds "$seconds" \
      --left-socket "${DAEMON_SOCKET[left]}" --left-pid "${DAEMON_PID[left]}" --right-socket "${DAEMON_SOCKET[right]}" \
      --right-pid "${DAEMON_PID[right]}" --address "$HOST_B_ADDRESS:7100" >>"$folder/rows" || die "the round failed"
    stop_daemon left
    stop_daemon right
  done
  python3 "$SLUICE_ROOT/bench/idle_table.py" --rows "$folder/rows" ${json:+--json "$json"}
}
