#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One measurement with ucx_perftest: starts both of its processes, prints one JSON line.

Its tests differ from the requests and replies of sluice-bench:
  tag_lat  both sides busily poll; an operation is a round trip. It knows one percentile a run, so the 99th is taken
           from a second run of the same length.
  tag_bw   one way only, and the sender alone is timed: no latency.
CPU and memory are of both processes, their start included.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

WARM_UP_SHARE = 10  # One warm-up operation for so many measured ones.
TRIAL_OPERATIONS = 500
READY_TIMEOUT_S = 10


class Failed(Exception):
    pass


def start(prefix, options, cpu, arguments):
    command = prefix.split() + ["ucx_perftest", "-p", str(options.port)]
    command += ([] if cpu is None else ["-c", str(cpu)]) + arguments
    environment = dict(os.environ, UCX_TLS=options.transports, UCX_WARN_UNUSED_ENV_VARS="n")
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def listening(prefix, port):
    command = prefix.split() + ["cat", "/proc/net/tcp"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
    return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in lines)


def end(process):
    """(status, output, CPU seconds, peak memory in MB) of a process that is about to end."""
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, output, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def run(options, operations, percentile):
    """Both processes, once. The last line of the client's output has the figures."""
    server = start(options.server_prefix, options, options.server_cpu, [])
    try:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not listening(options.server_prefix, options.port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise Failed("the server of ucx_perftest is not ready: " + server.stdout.read())
            time.sleep(0.01)
        warm_up = max(1, operations // WARM_UP_SHARE)
        arguments = [options.address, "-t", options.test, "-s", str(options.size), "-n", str(operations), "-w", str(warm_up),
                     "-R", str(percentile), "-f", "-v"]
        if options.outstanding:
            arguments += ["-O", str(options.outstanding)]
        status, output, cpu_s, peak_mb = end(start(options.client_prefix, options, options.client_cpu, arguments))
        if status != 0:
            raise Failed("ucx_perftest failed: " + output)
        _, _, server_cpu_s, server_peak_mb = end(server)
    finally:
        if server.returncode is None:
            server.send_signal(signal.SIGKILL)
            server.wait()
    columns = output.splitlines()[-1].split(",")
    if len(columns) != 8 or not columns[0].strip().isdigit():
        raise Failed("what ucx_perftest printed cannot be read: " + output)
    _, percentile_us, average_us, _, _, _, rate, _ = map(float, columns)
    return {"percentile_us": percentile_us, "average_us": average_us, "rate": rate, "all_operations": operations + warm_up,
            "cpu_s": cpu_s + server_cpu_s, "peak_rss_mb": peak_mb + server_peak_mb}


def measure(options):
    operations = options.operations
    if not operations:  # A trial says how many fit into the time.
        trial = run(options, TRIAL_OPERATIONS, 50)
        per_s = 1e6 / (2 * trial["average_us"]) if options.test.endswith("_lat") else trial["rate"]
        operations = max(TRIAL_OPERATIONS, int(per_s * options.seconds))
    first = run(options, operations, 50)
    row = {"workload": options.workload, "system": options.system, "operations": operations,
           "cpu_s_per_million": first["cpu_s"] / first["all_operations"] * 1e6, "peak_rss_mb": first["peak_rss_mb"]}
    if options.test.endswith("_lat"):  # It reports half of the round trip.
        row.update(mean_us=2 * first["average_us"], p50_us=2 * first["percentile_us"],
                   p99_us=2 * run(options, operations, 99)["percentile_us"])
        row["operations_per_s"] = 1e6 / row["mean_us"]
        row["gb_per_s"] = 2 * options.size * row["operations_per_s"] / 1e9
    else:
        row.update(operations_per_s=first["rate"], gb_per_s=first["rate"] * options.size / 1e9)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", required=True, help="the row's name")
    parser.add_argument("--system", default="ucx")
    parser.add_argument("--test", required=True, choices=("tag_lat", "tag_bw"))
    parser.add_argument("--size", type=int, required=True, help="bytes of a message")
    parser.add_argument("--outstanding", type=int, help="sends at a time")
    parser.add_argument("--transports", required=True, help="$UCX_TLS")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=13337)
    parser.add_argument("--server-prefix", default="", help="command to start the server with")
    parser.add_argument("--client-prefix", default="")
    parser.add_argument("--server-cpu", type=int)
    parser.add_argument("--client-cpu", type=int)
    parser.add_argument("--seconds", type=float, default=1, help="about so long, by a short trial before")
    parser.add_argument("--operations", type=int, help="so many instead")
    options = parser.parse_args()
    try:
        print(json.dumps(measure(options)))
    except (Failed, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
