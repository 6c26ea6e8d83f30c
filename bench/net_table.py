#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Medians of the rounds of scripts/bench net, as a table and as JSON."""

import os

import table

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
FIGURES = ("operations_per_s", "gb_per_s", "mean_us", "p50_us", "p99_us", "cpu_s_per_million", "peak_rss_mb")
NOTES = """
  CPU: seconds of all processes for a million operations, daemons included. Peak memory: the sum over all processes;
  memory that Sluice's applications share with their daemon counts in each of them.
  ucx is ucx_perftest over TCP, whose tests are not these workloads: echo_32B is tag_lat -s 32 (an operation is a round
  trip); fetch_64B_20KB is tag_bw -s 20480 -O 16 and stream_1MB is tag_bw -s 1048576 -O 8, both one way, without request
  or reply, the sender alone being timed. Both its sides poll busily. No goal rests on it."""


def figures(run):
    """One run: the client's figures, and CPU and memory of all processes that took part."""
    row = run["row"]
    if "other_cpu_ticks" in run:
        cpu_s = row["client_cpu_s"] + run["other_cpu_ticks"] / TICKS_PER_SECOND
        row["cpu_s_per_million"] = cpu_s / row["all_operations"] * 1e6
        row["peak_rss_mb"] = row["client_peak_rss_mb"] + run["other_peak_rss_mb"]
    return row


def goals(rows):
    """Sluice beside plain TCP and gRPC, in this very run."""
    result = table.Goals(rows)
    for workload in ("fetch_64B_20KB", "stream_1MB"):
        for system, title, goal in (("tcp", "plain TCP's", 0.9), ("grpc", "gRPC's", 1.5)):
            result.add_ratio(f"net_{workload}_rate_to_{system}", f"{workload}: rate over {title}",
                             (workload, "sluice", "operations_per_s"), (workload, system, "operations_per_s"), goal, "higher")
        result.add_ratio(f"net_{workload}_cpu_to_grpc", f"{workload}: CPU of an operation over gRPC's",
                         (workload, "sluice", "cpu_s_per_million"), (workload, "grpc", "cpu_s_per_million"), 0.7, "lower")
    result.add_ratio("net_echo_32B_p50_to_grpc", "echo_32B: p50 over gRPC's", ("echo_32B", "sluice", "p50_us"),
                     ("echo_32B", "grpc", "p50_us"), 1.0, "lower")
    return result.list


def main():
    runs, json_file = table.arguments(__doc__)
    rows = list(table.medians([figures(run) for run in runs], FIGURES))
    about, reached = table.machine(), goals(rows)

    table.print_machine(about, f"Medians of {rows[0]['rounds']} rounds, with the lowest and highest rate.")
    table.print_rows(
        ("workload", "system", "op/s", "lowest", "highest", "GB/s", "mean us", "p50 us", "p99 us", "CPU s/million", "peak MB"),
        [(row["workload"], row["system"], *table.spread(row, "operations_per_s", digits=0),
          table.text(row["gb_per_s"], 3), table.text(row.get("mean_us")), table.text(row.get("p50_us")),
          table.text(row.get("p99_us")), table.text(row["cpu_s_per_million"], 2), table.text(row["peak_rss_mb"], 0)) for row in rows])
    print(NOTES)
    table.print_goals(reached)
    table.write_json(json_file, "net", about, rows, reached)


if __name__ == "__main__":
    main()
