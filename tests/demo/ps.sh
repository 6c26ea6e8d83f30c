# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by scripts/demo. Two hosts with a sluiced each: parameter servers on one, workers on the other.
# shellcheck disable=SC2034  # Read by scripts/demo.
DEMO_TITLE='A parameter server under load, then under load with its daemons killed'

# What two processors bear: two server processes with two shards each, two worker processes.
PS_SHARDS=4 PS_SERVERS=2 PS_WORKERS=2 PS_ROWS=100000 PS_DIM=32
PS_OUTSTANDING=${PS_OUTSTANDING:-8}
PS_SERVICE=7000

# CPU seconds that a process has used, in hundredths.
ps_cpu_ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat" 2>/dev/null || echo 0; }

# Waits until a server says that it is ready.
ps_wait_ready() {
  local pid=$1 log=$2 deadline=$((SECONDS + 20))
  until grep -q ' ready' "$log"; do
    kill -0 "$pid" 2>/dev/null || die "a server ended at once: $(tail -n 2 "$log")"
    ((SECONDS < deadline)) || die "a server is not ready after 20 s; its log: $log"
    sleep 0.05
  done
}

ps_start_servers() {
  local folder=$1 i shards=$((PS_SHARDS / PS_SERVERS)) first
  PS_SERVER_PIDS=()
  for ((i = 0; i < PS_SERVERS; ++i)); do
    first=$((i * shards))
    SLUICE_SOCKET=${DAEMON_SOCKET[ps]} ip netns exec ps "$SLUICE_BIN/libclient/examples/sluice-ps/sluice-ps" server \
      --name "server-$i" --listen $((PS_SERVICE + first)) --shard "$first-$((first + shards - 1))/$PS_SHARDS" \
      --rows $PS_ROWS --dim $PS_DIM --json "$folder/server-$i.json" >"$folder/server-$i.log" 2>&1 </dev/null &
    PS_SERVER_PIDS+=($!)
  done
  for ((i = 0; i < PS_SERVERS; ++i)); do ps_wait_ready "${PS_SERVER_PIDS[i]}" "$folder/server-$i.log"; done
}

ps_start_workers() {
  local folder=$1 seconds=$2 i addresses=()
  for ((i = 0; i < PS_SHARDS; ++i)); do addresses+=("$PS_ADDRESS:$((PS_SERVICE + i))"); done
  PS_WORKER_PIDS=()
  for ((i = 0; i < PS_WORKERS; ++i)); do
    SLUICE_SOCKET=${DAEMON_SOCKET[worker]} ip netns exec worker "$SLUICE_BIN/libclient/examples/sluice-ps/sluice-ps" \
      worker --servers "$(IFS=,; printf '%s' "${addresses[*]}")" --worker $i --workers $PS_WORKERS --seed $((i + 1)) \
      --seconds "$seconds" --outstanding "$PS_OUTSTANDING" --rows $PS_ROWS --dim $PS_DIM \
      --json "$folder/worker-$i.json" >"$folder/worker-$i.log" 2>&1 </dev/null &
    PS_WORKER_PIDS+=($!)
  done
}

# One line: the workers' last progress lines added up.
ps_progress() {
  local folder=$1
  tail -q -n 1 "$folder"/worker-?.log 2>/dev/null | awk '
    / at_s=/ { for (i = 2; i <= NF; ++i) { split($i, pair, "="); sum[pair[1]] += pair[2]
        if (pair[2] + 0 > max[pair[1]]) max[pair[1]] = pair[2] + 0 } }
    END { if (max["at_s"] > 0)
      printf "%4d s  fetch %6d/s  push %6d/s  %6.3f GB/s  p99 %8.0f us  verified %12.0f  wrong %d  unknown %d",
        max["at_s"], sum["fetch_per_s"], sum["push_per_s"], sum["gb_per_s"], max["p99_us"], sum["verified"],
        sum["wrong"], sum["unknown"] }'
}

ps_show_progress() {
  local folder=$1 line
  line=$(ps_progress "$folder")
  [[ -n $line ]] || return 0
  if [[ -t 1 ]]; then printf '\r\e[K    %s' "$line"; else printf '    %s\n' "$line"; fi
}

# Whether every worker's last progress line, at least the LINES-th, shows all its links up and work done.
ps_all_work() {
  local folder=$1 lines=$2 log line
  for log in "$folder"/worker-?.log; do
    line=$(tail -n 1 "$log")
    (($(wc -l <"$log") >= lines)) || return 1
    [[ $line == *" links=$PS_SHARDS/$PS_SHARDS "* && $line != *" fetch_per_s=0 push_per_s=0 "* ]] || return 1
  done
}

# Kills the host's daemon once the workers work, starts it again, and ends the run when they work again, but not before
# its time. Gives up after a minute more: that shows in the report as a fault without recovery.
ps_kill_and_watch() {
  local folder=$1 seconds=$2 victim=$3 started=$SECONDS killed='' lines=1
  while kill -0 "${PS_WORKER_PIDS[@]}" 2>/dev/null; do
    sleep 1
    ps_show_progress "$folder"
    if [[ -z $killed ]] && ((SECONDS - started >= seconds / 3)) && ps_all_work "$folder" 2; then
      stop_daemon "$victim" KILL
      start_daemon "$victim"
      killed=yes
      lines=$(($(cat "$folder"/worker-?.log | wc -l) + 2))
    elif [[ -n $killed ]] && ((SECONDS - started >= seconds)) && ps_all_work "$folder" $((lines / PS_WORKERS)); then
      break
    fi
    ((SECONDS - started < seconds + 60)) || break
  done
  kill -TERM "${PS_WORKER_PIDS[@]}" 2>/dev/null || true
}

# ps_run FOLDER SECONDS [HOST]: one run; with HOST, that host's daemon is killed under it and started again. Afterwards
# PS_FILES is what `sluice-ps report` wants to know of it. Failures of processes show in their files.
ps_run() {
  local folder=$1 seconds=$2 victim=${3:-} host i deadline
  local -A ticks=()
  mkdir -p "$folder"
  ps_start_servers "$folder"
  for host in ps worker; do ticks[$host]=$(ps_cpu_ticks "${DAEMON_PID[$host]}"); done
  if [[ -n $victim ]]; then
    ps_start_workers "$folder" 0
    ps_kill_and_watch "$folder" "$seconds" "$victim"
    ticks[$victim]=0
  else
    ps_start_workers "$folder" "$seconds"
  fi
  # The workers end by themselves; one that does not is a failure that must not hang the demo.
  deadline=$((SECONDS + seconds + 60))
  while kill -0 "${PS_WORKER_PIDS[@]}" 2>/dev/null; do
    sleep 1
    ps_show_progress "$folder"
    ((SECONDS < deadline)) || kill -KILL "${PS_WORKER_PIDS[@]}" 2>/dev/null || true
  done
  [[ ! -t 1 ]] || printf '\n'
  wait "${PS_WORKER_PIDS[@]}" 2>/dev/null || true
  PS_FILES=''
  for host in ps worker; do
    PS_FILES+=,sluiced-$host=$(awk -v a="${ticks[$host]}" -v b="$(ps_cpu_ticks "${DAEMON_PID[$host]}")" \
      -v hz="$(getconf CLK_TCK)" 'BEGIN { printf "%.2f", (b - a) / hz }')
  done
  kill -TERM "${PS_SERVER_PIDS[@]}" 2>/dev/null || true
  wait "${PS_SERVER_PIDS[@]}" 2>/dev/null || true
  for ((i = 0; i < PS_SERVERS; ++i)); do PS_FILES+=,$folder/server-$i.json; done
  for ((i = 0; i < PS_WORKERS; ++i)); do PS_FILES+=,$folder/worker-$i.json; done
}

demo_run() {
  local seconds=$1 json=$2 folder steady fault_of_ps fault_of_worker
  new_folder
  folder=$REPLY
  make_two_hosts ps worker
  PS_ADDRESS=$HOST_A_ADDRESS
  start_daemon ps
  start_daemon worker
  say "$PS_SERVERS servers with $PS_SHARDS shards on one host, $PS_WORKERS workers on the other, $PS_OUTSTANDING operations" \
    "outstanding each, $seconds s; fetch replies and pushes of 20 KB on average (p99 50 KB) for each shard"
  ps_run "$folder/steady" "$seconds"
  steady=$PS_FILES
  [[ -z ${SLUICE_IN_VM:-} ]] || need_rdma worker
  say "The same, while the servers' daemon is killed (SIGKILL) and started again"
  ps_run "$folder/ps" "$seconds" ps
  fault_of_ps=$PS_FILES
  say "The same, while the workers' daemon is killed (SIGKILL) and started again"
  ps_run "$folder/worker" "$seconds" worker
  fault_of_worker=$PS_FILES
  stop_daemon worker
  stop_daemon ps

  "$SLUICE_BIN/libclient/examples/sluice-ps/sluice-ps" report --steady "steady$steady" \
    --fault "SIGKILL of the servers' sluiced$fault_of_ps" --fault "SIGKILL of the workers' sluiced$fault_of_worker" \
    ${json:+--json "$json"}
}
