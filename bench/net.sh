# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by scripts/bench. Two hosts joined by a veth pair; each workload over Sluice and over what one would use instead.
# shellcheck disable=SC2034  # Read by scripts/bench.
BENCH_TITLE='Messages between two hosts: rate, latency, CPU, memory; beside TCP, ZeroMQ, gRPC, UCX'
# shellcheck disable=SC2034
BENCH_PACKAGES=(libzmq3-dev libgrpc++-dev ucx-utils)
# shellcheck disable=SC2034
BENCH_TARGETS=(sluice-bench sluiced sluicectl)

NET_WORKLOADS=(echo_32B fetch_64B_20KB stream_1MB)
NET_SERVICE=7100 NET_PORT=7101 NET_UCX_PORT=13337
NET_PROGRAM=$SLUICE_BIN/bench/sluice-bench
declare -A NET_ADDRESS=() NET_SERVER=()

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
net_forget_peak() {
  local pid
  for pid in "$@"; do echo 5 >"/proc/$pid/clear_refs"; done
}

net_start_servers() {
  local folder=$1 system port=$NET_PORT deadline=$((SECONDS + 20))
  mapfile -t NET_SYSTEMS < <("$NET_PROGRAM" systems)
  for system in "${NET_SYSTEMS[@]}"; do
    if [[ $system == sluice ]]; then
      NET_ADDRESS[$system]=$HOST_B_ADDRESS:$NET_SERVICE
    else
      NET_ADDRESS[$system]=$HOST_B_ADDRESS:$((port++))
    fi
    SLUICE_SOCKET=${DAEMON_SOCKET[right]} ip netns exec right "$NET_PROGRAM" serve --system "$system" \
      --address "${NET_ADDRESS[$system]}" >"$folder/$system.log" 2>&1 </dev/null &
    NET_SERVER[$system]=$!
  done
  for system in "${NET_SYSTEMS[@]}"; do
    until grep -q ready "$folder/$system.log"; do
      kill -0 "${NET_SERVER[$system]}" 2>/dev/null || die "the $system server ended: $(tail -n 2 "$folder/$system.log")"
      ((SECONDS < deadline)) || die "the $system server is not ready: $(tail -n 2 "$folder/$system.log")"
      sleep 0.05
    done
  done
  if command -v ucx_perftest >/dev/null; then
    NET_SYSTEMS+=(ucx)
  else
    warn "UCX is not measured: ucx_perftest is not installed"
  fi
}

# net_one SYSTEM WORKLOAD SECONDS WARM_UP: one JSON line with the client's figures and the CPU and memory of all others.
net_one() {
  local system=$1 workload=$2 seconds=$3 warm_up=$4 row before others=("${NET_SERVER[$1]}")
  [[ $system != sluice ]] || others+=("${DAEMON_PID[left]}" "${DAEMON_PID[right]}")
  net_forget_peak "${others[@]}"
  before=$(net_ticks "${others[@]}")
  row=$(SLUICE_SOCKET=${DAEMON_SOCKET[left]} ip netns exec left "$NET_PROGRAM" request --system "$system" \
    --address "${NET_ADDRESS[$system]}" --workload "$workload" --seconds "$seconds" --warm-up "$warm_up") || return
  printf '{"row": %s, "other_cpu_ticks": %d, "other_peak_rss_mb": %s}\n' "$row" \
    $(($(net_ticks "${others[@]}") - before)) "$(net_peak_mb "${others[@]}")"
}

# net_ucx WORKLOAD SECONDS: the same for what comes nearest to the workload among ucx_perftest's tests.
net_ucx() {
  local workload=$1 seconds=$2 test row
  case $workload in
    echo_32B) test=(tag_lat --size 32) ;;
    fetch_64B_20KB) test=(tag_bw --size 20480 --outstanding 16) ;;
    stream_1MB) test=(tag_bw --size 1048576 --outstanding 8) ;;
    *) return 1 ;;
  esac
  # A port that a run has just used stays taken for a while.
  NET_UCX_PORT=$((NET_UCX_PORT + 4))
  row=$(python3 "$SLUICE_ROOT/bench/ucx.py" --workload "$workload" --test "${test[@]}" --transports tcp,self \
    --address "$HOST_B_ADDRESS" --port "$NET_UCX_PORT" --server-prefix 'ip netns exec right' \
    --client-prefix 'ip netns exec left' --seconds "$seconds") || return
  printf '{"row": %s}\n' "$row"
}

bench_run() {
  local json=$1 quick=$2 folder seconds=3 warm_up=0.5 rounds=5 round workload system
  [[ $quick == no ]] || seconds=0.5 warm_up=0.2 rounds=2
  new_folder
  folder=$REPLY
  make_two_hosts left right
  start_daemon left
  start_daemon right
  net_start_servers "$folder"
  for ((round = 1; round <= rounds; ++round)); do
    say "Round $round of $rounds: ${NET_WORKLOADS[*]} over ${NET_SYSTEMS[*]}"
    for workload in "${NET_WORKLOADS[@]}"; do
      for system in "${NET_SYSTEMS[@]}"; do
        if [[ $system == ucx ]]; then
          net_ucx "$workload" "$seconds" >>"$folder/rows" || die "$workload over UCX failed"
        else
          net_one "$system" "$workload" "$seconds" "$warm_up" >>"$folder/rows" || die "$workload over $system failed"
        fi
      done
    done
  done
  python3 "$SLUICE_ROOT/bench/net_table.py" --rows "$folder/rows" ${json:+--json "$json"}
}
