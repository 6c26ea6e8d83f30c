#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one workload binary with one allocator after another and makes the table, the JSON and the plots."""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
COLOURS = {"bemalloc": "#c0392b", "tcmalloc": "#2980b9", "mimalloc": "#27ae60", "jemalloc": "#8e44ad",
           "glibc": "#7f8c8d", "rpmalloc": "#d68910"}
OPERATIONS = {"large": 40_000, "small": 1_000_000, "training": 400_000}  # Of all threads together.


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, help="how often everything is measured; 3 unless quick")
    parser.add_argument("--cpu-s", type=float, help="most CPU time of one measurement, and of its warm-up")
    parser.add_argument("--plot", help="prefix of the SVG files")
    parser.add_argument("--page", help="a page whose part between the marks is to hold the tables")
    parser.add_argument("--rpmalloc", help="a build of rpmalloc to preload")
    return parser.parse_args()


def systems(options):
    found = {"bemalloc": None, "glibc": ""}
    for name, library in (("tcmalloc", "libtcmalloc_minimal.so.4"), ("mimalloc", "libmimalloc.so.2"),
                          ("jemalloc", "libjemalloc.so.2")):
        path = os.path.join(LIBRARIES, library)
        if os.path.exists(path):
            found[name] = path
        else:
            print(f"skipped {name}: {path} is not installed", file=sys.stderr)
    if options.rpmalloc:
        found["rpmalloc"] = options.rpmalloc
    return found


def command(binary, system, preload, *rest):
    environment = dict(os.environ)
    if preload:
        environment["LD_PRELOAD"] = preload
    own = "bemalloc" if system == "bemalloc" else "malloc"
    return [binary, "--system", own, *map(str, rest)], environment


def run(binary, system, preload, *rest):
    line, environment = command(binary, system, preload, *rest)
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{system} failed: {done.stderr}")
    return json.loads(done.stdout)


def instructions_per_pair(binary, system, preload):
    """Of one allocate and free of 20 KB on one thread, by the difference of two runs."""
    counts = []
    for operations in (1_000, 6_000):
        line, environment = command(binary, system, preload, "--workload", "pairs", "--operations", operations)
        valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
        done = subprocess.run(valgrind + line, env=environment, capture_output=True, text=True)
        counts.append(int(done.stderr.split("Collected :")[1].split()[0]))
    return round((counts[1] - counts[0]) / 5_000, 1)


def measure(options, found):
    """Rounds are interleaved, so that what else the machine does hits everyone alike."""
    threads = (1, 4) if options.quick else (1, 2, 4, 8)
    rounds = options.rounds or (1 if options.quick else 3)
    cpu_s = options.cpu_s or (0.2 if options.quick else 0.5)
    samples = {}
    for number in range(rounds):
        for workload, total in OPERATIONS.items():
            for count in threads:
                print(f"round {number + 1} of {rounds}: {workload}, {count} threads", file=sys.stderr)
                for system, preload in found.items():
                    operations = total // count // (4 if options.quick else 1)
                    sample = run(options.workload, system, preload, "--workload", workload, "--threads", count,
                                 "--operations", operations, "--max-cpu-s", cpu_s)
                    samples.setdefault((workload, count, system), []).append(sample)
    rows = []
    for (workload, count, system), runs in samples.items():
        speed = [one["mops_per_cpu_s"] for one in runs]
        rows.append({"workload": workload, "system": system, "threads": count,
                     "mops_per_cpu_s": round(statistics.median(speed), 3),
                     "mops_per_cpu_s_least": min(speed), "mops_per_cpu_s_most": max(speed),
                     "peak_mib": statistics.median(one["peak_mib"] for one in runs)})
    return rows


def ratio_goals(rows):
    """The worst ratio over the thread counts, for each workload."""
    goals = []
    for workload, least in (("large", 1.0), ("small", 0.95), ("training", 1.0)):
        speed, memory = [], []
        for count in sorted({row["threads"] for row in rows}):
            here = {row["system"]: row for row in rows if row["workload"] == workload and row["threads"] == count}
            ours = here.pop("bemalloc")
            speed.append(ours["mops_per_cpu_s"] / max(row["mops_per_cpu_s"] for row in here.values()))
            memory.append(ours["peak_mib"] / min(row["peak_mib"] for row in here.values()))
        goals.append({"id": f"alloc_{workload}_speed", "what": f"{workload}: speed over the fastest, worst thread count",
                      "value": round(min(speed), 3), "goal": least, "better": "higher"})
        goals.append({"id": f"alloc_{workload}_memory", "what": f"{workload}: peak memory over the thriftiest, worst "
                      "thread count", "value": round(max(memory), 3), "goal": 1.15, "better": "lower"})
    return goals


def all_goals(rows, pairs, server):
    goals = ratio_goals(rows)
    others = [count for system, count in pairs.items() if system != "bemalloc"]
    goals.append({"id": "alloc_20kb_instructions", "what": "allocate and free 20 KB: instructions over the fewest",
                  "value": round(pairs["bemalloc"] / min(others), 3) if others else None, "goal": 1.0, "better": "lower",
                  **({} if others else {"reason": "valgrind is not installed"})})
    goals.append({"id": "alloc_registrations", "what": "registrations per second after warm-up",
                  "value": server["registrations_per_s"], "goal": 0, "better": "lower"})
    goals.append({"id": "alloc_pinned_after_fall", "what": "registered over live a minute after the load fell",
                  "value": server["pinned_over_live_after_fall"], "goal": 1.3, "better": "lower"})
    return goals


def met(goal):
    if goal["value"] is None:
        return "not measured: " + goal["reason"]
    good = goal["value"] >= goal["goal"] if goal["better"] == "higher" else goal["value"] <= goal["goal"]
    return "met" if good else "MISSED"


def print_table(rows, pairs, goals, names):
    counts = sorted({row["threads"] for row in rows})
    for figure, title in (("mops_per_cpu_s", "million operations per CPU second"), ("peak_mib", "peak memory, MiB")):
        print(f"\n{title}\n{'workload':10}{'threads':>8}" + "".join(f"{name:>11}" for name in names))
        for workload in OPERATIONS:
            for count in counts:
                line = {row["system"]: row[figure] for row in rows
                        if row["workload"] == workload and row["threads"] == count}
                print(f"{workload:10}{count:>8}" + "".join(f"{line[name]:>11.2f}" for name in names))
    if pairs:
        print("\ninstructions of allocate + free of 20 KB: " + ", ".join(f"{k} {v}" for k, v in pairs.items()))
    print()
    for goal in goals:
        print(f"{goal['what']:60} {goal['value']} (goal {goal['goal']}): {met(goal)}")


def markdown(rows, pairs, goals, names, options):
    rounds = options.rounds or (1 if options.quick else 3)
    lines = [f"Medians of {rounds} interleaved rounds of `scripts/bench alloc{' --quick' if options.quick else ''}`, "
             f"{os.cpu_count()} cores, Linux {platform.release()}, load {os.getloadavg()[0]:.1f} at the end."]
    for figure, title in (("mops_per_cpu_s", "million operations per CPU second"), ("peak_mib", "peak memory, MiB")):
        lines += ["", f"| {title} | threads | " + " | ".join(names) + " |", "|---|" + "---|" * (1 + len(names))]
        for workload in OPERATIONS:
            for count in sorted({row["threads"] for row in rows}):
                line = {row["system"]: row[figure] for row in rows
                        if row["workload"] == workload and row["threads"] == count}
                text = " | ".join(f"{line[name]:.2f}" if figure == "mops_per_cpu_s" else f"{line[name]:.0f}"
                                  for name in names)
                lines.append(f"| {workload} | {count} | {text} |")
    if pairs:
        lines += ["", "Instructions to allocate and free 20 KB on one thread: " +
                  ", ".join(f"{name} {count:.0f}" for name, count in pairs.items()) + "."]
    lines += ["", "| goal | measured | wanted | |", "|---|---|---|---|"]
    lines += [f"| {goal['what']} | {goal['value']} | {'>=' if goal['better'] == 'higher' else '<='} {goal['goal']} | "
              f"{met(goal)} |" for goal in goals]
    return "\n".join(lines)


def write_page(path, text):
    begin, end = "<!-- measured: begin -->", "<!-- measured: end -->"
    with open(path, encoding="utf-8") as file:
        page = file.read()
    if begin not in page or end not in page:
        sys.exit(f"{path}: has no lines '{begin}' and '{end}' to write between")
    head, rest = page.split(begin, 1)
    with open(path, "w", encoding="utf-8") as file:
        file.write(head + begin + "\n" + text + "\n" + end + rest.split(end, 1)[1])


def polyline(points, colour, box, largest):
    left, top, width, height = box
    path = " ".join(f"{left + x * width:.1f},{top + height - y / largest * height:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'


def panel(title, series, labels, box):
    """One small line chart: series is name -> [(x in 0..1, y)], labels is [(x in 0..1, text)]."""
    left, top, width, height = box
    largest = max(y for points in series.values() for _, y in points) * 1.1
    parts = [f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#bbb"/>',
             f'<text x="{left}" y="{top - 8}" font-weight="bold">{title}</text>']
    for step in range(5):
        y = top + height - height * step / 4
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{largest * step / 4:.3g}</text>')
    parts += [f'<text x="{left + x * width:.1f}" y="{top + height + 16}" text-anchor="middle">{text}</text>'
              for x, text in labels]
    parts += [polyline(points, COLOURS.get(name, "#333"), box, largest) for name, points in series.items()]
    return "\n".join(parts)


def document(panels, legend, width, height):
    keys = [f'<text x="{60 + 110 * i}" y="{height - 12}" fill="{colour}">&#9632; {name}</text>'
            for i, (name, colour) in enumerate(legend)]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
            f'font-size="12">\n<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(panels + keys) +
            "\n</svg>\n")


def plot(prefix, rows, server, names):
    counts = sorted({row["threads"] for row in rows})
    place = {count: i / max(1, len(counts) - 1) for i, count in enumerate(counts)}
    panels = []
    for column, workload in enumerate(OPERATIONS):
        for line, (figure, title) in enumerate((("mops_per_cpu_s", "M operations / CPU s"), ("peak_mib", "peak MiB"))):
            series = {name: [(place[row["threads"]], row[figure]) for row in rows
                             if row["workload"] == workload and row["system"] == name] for name in names}
            panels.append(panel(f"{workload}: {title}", series, [(place[count], count) for count in counts],
                                (60 + 300 * column, 40 + 260 * line, 220, 190)))
    with open(prefix + ".svg", "w", encoding="utf-8") as file:
        file.write(document(panels, [(name, COLOURS[name]) for name in names], 960, 560))
    last = server["samples"][-1][0]
    series = {"bemalloc": [(second / last, registered) for second, registered, _ in server["samples"]],
              "live": [(second / last, live) for second, _, live in server["samples"]]}
    chart = panel("registered and live MiB over seconds", series,
                  [(second / last, second) for second in range(0, last + 1, 30)], (60, 40, 560, 200))
    with open(prefix + "-footprint.svg", "w", encoding="utf-8") as file:
        file.write(document([chart], [("registered", COLOURS["bemalloc"]), ("live", "#333")], 660, 300))


def main():
    options = arguments()
    found = systems(options)
    rows = measure(options, found)
    server = run(options.workload, "bemalloc", None, "--workload", "server", "--threads", 4)
    pairs = {}
    if subprocess.run(["which", "valgrind"], capture_output=True).returncode == 0:
        pairs = {name: instructions_per_pair(options.workload, name, preload) for name, preload in found.items()}
    goals = all_goals(rows, pairs, server)
    names = list(found)
    print_table(rows, pairs, goals, names)
    if options.page:
        write_page(options.page, markdown(rows, pairs, goals, names, options))
    if options.plot:
        plot(options.plot, rows, server, names)
    if options.json:
        machine = {"cpus": os.cpu_count(), "kernel": platform.release(), "load": os.getloadavg()[0]}
        extra = [{"workload": "20 KB pairs", "system": name, "instructions": count} for name, count in pairs.items()]
        extra.append({"workload": "server", "system": "bemalloc", **server})
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"bench": "alloc", "machine": machine, "rows": rows + extra, "goals": goals}, file, indent=1)


if __name__ == "__main__":
    main()
