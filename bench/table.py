# SPDX-License-Identifier: Apache-2.0
"""What the tables of scripts/bench share: the machine, medians of rounds, goals, and the JSON."""

import argparse
import json
import os
import platform
import statistics


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"cores": os.cpu_count(), "cpu": cpu, "kernel": f"{platform.system()} {platform.release()}",
            "load_1min": os.getloadavg()[0]}


def arguments(description):
    """The rows that the command line names, and the file for the JSON or None."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--json")
    options = parser.parse_args()
    with open(options.rows, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines], options.json


def medians(runs, figures):
    """One row for each workload and system: the median of its rounds, the lowest and the highest of each figure."""
    grouped = {}
    for run in runs:
        grouped.setdefault((run["workload"], run["system"]), []).append(run)
    for (workload, system), rows in grouped.items():
        result = {"workload": workload, "system": system, "rounds": len(rows)}
        for name in figures:
            values = [row[name] for row in rows if row.get(name) is not None]
            if values:
                result[name] = statistics.median(values)
                result[name + "_min"], result[name + "_max"] = min(values), max(values)
        yield result


class Goals:
    """Goals about the figures of rows; one whose rows are not there has no value and says why."""

    def __init__(self, rows):
        self._rows = {(row["workload"], row["system"]): row for row in rows}
        self.list = []

    def figure(self, workload, system, name):
        return self._rows.get((workload, system), {}).get(name)

    def add(self, name, what, value, goal, better, reason="one of the figures was not measured"):
        self.list.append({"id": name, "what": what, "value": value, "goal": goal, "better": better,
                          **({"reason": reason} if value is None else {})})

    def add_ratio(self, name, what, ours, theirs, goal, better):
        """ours and theirs: (workload, system, figure)."""
        ours, theirs = self.figure(*ours), self.figure(*theirs)
        self.add(name, what, ours / theirs if ours is not None and theirs else None, goal, better)


def verdict(goal):
    if goal["value"] is None:
        return "not measured: " + goal["reason"]
    met = goal["value"] >= goal["goal"] if goal["better"] == "higher" else goal["value"] <= goal["goal"]
    return "met" if met else "MISSED"


def text(value, digits=1):
    return "-" if value is None else f"{value:.{digits}f}"


def spread(row, figure, scale=1.0, digits=2):
    """The median, the lowest and the highest of a figure, as text."""
    if figure not in row:
        return ("-", "-", "-")
    return tuple(text(row[name] / scale, digits) for name in (figure, figure + "_min", figure + "_max"))


def print_rows(heading, rows):
    """Columns as wide as their widest entry; the first two hold names."""
    lines = [heading, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heading))]
    for number, line in enumerate(lines):
        if number == 0 or line[0] != lines[number - 1][0]:
            print()
        print("  " + "  ".join(cell.ljust(width) if i < 2 else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(line, widths))).rstrip())


def print_machine(about, note):
    print(f"\n{about['cores']} cores, {about['cpu']}, {about['kernel']}, load {about['load_1min']:.1f}. {note}")


def print_goals(goals):
    width = max(len(goal["what"]) for goal in goals)
    print("\nGoals")
    for goal in goals:
        sign = ">=" if goal["better"] == "higher" else "<="
        print(f"  {goal['what'].ljust(width)}  {text(goal['value'], 2):>8}  {sign} {goal['goal']:<5} {verdict(goal)}")


def write_json(path, bench, about, rows, goals):
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"bench": bench, "machine": about, "rows": rows, "goals": goals}, file, indent=1)
            file.write("\n")
