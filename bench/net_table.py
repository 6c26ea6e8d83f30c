#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Medians of the rounds of scripts/bench net, as a table and as JSON."""

import argparse
import json
import os
import platform
import statistics

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
FIGURES = ("operations_per_s", "gb_per_s", "mean_us", "p50_us", "p99_us", "cpu_s_per_million", "peak_rss_mb")


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"cores": os.cpu_count(), "cpu": cpu, "kernel": f"{platform.system()} {platform.release()}"}


def figures(line):
    """One run: the client's figures, and CPU and memory of all processes that took part."""
    run = json.loads(line)
    row = run["row"]
    cpu_s = row["client_cpu_s"] + run["other_cpu_ticks"] / TICKS_PER_SECOND
    row["cpu_s_per_million"] = cpu_s / row["all_operations"] * 1e6
    row["peak_rss_mb"] = row["client_peak_rss_mb"] + run["other_peak_rss_mb"]
    return row


def medians(runs):
    grouped = {}
    for run in runs:
        grouped.setdefault((run["workload"], run["system"]), []).append(run)
    for (workload, system), rows in grouped.items():
        result = {"workload": workload, "system": system, "rounds": len(rows)}
        for name in FIGURES:
            values = [row[name] for row in rows]
            result[name] = statistics.median(values)
            result[name + "_min"], result[name + "_max"] = min(values), max(values)
        yield result


def goals(rows):
    """Sluice's rate beside plain TCP's, in this very run."""
    by_key = {(row["workload"], row["system"]): row for row in rows}
    for workload in ("fetch_64B_20KB", "stream_1MB"):
        goal = {"id": f"{workload}_rate_to_tcp", "what": f"rate of {workload}, as a multiple of plain TCP's",
                "goal": 0.9, "better": "higher", "value": None}
        ours, theirs = by_key.get((workload, "sluice")), by_key.get((workload, "tcp"))
        if ours and theirs:
            goal["value"] = ours["operations_per_s"] / theirs["operations_per_s"]
        else:
            goal["reason"] = "one of the two was not measured"
        yield goal


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--json")
    options = parser.parse_args()
    with open(options.rows, encoding="utf-8") as lines:
        rows = list(medians([figures(line) for line in lines]))
    result = {"bench": "net", "machine": machine(), "rows": rows, "goals": list(goals(rows))}

    print("\nmachine: {cores} cores, {cpu}, {kernel}; medians, with the lowest and highest rate".format(**result["machine"]))
    heading = ("workload", "system", "operations/s", "(lowest", "highest)", "GB/s", "mean us", "p50 us", "p99 us", "CPU s/million",
               "peak MB")
    layout = "  {:<16} {:<8} {:>12} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9} {:>14} {:>8}"
    print(layout.format(*heading))
    for row in rows:
        print(layout.format(row["workload"], row["system"], f"{row['operations_per_s']:.0f}",
                            f"{row['operations_per_s_min']:.0f}", f"{row['operations_per_s_max']:.0f}",
                            f"{row['gb_per_s']:.3f}", f"{row['mean_us']:.1f}", f"{row['p50_us']:.1f}",
                            f"{row['p99_us']:.1f}", f"{row['cpu_s_per_million']:.2f}", f"{row['peak_rss_mb']:.0f}"))
    for goal in result["goals"]:
        value = "not measured" if goal["value"] is None else f"{goal['value']:.2f}"
        print(f"  {goal['what']}: {value} (goal {goal['goal']})")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
