#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Medians of the rounds of scripts/bench shm, as a table and as JSON."""

import table

FIGURES = ("p50_us", "mean_us", "p99_us", "operations_per_s", "mean_operations_per_s", "gb_per_s")
ORDER = {name: i for i, name in enumerate(("cache line", "bare ring", "eventfd", "ucx", "sluice spin", "sluice event"))}
NOTES = """
  Two CPUs: the application's thread on one, the daemon's I/O thread on the other; likewise the two threads or processes
  of the others. A round trip of Sluice is a message from the application through the daemon to itself (submission ring,
  daemon, completion ring); 8 B lie in the ring, longer ones in a buffer each, which nobody reads or writes but for 8
  bytes, and which the daemon copies once. rate: as many messages at a time as Sluice takes, counted where they arrive;
  one thread sends and receives. spin: nobody sleeps; event: daemon.idle = "event" and sluice_wait().
  cache line: two threads bounce it, the mean of 32 in a row counting as one. eventfd: two threads wake each other.
  bare ring: shm_proto/ring.h from thread to thread, 64 B entries, published and released up to 32 and 1,024 at a time.
  ucx: ucx_perftest between two processes over POSIX shared memory, spinning; tag_lat -s 8, twice its one-way time, and
  tag_bw -s 64, sender to receiver.
  op/s is the ninth decile of slices of 1 ms (of ucx: the mean): it and p50 change least with what else the machine does."""


def goals(rows):
    """Sluice beside what the machine can do, in this very run."""
    result = table.Goals(rows)
    spin = ("round_trip_8B", "sluice spin", "p50_us")
    result.add_ratio("shm_round_trip_to_cache_line", "spinning round trip over a cache line's", spin,
                     ("round_trip_8B", "cache line", "p50_us"), 2.5, "lower")
    result.add_ratio("shm_round_trip_to_ucx", "spinning round trip over UCX's", spin, ("round_trip_8B", "ucx", "p50_us"),
                     1.0, "lower")
    result.add_ratio("shm_rate_to_ring", "spinning rate over the bare ring's",
                     ("rate_8B", "sluice spin", "operations_per_s"), ("rate_8B", "bare ring", "operations_per_s"), 0.3,
                     "higher")
    result.add_ratio("shm_event_to_eventfd", "event-driven round trip over an eventfd ping-pong",
                     ("round_trip_8B", "sluice event", "p50_us"), ("round_trip_8B", "eventfd", "p50_us"), 1.3, "lower")
    return result.list


def main():
    runs, json_file = table.arguments(__doc__)
    rows = sorted(table.medians(runs, FIGURES),
                  key=lambda row: (row["workload"].startswith("rate"), len(row["workload"]), row["workload"],
                                   ORDER[row["system"]]))
    about, reached = table.machine(), goals(rows)
    table.print_machine(about, f"Medians of {rows[0]['rounds']} rounds, with the lowest and highest.")
    trips = [row for row in rows if row["workload"].startswith("round_trip")]
    table.print_rows(("workload", "system", "p50 us", "lowest", "highest", "mean us", "p99 us"),
                     [(row["workload"], row["system"], *table.spread(row, "p50_us"), table.text(row["mean_us"], 2),
                       table.text(row["p99_us"], 2)) for row in trips])
    table.print_rows(("workload", "system", "million op/s", "lowest", "highest", "GB/s"),
                     [(row["workload"], row["system"], *table.spread(row, "operations_per_s", 1e6, 3),
                       table.text(row["gb_per_s"], 3)) for row in rows if row not in trips])
    print(NOTES)
    table.print_goals(reached)
    table.write_json(json_file, "shm", about, rows, reached)


if __name__ == "__main__":
    main()
