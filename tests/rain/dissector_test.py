#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Wireshark dissector against rain_packets.json: every field of every packet. Needs tshark; 77 without."""

import argparse
import json
import shutil
import struct
import subprocess
import sys
import tempfile

KINDS = ("TASK", "TOKEN", "DISPATCH", "REPLY", "REJECT", "AFFINE", "PROBE", "RESET")
FIELDS = ("kind", "flags", "code", "reason", "reset", "type", "slice", "fragment", "fragments", "client", "size", "request",
          "epoch", "member", "ticket", "probe.tasks_seen", "probe.tokens_seen", "probe.tokens_held", "queue_tasks",
          "switch_ns", "payload", "payload.crc32c", "payload.length", "bad_length", "bad_version")


def pcap(frames):
    """A capture file; the frames are a microsecond apart."""
    rows = [struct.pack("<IIIIII", 0, i, len(frame), len(frame), 0, 0)[:16] + frame for i, frame in enumerate(frames)]
    return struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + b"".join(rows)


def dissect(script, frames):
    with tempfile.NamedTemporaryFile(suffix=".pcap") as file:
        file.write(pcap(frames))
        file.flush()
        command = ["tshark", "-r", file.name, "-X", f"lua_script:{script}", "-T", "fields", "-E", "separator=|",
                   *(word for name in FIELDS for word in ("-e", f"rain.{name}"))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [dict(zip(FIELDS, line.split("|"))) for line in done.stdout.splitlines()]


def expected(packet):
    header = packet["header"]
    want = {name: str(header.get(name, 0)) for name in ("type", "slice", "fragment", "fragments", "client", "size",
                                                        "request", "epoch", "member", "queue_tasks", "switch_ns")}
    kind, answer = header["kind"], header.get("flags", 0) & 4
    want["kind"] = str(KINDS.index(kind) + 1)
    want["flags"] = f"0x{header.get('flags', 0):02x}"
    want[{"REJECT": "reason", "RESET": "reset"}.get(kind, "code")] = str(header.get("code", 0))
    want["probe.tasks_seen" if answer else "ticket"] = str(header.get("ticket", 0))
    if answer:
        want["probe.tokens_seen"], want["probe.tokens_held"] = (str(int(header["data"][i:i + 8], 16)) for i in (0, 8))
    elif header.get("size", 0) > 8:
        want["payload.crc32c"] = "0x" + header["data"][:8]
        want["payload.length"] = str(int(header["data"][8:], 16))
    if not header.get("flags", 0) & 2:
        want["payload"] = packet["payload"]
    return want


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packets", required=True)
    parser.add_argument("--script", required=True)
    options = parser.parse_args()
    if not shutil.which("tshark"):
        print("skipped: there is no tshark (scripts/setup installs it)")
        sys.exit(77)
    with open(options.packets, encoding="utf-8") as file:
        packets = [packet for packet in json.load(file)["packets"] if packet["destination"]["port"] == 17000
                   or packet["source"]["port"] == 17000]
    frames = [bytes.fromhex(packet["frame"]) for packet in packets]
    seen = dissect(options.script, frames)
    bad = 0
    for packet, got in zip(packets, seen, strict=True):
        want = expected(packet)
        for name in FIELDS:
            if got[name] != want.get(name, ""):
                bad += 1
                print(f"{packet['name']}: rain.{name} is {got[name]!r}, not {want.get(name, '')!r}")
    # Broken packets are marked, not misread.
    other_version, other_size = bytearray(frames[0]), bytearray(frames[0])
    other_version[42], other_size[53] = 9, 9
    for frame, mark in ((other_version, "bad_version"), (other_size, "bad_length"), (frames[0], None)):
        got = dissect(options.script, [bytes(frame)])[0]
        marks = [name for name in ("bad_version", "bad_length") if got[name]]
        if marks != ([mark] if mark else []):
            bad += 1
            print(f"marked as {marks}, not as {mark}")
    print(f"{len(packets)} packets, {bad} differences")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
