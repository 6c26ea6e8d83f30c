# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts/bench, and by itself once more in the VM. All of it runs on one Soft-RoCE device in a loop: over the
# link between two, busy polling on both sides makes latency the scheduler's tick.
# shellcheck disable=SC2034  # Read by scripts/bench.
BENCH_TITLE='RDMA in a VM with Soft-RoCE: latency, rate and CPU, beside perftest in the same boot'
# shellcheck disable=SC2034
BENCH_TARGETS=(sluice-bench sluiced sluicectl)

RDMA_PROGRAM=$SLUICE_BIN/bench/sluice-bench
RDMA_ADDRESS=10.88.0.1 RDMA_SERVICE=7100
RDMA_PERFTEST_LISTENS=':4853 00000000:0000 0A' # In /proc/net/tcp: port 18515, the state LISTEN.

# rdma_perftest WORKLOAD SYSTEM PROGRAM ARGUMENT...: one row of it.
rdma_perftest() {
  local workload=$1 system=$2 program=$3 log deadline=$((SECONDS + 20))
  shift 3
  log=$(mktemp)
  timeout 120 "$program" -d rxe0 -x 1 -F "$@" >"$log.server" 2>&1 &
  until [[ $(</proc/net/tcp) == *$RDMA_PERFTEST_LISTENS* ]]; do
    ((SECONDS < deadline)) || die "$program does not listen: $(cat "$log.server")"
    sleep 0.05
  done
  timeout 120 "$program" -d rxe0 -x 1 -F "$@" $RDMA_ADDRESS >"$log" 2>&1 || die "$program: $(cat "$log")"
  wait $! || die "$program as server: $(cat "$log.server")"
  # "#bytes #iterations t_min t_max t_typical t_avg ..." or "#bytes #iterations peak average[MB/sec] ...".
  grep -A1 '^ *#bytes' "$log" | tail -n 1 | awk -v workload="$workload" -v name="$system" -v kind="${program##*_}" '
    kind == "lat" { printf "{\"workload\": \"%s\", \"system\": \"%s\", \"p50_us\": %s, \"mean_us\": %s}\n", workload, name, $5, $6 }
    kind == "bw" { printf "{\"workload\": \"%s\", \"system\": \"%s\", \"mb_per_s\": %.3f}\n", workload, name, $4 * 1.048576 }'
}

rdma_daemon_ticks() { cat "/proc/${DAEMON_PID[left]}/stat" "/proc/${DAEMON_PID[right]}/stat" | awk '{ sum += $14 + $15 } END { print sum }'; }

rdma_request() {
  "$RDMA_PROGRAM" request --socket "${DAEMON_SOCKET[left]}" --address "$RDMA_ADDRESS:4501:$RDMA_SERVICE" --warm-up 1 "$@"
}

# rdma_sluice ROW SYSTEM ARGUMENT...: one row, from an application over both daemons to an application and back.
rdma_sluice() {
  local name=$1 system=$2 ticks row
  shift 2
  ticks=$(rdma_daemon_ticks)
  row=$(rdma_request "$@") || return
  printf '{"workload": "%s", "system": "%s", "request": %s, "daemon_cpu_ticks": %d}\n' "$name" "$system" "$row" \
    $(($(rdma_daemon_ticks) - ticks))
}

# rdma_beside ROW SYSTEM SECONDS FRAGMENT_BYTES: small messages while a stream of large ones goes on.
rdma_beside() {
  local name=$1 system=$2 seconds=$3 stream
  "$SLUICE_BIN/daemon/ctl/sluicectl" --socket "${DAEMON_ADMIN[left]}" set engine.fragment_bytes "$4" >/dev/null
  # Not by way of a function: what is killed must be the program, not a shell around it.
  "$RDMA_PROGRAM" request --socket "${DAEMON_SOCKET[left]}" --address "$RDMA_ADDRESS:4501:$RDMA_SERVICE" \
    --workload stream_1MB --seconds 120 >/dev/null &
  stream=$!
  sleep 1
  rdma_sluice "$name" "$system" --workload echo_32B --seconds "$seconds" || return
  kill -0 $stream || die "the stream beside $name ended too early"
  kill -KILL $stream
  wait $stream 2>/dev/null || true
}

# rdma_daemons rdma.mode: two of them on one address and device, and a server.
rdma_daemons() {
  local server
  start_daemon left "peer.listen = [\"$RDMA_ADDRESS:4500\", \"127.0.0.1:4500\"]" 'http.listen = ""' 'rdma.device = "rxe0"' "rdma.mode = \"$1\""
  start_daemon right "peer.listen = [\"$RDMA_ADDRESS:4501\"]" 'http.listen = ""' 'rdma.device = "rxe0"' "rdma.mode = \"$1\""
  server=$(mktemp)
  "$RDMA_PROGRAM" serve --socket "${DAEMON_SOCKET[right]}" --address "$RDMA_ADDRESS:$RDMA_SERVICE" >"$server" 2>&1 &
  RDMA_SERVER=$!
  until grep -q ready "$server"; do
    kill -0 $RDMA_SERVER || die "the server ended: $(cat "$server")"
    sleep 0.05
  done
}

# rdma_in_vm ROWS SECONDS ROUNDS
rdma_in_vm() {
  local rows=$1 seconds=$2 rounds=$3 round mode workload sockets system=''
  ip netns attach left $$ && ip netns attach right $$
  for ((round = 1; round <= rounds; ++round)); do
    say "Round $round of $rounds"
    rdma_perftest echo_32B perftest ib_send_lat -s 32 -n 500 >>"$rows"
    rdma_perftest echo_32B perftest_events ib_send_lat -s 32 -n 500 -e >>"$rows"
    rdma_perftest stream_4KB perftest ib_write_bw -s 4096 -n 2000 >>"$rows"
    rdma_perftest stream_64KB perftest ib_write_bw -s 65536 -n 400 >>"$rows"
    rdma_perftest stream_1MB perftest ib_write_bw -s 1048576 -n 40 >>"$rows"
    for mode in auto off; do
      system=sluice
      [[ $mode == auto ]] || system=sluice_tcp
      rdma_daemons "$mode"
      for workload in echo_32B stream_4KB stream_64KB stream_1MB; do
        rdma_sluice "$workload" "$system" --workload "$workload" --seconds "$seconds" >>"$rows" || die "$workload over $system failed"
        [[ $mode == off || $workload != echo_32B ]] || need_rdma left
      done
      "$RDMA_PROGRAM" shm messages --socket "${DAEMON_SOCKET[left]}" --bytes 8 --seconds 0.3 >>"$rows" ||
        die "measuring the ring's round trip failed"
      if [[ $mode == auto ]]; then
        for sockets in 1 64 1024; do
          rdma_sluice "rate_32B_$sockets" "$system" --workload rate_32B --sockets "$sockets" --seconds "$seconds" >>"$rows" ||
            die "the message rate with $sockets sockets failed"
        done
        rdma_beside echo_beside_1MB "$system" "$seconds" 65536 >>"$rows" || die "small beside large messages failed"
        rdma_beside echo_beside_1MB_whole "$system" "$seconds" 67108864 >>"$rows" || die "small beside large messages failed"
        need_rdma left
      fi
      kill -TERM $RDMA_SERVER && wait $RDMA_SERVER
      stop_daemon left
      stop_daemon right
    done
  done
}

bench_run() {
  local json=$1 quick=$2 folder seconds=3 rounds=3
  [[ $quick == no ]] || seconds=1 rounds=1
  new_folder
  folder=$REPLY
  in_vm "$folder" 1500 bash -euo pipefail -c "source scripts/lib.sh; source bench/rdma.sh; \
    rdma_in_vm '$folder/rows' $seconds $rounds; \
    python3 -B bench/rdma_table.py --rows '$folder/rows' --json '$folder/json'" || die "the benchmark failed in the VM"
  [[ -z $json ]] || cp "$folder/json" "$json"
}
