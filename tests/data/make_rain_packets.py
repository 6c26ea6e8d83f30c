#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes rain_packets.json: one frame of each kind, byte by byte as docs/rain-protocol.md has it.

It knows nothing of the C++ codec, and zlib and a CRC-32C of its own stand for the checksums. Whoever builds or parses
Rain packets is held against its output. make_rain_packets.py [--check FILE]: prints, or compares.
"""

import argparse
import ipaddress
import json
import struct
import sys
import zlib

SWITCH = {"mac": "02:00:00:00:00:fe", "ip": "10.77.0.254", "port": 17000}
CLIENT = {"mac": "02:00:00:00:00:01", "ip": "10.77.0.1", "port": 17001}
AGENT = {"mac": "02:00:00:00:00:02", "ip": "10.77.0.2", "port": 17000}
KINDS = {"TASK": 1, "TOKEN": 2, "DISPATCH": 3, "REPLY": 4, "REJECT": 5, "AFFINE": 6, "PROBE": 7, "RESET": 8}
QUEUED, PREWRITTEN, ANSWER = 1, 2, 4
UC_WRITE_ONLY, RC_WRITE_ONLY = 0x2A, 0x0A


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def ones_complement(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def udp_frame(source, destination, payload, source_port=None, destination_port=None):
    mac = [bytes.fromhex(end["mac"].replace(":", "")) for end in (destination, source)]
    ip = [ipaddress.ip_address(end["ip"]).packed for end in (source, destination)]
    udp = struct.pack(">HHHH", source_port or source["port"], destination_port or destination["port"], 8 + len(payload), 0)
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp) + len(payload), 0, 0x4000, 64, 17, 0) + ip[0] + ip[1]
    head = head[:10] + struct.pack(">H", ones_complement(head)) + head[12:]
    return mac[0] + mac[1] + b"\x08\x00" + head + udp + payload


def header(fields):
    f = {name: 0 for name in ("flags", "code", "type", "slice", "fragment", "fragments", "client", "size", "request",
                              "epoch", "member", "ticket", "queue_tasks", "switch_ns")} | fields
    return struct.pack(">BBBBBBBBHHIHHIII", 1, KINDS[f["kind"]], f["flags"], f["code"], f["type"], f["slice"],
                       f["fragment"], f["fragments"], f["client"], f["size"], f["request"], f["epoch"], f["member"],
                       f["ticket"], f["queue_tasks"], f["switch_ns"]) + bytes.fromhex(f.get("data", "")).ljust(8, b"\0")


def pad(payload):
    return payload + bytes(-len(payload) % 4)


def with_payload(fields, payload):
    large = len(payload) > 8
    data = struct.pack(">II", crc32c(payload), len(payload)) if large else payload
    return fields | {"size": len(payload), "data": data.ljust(8, b"\0").hex()}


def packet(name, source, destination, fields, payload=b""):
    follows = len(payload) > 8 and not fields.get("flags", 0) & PREWRITTEN
    fields = fields if fields["kind"] in ("TOKEN", "PROBE", "RESET") else with_payload(fields, payload)
    body = pad(payload) + bytes(4) if follows else b""
    return {"name": name, "source": source, "destination": destination, "header": fields, "payload": payload.hex(),
            "frame": udp_frame(source, destination, header(fields) + body).hex()}


def icrc(ip_packet):
    masked = bytearray(ip_packet)
    for offset in (1, 8, 10, 11, 26, 27, 32):  # TOS, TTL, both checksums, byte 4 of the BTH.
        masked[offset] = 0xFF
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + bytes(masked)))


def write(name, fields, data):
    bth = struct.pack(">BBHII", fields["opcode"], 0x40, 0xFFFF, fields["queue_pair"],
                      fields["psn"] | (0x80000000 if fields["wants_ack"] else 0))
    reth = struct.pack(">QII", fields["address"], fields["rkey"], len(data))
    frame = udp_frame(SWITCH, AGENT, bth + reth + data + bytes(4), 0xC000 | (fields["queue_pair"] & 0x3FFF), 4791)
    frame = frame[:-4] + icrc(frame[14:-4])
    return {"name": name, "source": SWITCH, "destination": AGENT, "write": fields, "data": data.hex(), "frame": frame.hex()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", metavar="FILE")
    options = parser.parse_args()

    small, large = b"get k1", bytes((i * 7 + 3) & 0xFF for i in range(101))
    request = {"type": 3, "fragments": 1, "client": 0x0102, "request": 0xDEADBEEF}
    queued = {"slice": 2, "epoch": 7, "member": 0x0203, "ticket": 0xFFFFFFFE, "queue_tasks": 70000, "switch_ns": 12345}
    worker = {"epoch": 7, "member": 0x0203}
    packets = [
        packet("small task", CLIENT, SWITCH, request | {"kind": "TASK"}, small),
        packet("empty task", CLIENT, SWITCH, request | {"kind": "TASK"}),
        packet("task of 8 bytes", CLIENT, SWITCH, request | {"kind": "TASK"}, large[:8]),
        packet("task of 9 bytes", CLIENT, SWITCH, request | {"kind": "TASK"}, large[:9]),
        packet("large task", CLIENT, SWITCH, request | {"kind": "TASK", "fragments": 3}, large),
        packet("later packet", CLIENT, SWITCH, request | worker | {"kind": "AFFINE", "fragment": 2, "fragments": 3}, large),
        packet("token", AGENT, SWITCH, worker | {"kind": "TOKEN"}),
        packet("dispatch at once", SWITCH, AGENT, request | worker | {"kind": "DISPATCH", "slice": 2, "ticket": 5}, large),
        packet("dispatch from the queue", SWITCH, AGENT, request | queued | {"kind": "DISPATCH", "flags": QUEUED}, small),
        packet("descriptor of a large task", SWITCH, AGENT,
               request | queued | {"kind": "DISPATCH", "flags": QUEUED | PREWRITTEN, "fragments": 0}, large),
        packet("reply", AGENT, SWITCH, request | queued | {"kind": "REPLY"}, large),
        packet("reject: queue full", SWITCH, CLIENT, request | {"kind": "REJECT", "code": 1, "slice": 2}, small),
        packet("reject of a token", SWITCH, AGENT, worker | {"kind": "REJECT", "code": 5, "slice": 2}),
        packet("probe", AGENT, SWITCH, worker | {"kind": "PROBE"}),
        packet("answer to a probe", SWITCH, AGENT, worker | {
            "kind": "PROBE", "flags": ANSWER, "slice": 2, "ticket": 0x01020304, "queue_tasks": 4,
            "data": "0102030000000006"}),
        packet("reset", CLIENT, SWITCH, {"kind": "RESET", "code": 3, "slice": 2, "member": 0x0203, "ticket": 0xFFFFFFF0}),
    ]
    slot = with_payload(request | {"kind": "TASK", "fragments": 3, "slice": 2,
                                   "ticket": 0xFFFFFFFE, "queue_tasks": 12}, large)
    uc = {"opcode": UC_WRITE_ONLY, "wants_ack": False, "queue_pair": 0x00ABCDEF, "psn": 0xFFFFFF,
          "address": 0x00007F1200402000, "rkey": 0x11223344}
    writes = [write("replica of the large task", uc, header(slot) + pad(large)),
              write("the same over RC", uc | {"opcode": RC_WRITE_ONLY, "wants_ack": True, "psn": 0}, header(slot) + pad(large)),
              write("nothing", uc, b"")]
    text = json.dumps({"packets": packets, "writes": writes}, indent=1) + "\n"
    if options.check:
        with open(options.check, encoding="utf-8") as file:
            if file.read() != text:
                sys.exit(f"{options.check} is not what {sys.argv[0]} makes")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
