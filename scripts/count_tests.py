#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the test cases of one ctest run: GoogleTest's own results where a test left them, else ctest's verdict.

A binary that crashed or was killed leaves no results, and one that a sanitizer ends leaves good ones: ctest's verdict
adds one failure in both cases, so that nothing bad is ever counted as passed.
"""

import argparse
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def gtest_cases(path):
    """(name, 'passed' | 'failed' | 'skipped', message) of each case in a GoogleTest result file."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        failure, skip = case.find("failure"), case.find("skipped")
        if failure is not None:
            yield name, "failed", failure.get("message", "")
        elif skip is not None:
            yield name, "skipped", skip.get("message", "")
        elif case.get("status") == "run":
            yield name, "passed", ""


def ctest_cases(junit, results):
    for test in ElementTree.parse(junit).getroot().iter("testcase"):
        name, status = test.get("name"), test.get("status")
        result_file = results / f"{name}.xml"
        cases = []
        if result_file.exists():
            try:
                cases = list(gtest_cases(result_file))
            except ElementTree.ParseError:
                pass  # Killed while writing: ctest's verdict counts.
        for case, verdict, message in cases:
            yield f"{name}: {case}", verdict, message
        if status == "fail" and not any(verdict == "failed" for _, verdict, _ in cases):
            failure = test.find("failure")
            yield name, "failed", "" if failure is None else failure.get("message", "")
        elif status not in ("run", "fail"):
            skip = test.find("skipped")
            yield name, "skipped", status if skip is None else skip.get("message", status)
        elif not cases and status == "run":
            yield name, "passed", ""


def first_lines(message, limit=12):
    lines = [line for line in message.strip().splitlines() if line.strip()]
    return "\n".join("        " + line for line in lines[:limit])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--junit", type=pathlib.Path, required=True)
    parser.add_argument("--results", type=pathlib.Path, required=True, help="folder of GoogleTest's result files")
    parser.add_argument("--totals", type=pathlib.Path, required=True, help="gets: passed failed skipped")
    arguments = parser.parse_args()
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    for name, verdict, message in ctest_cases(arguments.junit, arguments.results):
        totals[verdict] += 1
        if verdict != "passed":
            print(f"    {verdict}: {name}\n{first_lines(message)}".rstrip())
    arguments.totals.write_text(f"{totals['passed']} {totals['failed']} {totals['skipped']}\n")
    print("    {passed} passed, {failed} failed, {skipped} skipped".format(**totals))
    return 0


if __name__ == "__main__":
    sys.exit(main())
