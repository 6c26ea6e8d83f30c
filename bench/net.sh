# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts/bench. Two hosts joined by a veth pair; each workload over Sluice and over what one would use instead.
# shellcheck disable=SC2034  # Read by scripts/bench.
BENCH_TITLE='Messages between two hosts: rate, latency, CPU and memory, beside plain TCP'
# shellcheck disable=SC2034
BENCH_PACKAGES=()

NET_WORKLOADS=(echo_32B fetch_64B_20KB stream_1MB)
NET_SYSTEMS=(sluice tcp)
NET_SERVICE=7100 NET_PORT=7101

# CPU time of processes, in clock ticks, and the sum of their peak memory in MB. One that has gone counts as 0.
net_ticks() {
  local pid sum=0
  for pid in "$@"; do sum=$((sum + $(awk '{ print $14 + $15 }' "/proc/$pid/stat" 2>/dev/null || echo 0))); done
  echo "$sum"
}
net_peak_mb() {
  local pid
  for pid in "$@"; do grep VmHWM "/proc/$pid/status" 2>/dev/null; done | awk '{ sum += $2 } END { printf "%.1f", sum / 1024 }'
}

net_start_servers() {
  local folder=$1 log deadline=$((SECONDS + 20))
  SLUICE_SOCKET=${DAEMON_SOCKET[right]} ip netns exec right "$SLUICE_BIN/bench/net/sluice-bench" sluice-server \
    --listen $NET_SERVICE >"$folder/sluice-server.log" 2>&1 </dev/null &
  NET_SLUICE_SERVER=$!
  ip netns exec right "$SLUICE_BIN/bench/net/sluice-bench" tcp-server --address "$HOST_B_ADDRESS" --listen $NET_PORT \
    >"$folder/tcp-server.log" 2>&1 </dev/null &
  NET_TCP_SERVER=$!
  for log in "$folder"/{sluice,tcp}-server.log; do
    until grep -q ready "$log" 2>/dev/null; do
      ((SECONDS < deadline)) || die "a server is not ready: $(tail -n 2 "$log")"
      sleep 0.05
    done
  done
}

# net_one SYSTEM WORKLOAD SECONDS: one JSON line with the client's figures and the CPU and memory of all processes.
net_one() {
  local system=$1 workload=$2 seconds=$3 row before others
  local command=("$SLUICE_BIN/bench/net/sluice-bench")
  case $system in
    sluice)
      others=("$NET_SLUICE_SERVER" "${DAEMON_PID[left]}" "${DAEMON_PID[right]}")
      command+=(sluice-client --server "$HOST_B_ADDRESS:$NET_SERVICE")
      ;;
    tcp)
      others=("$NET_TCP_SERVER")
      command+=(tcp-client --address "$HOST_B_ADDRESS" --port "$NET_PORT")
      ;;
  esac
  before=$(net_ticks "${others[@]}")
  row=$(SLUICE_SOCKET=${DAEMON_SOCKET[left]} ip netns exec left "${command[@]}" --workload "$workload" \
    --seconds "$seconds") || return
  printf '{"row": %s, "other_cpu_ticks": %d, "other_peak_rss_mb": %s}\n' "$row" \
    $(($(net_ticks "${others[@]}") - before)) "$(net_peak_mb "${others[@]}")"
}

bench_run() {
  local json=$1 quick=$2 folder seconds=5 rounds=5 round workload system
  [[ $quick == no ]] || seconds=1 rounds=3
  new_folder
  folder=$REPLY
  make_two_hosts left right
  start_daemon left
  start_daemon right
  net_start_servers "$folder"
  for ((round = 1; round <= rounds; ++round)); do
    for workload in "${NET_WORKLOADS[@]}"; do
      for system in "${NET_SYSTEMS[@]}"; do
        say "Round $round of $rounds: $workload over $system"
        net_one "$system" "$workload" "$seconds" >>"$folder/rows" || die "$workload over $system failed"
      done
    done
  done
  python3 "$SLUICE_ROOT/bench/net_table.py" --rows "$folder/rows" ${json:+--json "$json"}
}
