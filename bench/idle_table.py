#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Medians of the rounds of scripts/bench idle, as a table and as JSON."""

import table

FIGURES = ("seconds", "cpu_percent_of_core", "sockets", "connects_per_s", "pss_bytes_per_socket", "rss_bytes_per_socket")
NOTES = """
  idle_cpu: what all threads of a daemon with default settings ran while clients were attached, each with a channel, and
  did nothing. sockets: one client connected 10,000 sockets to one service of the other daemon, 64 at a time, after a
  first one that joined the daemons; memory is what the daemon grew by. PSS counts a page that is shared with an
  application as a half."""


def goals(rows):
    result = table.Goals(rows)
    result.add("idle_cpu", "CPU of an idle daemon with 100 clients, % of a core",
               result.figure("idle_cpu", "100 clients", "cpu_percent_of_core"), 1.0, "lower")
    sizes = [result.figure("sockets", side, "pss_bytes_per_socket") for side in ("connecting daemon", "accepting daemon")]
    result.add("idle_socket_bytes", "memory of a socket in the daemon that needs more, bytes",
               None if None in sizes else max(sizes), 1024, "lower")
    return result.list


def main():
    runs, json_file = table.arguments(__doc__)
    rows = list(table.medians(runs, FIGURES))
    about, reached = table.machine(), goals(rows)
    table.print_machine(about, f"Rounds: {rows[0]['rounds']}; medians, with the lowest and highest.")
    table.print_rows(("workload", "system", "% of a core", "lowest", "highest"),
                     [(row["workload"], row["system"], *table.spread(row, "cpu_percent_of_core", digits=3))
                      for row in rows if row["workload"] == "idle_cpu"])
    table.print_rows(("workload", "system", "PSS B/socket", "lowest", "highest", "RSS B/socket", "connects/s", "lowest",
                      "highest"),
                     [(row["workload"], row["system"], *table.spread(row, "pss_bytes_per_socket", digits=0),
                       table.text(row["rss_bytes_per_socket"], 0), *table.spread(row, "connects_per_s", digits=0))
                      for row in rows if row["workload"] == "sockets"])
    print(NOTES)
    table.print_goals(reached)
    table.write_json(json_file, "idle", about, rows, reached)


if __name__ == "__main__":
    main()
