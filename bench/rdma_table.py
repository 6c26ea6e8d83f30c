#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Medians of the rounds of scripts/bench rdma, as a table and as JSON."""

import os
import re
import subprocess

import table

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
FIGURES = ("p50_us", "p99_us", "mean_us", "mb_per_s", "cpu_s_per_gb", "messages_per_s")
NOTES = """
  echo_32B is one way: perftest's own figure (ib_send_lat -s 32), half of Sluice's round trip between two applications
  over both daemons. perftest polls busily on both sides, perftest_events sleeps (-e), as Sluice's daemons and
  applications do here. The streams: ib_write_bw beside messages of that size, each answered with 32 bytes, 64 of 4 KB,
  32 of 64 KB or 8 of 1 MB outstanding. sluice_tcp is Sluice with rdma.mode = "off". rate_32B: messages of 32 bytes,
  requests and replies counted, 1,024 requests outstanding on 1, 64 or 1,024 sockets, all over one queue pair.
  echo_beside_1MB is echo_32B while another application streams 1 MB over the same queue pair, in fragments of 64 KB
  and whole. CPU: of the daemons and the sending application. ring is an application's round trip to its own daemon."""
STREAMS = ("stream_4KB", "stream_64KB", "stream_1MB")
NO_ENGINES = "no program measures engine to engine without applications"


def figures(run):
    """One run in the figures of the table."""
    if run["workload"].startswith("round_trip"):
        return run | {"workload": "ring", "system": "sluice"}
    if "request" not in run:
        return run
    request = run["request"]
    row = {"workload": run["workload"], "system": run["system"]}
    if run["workload"].startswith("echo"):
        row |= {figure: request[figure] / 2 for figure in ("p50_us", "p99_us", "mean_us")}
    elif run["workload"].startswith("rate"):
        row |= {"messages_per_s": 2 * request["operations_per_s"]}
    else:
        gb_of_all = request["gb_per_s"] * request["seconds"] / request["operations"] * request["all_operations"]
        cpu_s = request["client_cpu_s"] + run["daemon_cpu_ticks"] / TICKS_PER_SECOND
        row |= {"mb_per_s": request["gb_per_s"] * 1e3, "cpu_s_per_gb": cpu_s / gb_of_all}
    return row


def goals(rows):
    """Sluice beside perftest, in this very boot."""
    result = table.Goals(rows)
    result.add("rdma_engine_latency", "engine to engine: latency over perftest's", None, 1.2, "lower", NO_ENGINES)
    result.add("rdma_engine_stream", "engine to engine: stream over perftest's", None, 0.95, "higher", NO_ENGINES)
    echo, perftest, ring = (result.figure(*what, "p50_us") for what in
                            (("echo_32B", "sluice"), ("echo_32B", "perftest_events"), ("ring", "sluice")))
    result.add("rdma_apps_latency", "between applications: latency beyond perftest's -e, in ring round trips",
               (echo - perftest) / ring if None not in (echo, perftest, ring) else None, 2, "lower")
    for workload in STREAMS:
        result.add_ratio(f"rdma_apps_{workload}", f"between applications: {workload} over perftest's",
                         (workload, "sluice", "mb_per_s"), (workload, "perftest", "mb_per_s"), 0.9, "higher")
    return result.list


def main():
    runs, json_file = table.arguments(__doc__)
    rows = list(table.medians([figures(run) for run in runs], FIGURES))
    said = subprocess.run(["ib_send_lat", "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"[0-9][0-9.]+", said.stdout + said.stderr)
    about = table.machine() | {"perftest": version.group(0) if version else "unknown"}
    reached = goals(rows)

    table.print_machine(about, f"perftest {about['perftest']}. Medians of {rows[0]['rounds']} rounds.")
    table.print_rows(
        ("workload", "system", "p50 us", "p99 us", "mean us", "messages/s", "MB/s", "lowest", "highest", "CPU s/GB"),
        [(row["workload"], row["system"], table.text(row.get("p50_us")), table.text(row.get("p99_us")),
          table.text(row.get("mean_us")), table.text(row.get("messages_per_s"), 0),
          *table.spread(row, "mb_per_s", digits=1), table.text(row.get("cpu_s_per_gb"), 2)) for row in rows])
    print(NOTES)
    table.print_goals(reached)
    table.write_json(json_file, "rdma", about, rows, reached)


if __name__ == "__main__":
    main()
