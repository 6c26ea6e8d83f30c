#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One round of scripts/bench idle: looks at two daemons while sluice-bench holds clients and sockets; prints rows."""

import argparse
import contextlib
import json
import subprocess
import sys
import time

CLIENTS = 100
SOCKETS = 10_000
SETTLE_TIMEOUT_S = 20
SETTLED_CPU_NS = 20_000_000  # Less than so much in half a second.


class Failed(Exception):
    pass


def cpu_ns(pid):
    """What the kernel says all threads have run, which is exact; its ticks are not."""
    command = f"cat /proc/{pid}/task/*/schedstat"
    lines = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout.splitlines()
    return sum(int(line.split()[0]) for line in lines)


def memory_bytes(pid):
    """(proportional set size, resident set size)"""
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as lines:
        fields = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB\n")}
    return fields["Pss"], fields["Rss"]


def settle(pid):
    """Waits until the daemon is done with what was asked of it."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < deadline:
        before = cpu_ns(pid)
        time.sleep(0.5)
        if cpu_ns(pid) - before < SETTLED_CPU_NS:
            return
    print(f"warning: the daemon {pid} is still at work after {SETTLE_TIMEOUT_S} s", file=sys.stderr)


@contextlib.contextmanager
def program(host, arguments):
    """sluice-bench idle on that host, once it is ready; ended when the block is left."""
    process = subprocess.Popen(["ip", "netns", "exec", host, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True)
    try:
        if process.stdout.readline().strip() != "ready":
            raise Failed(" ".join(arguments) + " is not ready")
        yield process
    finally:
        process.terminate()
        process.wait(timeout=SETTLE_TIMEOUT_S)


def idle_cpu(pid, clients, seconds):
    settle(pid)
    started, before = time.monotonic(), cpu_ns(pid)
    time.sleep(seconds)
    share = (cpu_ns(pid) - before) / 1e9 / (time.monotonic() - started)
    return {"workload": "idle_cpu", "system": f"{clients} clients", "seconds": seconds, "cpu_percent_of_core": 100 * share}


def sockets(options):
    accept = [options.program, "idle", "accept", "--socket", options.right_socket, "--address", options.address]
    connect = [options.program, "idle", "connect", "--socket", options.left_socket, "--address", options.address,
               "--count", str(SOCKETS)]
    daemons = {"connecting daemon": options.left_pid, "accepting daemon": options.right_pid}
    with program("right", accept), program("left", connect) as connecting:
        before = {name: memory_bytes(pid) for name, pid in daemons.items()}
        connecting.stdin.write("go\n")
        connecting.stdin.flush()
        line = connecting.stdout.readline()
        if not line:
            raise Failed("not all sockets could be connected")
        for name, pid in daemons.items():
            settle(pid)
            pss, rss = (after - earlier for after, earlier in zip(memory_bytes(pid), before[name]))
            yield {"workload": "sockets", "system": name, "pss_bytes_per_socket": pss / SOCKETS,
                   "rss_bytes_per_socket": rss / SOCKETS, **json.loads(line)}


def measure(options):
    yield idle_cpu(options.left_pid, 0, options.seconds)
    clients = [options.program, "idle", "clients", "--socket", options.left_socket, "--count", str(CLIENTS)]
    with program("left", clients):
        yield idle_cpu(options.left_pid, CLIENTS, options.seconds)
    yield from sockets(options)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("program", "left-socket", "right-socket", "address"):
        parser.add_argument("--" + name, required=True)
    for name in ("left-pid", "right-pid"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    try:
        for row in measure(options):
            print(json.dumps(row), flush=True)
    except (Failed, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
