# SPDX-License-Identifier: Apache-2.0
# What the scripts share: messages, logged steps with their times, root, and hosts made of network namespaces.
# Sourced by bash with `set -euo pipefail` in force; does nothing by itself.

SLUICE_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SLUICE_BUILD_ROOT=${SLUICE_BUILD_ROOT:-$SLUICE_ROOT/build}  # Each preset builds in a folder of its own below it.
SLUICE_LOGS=$SLUICE_BUILD_ROOT/logs
SLUICE_JOBS=${SLUICE_JOBS:-$(nproc)}

if [[ -t 1 ]]; then
  BOLD=$'\e[1m' RED=$'\e[31m' GREEN=$'\e[32m' PLAIN=$'\e[0m'
else
  BOLD='' RED='' GREEN='' PLAIN=''
fi

say() { printf '%s==>%s %s\n' "$BOLD" "$PLAIN" "$*"; }
warn() { printf '%swarning:%s %s\n' "$RED" "$PLAIN" "$*" >&2; }
die() {
  printf '%serror:%s %s\n' "$RED" "$PLAIN" "$*" >&2
  exit 1
}

need_root() {
  [[ $EUID -eq 0 ]] || die "$1 needs root: run it as root (for example with sudo)"
}

# on_exit COMMAND: runs COMMAND when the script ends, however it ends; the last one given runs first.
SLUICE_AT_EXIT=()
SLUICE_STEP_PID=
on_exit() { SLUICE_AT_EXIT+=("$1"); }
run_at_exit() {
  local status=$? i
  trap - EXIT
  trap '' INT TERM
  if [[ -n $SLUICE_STEP_PID ]]; then
    pkill -TERM -P "$SLUICE_STEP_PID" 2>/dev/null || true
    kill -TERM "$SLUICE_STEP_PID" 2>/dev/null || true
  fi
  for ((i = ${#SLUICE_AT_EXIT[@]} - 1; i >= 0; --i)); do eval "${SLUICE_AT_EXIT[i]}" || true; done
  exit "$status"
}
trap run_at_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# step NAME COMMAND...: runs COMMAND with its output in a log, shows that something moves, and how long it took. On
# failure shows the end of the log, names step and log, and returns the command's status.
step() {
  local name=$1 log started status=0 pid
  shift
  mkdir -p "$SLUICE_LOGS"
  log=$SLUICE_LOGS/$(tr -cs 'A-Za-z0-9\n' '-' <<<"${name,,}").log
  started=$SECONDS
  printf '%s==>%s %s ... ' "$BOLD" "$PLAIN" "$name"
  [[ -t 1 ]] || printf '\n'
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  SLUICE_STEP_PID=$pid
  while [[ -t 1 ]] && kill -0 "$pid" 2>/dev/null; do
    printf '\r\e[K%s==>%s %s ... %d s  %s' "$BOLD" "$PLAIN" "$name" $((SECONDS - started)) \
      "$(tail -c 300 "$log" 2>/dev/null | tr '\r' '\n' | tail -n 1 | tr -cd '[:print:]' | cut -c -60)"
    sleep 0.5
  done
  wait "$pid" || status=$?
  SLUICE_STEP_PID=
  [[ ! -t 1 ]] || printf '\r\e[K%s==>%s %s ... ' "$BOLD" "$PLAIN" "$name"
  if ((status != 0)); then
    printf '%sfailed%s after %d s\n' "$RED" "$PLAIN" $((SECONDS - started))
    tail -n "${STEP_TAIL_LINES:-40}" "$log" | sed 's/^/    /'
    printf '%serror:%s step "%s" failed with status %d; whole log: %s\n' "$RED" "$PLAIN" "$name" "$status" "$log" >&2
    return "$status"
  fi
  printf '%sdone%s in %d s\n' "$GREEN" "$PLAIN" $((SECONDS - started))
}

# build_preset PRESET [TARGET...]: configures and builds one preset of CMakePresets.json below SLUICE_BUILD_ROOT.
build_preset() {
  local preset=$1 dir=$SLUICE_BUILD_ROOT/$1
  # Every clone of the project shares what ccache knows, wherever it lies.
  export CCACHE_BASEDIR=$SLUICE_ROOT CCACHE_NOHASHDIR=1
  shift
  step "Configure $preset" cmake -S "$SLUICE_ROOT" --preset "$preset" -B "$dir" || return
  step "Build $preset" cmake --build "$dir" --parallel "$SLUICE_JOBS" ${1:+--target "$@"}
}

# ---- Hosts ----------------------------------------------------------------------------------------------------------
# A host is a network namespace. make_two_hosts A B joins two of them; whatever was made is taken down by
# remove_hosts, which the first call hooks into the script's exit.

SLUICE_HOSTS=()
declare -A HOST_SETTINGS=() # What a daemon must be told to live there: lines of TOML.

remove_hosts() {
  local host pid
  for host in "${SLUICE_HOSTS[@]}"; do
    for pid in $(ip netns pids "$host" 2>/dev/null); do
      kill -KILL "$pid" 2>/dev/null || true
      wait "$pid" 2>/dev/null || true # Or bash would report each of them as killed.
    done
    ip netns del "$host" 2>/dev/null || true
  done
  SLUICE_HOSTS=()
}

# make_host NAME: a namespace with nothing but its loopback interface.
make_host() {
  local host=$1
  need_root "making network namespaces"
  command -v ip >/dev/null || die "the command ip is missing: run scripts/setup"
  ((${#SLUICE_HOSTS[@]} > 0)) || on_exit remove_hosts
  ip netns add "$host" || die "cannot make the network namespace $host; is one of that name left over? ip netns del $host"
  SLUICE_HOSTS+=("$host")
  ip -n "$host" link set lo up
}

# make_two_hosts A B [NET]: two namespaces joined by a veth pair; A is 10.77.NET.1, B is 10.77.NET.2 (NET: 0), and both
# are in HOST_A_ADDRESS and HOST_B_ADDRESS afterwards. In the VM they are the two ends of its first link instead
# (tests/vm/network), each with an RDMA device, and their namespaces are names of the VM's own.
make_two_hosts() {
  local a=$1 b=$2 net=${3:-0}
  if [[ -n ${SLUICE_IN_VM:-} ]]; then
    HOST_A_ADDRESS=10.88.0.1 HOST_B_ADDRESS=10.88.0.2
    make_vm_host "$a" 0 $HOST_A_ADDRESS
    make_vm_host "$b" 1 $HOST_B_ADDRESS
    return
  fi
  HOST_A_ADDRESS=10.77.$net.1 HOST_B_ADDRESS=10.77.$net.2
  make_host "$a"
  make_host "$b"
  ip -n "$a" link add eth0 type veth peer name eth0 netns "$b" || die "cannot make a veth pair: is the kernel's veth module there?"
  ip -n "$a" address add "$HOST_A_ADDRESS/24" dev eth0
  ip -n "$b" address add "$HOST_B_ADDRESS/24" dev eth0
  ip -n "$a" link set eth0 up
  ip -n "$b" link set eth0 up
}

# make_vm_host NAME NUMBER ADDRESS: goes with the VM.
make_vm_host() {
  ip netns attach "$1" $$
  printf -v "HOST_SETTINGS[$1]" 'peer.listen = ["%s"]\nrdma.device = "rxe%d"\nhttp.listen = "127.0.0.1:%d"' \
    "$3" "$2" $((9450 + $2))
}

# in_host HOST COMMAND...: runs COMMAND in that namespace.
in_host() {
  local host=$1
  shift
  ip netns exec "$host" "$@"
}

# ---- Daemons --------------------------------------------------------------------------------------------------------
# start_daemon HOST [TOML...]: a sluiced in that namespace with a run directory of its own, and waits until it is ready.
# Each further argument is one line of configuration, as 'engine.fragment_bytes = 4096'. Afterwards:
#   DAEMON_PID[HOST], DAEMON_SOCKET[HOST] (for $SLUICE_SOCKET), DAEMON_ADMIN[HOST] (for sluicectl --socket),
#   DAEMON_LOG[HOST]
# A second call for the same HOST, after its daemon has gone, is a restart.

declare -A DAEMON_PID=() DAEMON_SOCKET=() DAEMON_ADMIN=() DAEMON_LOG=()
SLUICE_BIN=${SLUICE_BIN:-$SLUICE_BUILD_ROOT/release}

# new_folder: a temporary folder in REPLY, removed when the script ends.
new_folder() {
  REPLY=$(mktemp -d /tmp/sluice-XXXXXX)
  on_exit "rm -rf '$REPLY'"
}

start_daemon() {
  local host=$1 line deadline run_dir
  shift
  if [[ -z ${SLUICE_DAEMONS:-} ]]; then
    new_folder
    SLUICE_DAEMONS=$REPLY
    (umask 077 && head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n' >"$SLUICE_DAEMONS/cluster.key")
  fi
  run_dir=$SLUICE_DAEMONS/$host
  DAEMON_SOCKET[$host]=$run_dir/sluiced.sock
  DAEMON_ADMIN[$host]=$run_dir/admin.sock
  mkdir -p "$SLUICE_LOGS"
  DAEMON_LOG[$host]=$SLUICE_LOGS/sluiced-$host.log
  {
    printf 'daemon.run_dir = "%s"\npeer.key_file = "%s"\n' "$run_dir" "$SLUICE_DAEMONS/cluster.key"
    for line in "${HOST_SETTINGS[$host]:-}" "$@"; do printf '%s\n' "$line"; done
  } >"$run_dir.toml"
  ip netns exec "$host" "$SLUICE_BIN/daemon/sluiced" --config "$run_dir.toml" >>"${DAEMON_LOG[$host]}" 2>&1 </dev/null &
  DAEMON_PID[$host]=$!
  deadline=$((SECONDS + 30))
  until "$SLUICE_BIN/daemon/ctl/sluicectl" --socket "${DAEMON_ADMIN[$host]}" status >/dev/null 2>&1; do
    kill -0 "${DAEMON_PID[$host]}" 2>/dev/null ||
      die "sluiced on $host ended at once: $(tail -n 3 "${DAEMON_LOG[$host]}"); whole log: ${DAEMON_LOG[$host]}"
    ((SECONDS < deadline)) || die "sluiced on $host is not ready after 30 s; log: ${DAEMON_LOG[$host]}"
    sleep 0.05
  done
}

# stop_daemon HOST [SIGNAL]: ends it (TERM unless told otherwise) and waits for its end.
stop_daemon() {
  local host=$1 signal=${2:-TERM}
  kill -"$signal" "${DAEMON_PID[$host]}" 2>/dev/null || true
  wait "${DAEMON_PID[$host]}" 2>/dev/null || true
  unset "DAEMON_PID[$host]"
}

# need_rdma HOST: the daemon's peers are reached over RDMA, or it says why not and the script ends.
need_rdma() {
  local engines
  engines=$("$SLUICE_BIN/daemon/ctl/sluicectl" --socket "${DAEMON_ADMIN[$1]}" --json engines)
  grep -q '"transport": *"rc"' <<<"$engines" || die "messages do not take RDMA on $1: $(tail -n 5 "${DAEMON_LOG[$1]}")"
  say "Messages take RDMA: $(rdma link show | grep -c ACTIVE) Soft-RoCE devices of $(uname -sr)"
}

# in_vm FOLDER TIMEOUT_S COMMAND...: in the VM, which sees this host's files; FOLDER is what stays of those it writes.
in_vm() {
  local folder=$1 timeout=$2
  shift 2
  "$SLUICE_ROOT/tests/vm/run" --timeout "$timeout" --share "$folder" -- "$@"
}
