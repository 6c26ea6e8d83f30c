#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules of the source that a compiler does not check. Each is a function from a tree to its findings.

rules.py RULE [--root DIR]: exit status 0 when the tree keeps the rule, 1 with one finding a line when it does not,
77 when it cannot be checked here.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cpp_scan

CPP = {".h", ".hpp", ".c", ".cc"}
SKIPPED_FOLDERS = re.compile(r"^(build[^/]*|_install|\.git|\.cache|third_party)$")
SKIP_STATUS = 77

# Which layer may include which, by the longest matching prefix of the including file's path. A layer may always include
# itself. An entry that ends in .h is that one header.
LAYERS = {
    "shm_proto/": [],
    "p4_scheduler/packet/": ["shm_proto/base/"],
    "p4_scheduler/core/": ["shm_proto/base/", "p4_scheduler/packet/"],
    "p4_scheduler/switch/": ["shm_proto/base/", "p4_scheduler/packet/", "p4_scheduler/core/"],
    "libclient/": ["shm_proto/", "p4_scheduler/packet/"],
    "libclient/rpc/": ["libclient/include/sluice/"],
    "daemon/memory/": ["shm_proto/"],
    "daemon/sched/": ["shm_proto/"],
    "daemon/transport/": ["shm_proto/", "daemon/sched/shared_receives.h"],
    "daemon/rdma.": ["shm_proto/", "daemon/control/", "daemon/transport/"],
    "daemon/clients/": ["shm_proto/", "daemon/memory/"],
    "daemon/engine/": ["shm_proto/", "daemon/sched/", "daemon/memory/", "daemon/transport/transport.h"],
    "daemon/io/": [
        "shm_proto/",
        "daemon/clients/",
        "daemon/engine/",
        "daemon/sched/",
        "daemon/memory/",
        "daemon/transport/transport.h",
    ],
    "daemon/control/": ["shm_proto/", "daemon/"],
    "daemon/ctl/": ["shm_proto/"],
    "daemon/main.cc": ["shm_proto/", "daemon/"],
    "tests/": ["shm_proto/", "daemon/", "libclient/", "p4_scheduler/", "tests/"],
    "bench/": ["shm_proto/", "daemon/", "libclient/", "p4_scheduler/", "tests/"],
}
# A unit test of the daemon may use any part of the daemon; of the library, any part of the library.
TEST_LAYERS = {
    "shm_proto/": ["shm_proto/"],
    "p4_scheduler/": ["shm_proto/base/", "p4_scheduler/"],
    "daemon/": ["shm_proto/", "daemon/"],
    "libclient/": ["shm_proto/"],
    "libclient/rpc/": ["libclient/include/sluice/", "libclient/examples/sluice-ps/fake_sluice.h"],
}
TEST_FILE = re.compile(r"(_test|_testing|test_[a-z_]+)\.(cc|h)$")

# Files outside shm_proto that may use atomics, and why a queue or a mutex does not do.
ATOMICS_ALLOWED = {
    "daemon/io/mailbox.h": "the loop asks 'anything for me?' each turn and must not take a lock for it",
    "daemon/io/io_thread.h": "the control thread sees that the loop turns without asking it, for a hung loop cannot answer",
    "daemon/io/io_thread.cc": "as its header",
    "daemon/transport/verbs/event_flag.h": "the device's events are taken on the control thread, and an I/O thread asks at each look at a dying queue pair",
    "daemon/control/log.h": "any thread asks for the level, and counts what it may not write, without a lock",
    "daemon/control/log.cc": "as its header",
    "daemon/control/event_loop.h": "a signal handler may only set a lock-free flag",
    "libclient/src/fork_guard.h": "every call asks whether it runs in a forked child, at the price of one load",
    "libclient/src/fork_guard.cc": "makes the page that fork_guard.h reads",
    "libclient/src/granules.h": "any thread frees or sends a buffer; a lock there would be one on the data path",
    "libclient/src/granules.cc": "as granules.h",
    "libclient/src/inline_slab.h": "as granules.h, for small messages",
    "libclient/src/inline_slab.cc": "as granules.h, for small messages",
    "libclient/src/pool.h": "what a block is used for is read at every free",
    "libclient/src/pool.cc": "as pool.h",
    "libclient/src/mailbox.h": "each poll asks 'anything for me?' and must not take a lock for it",
    "libclient/src/mailbox.cc": "as mailbox.h",
    "libclient/src/control_thread.h": "a flag that ends the thread",
    "libclient/src/control_thread.cc": "as control_thread.h",
    "libclient/rpc/endpoint.h": "each turn asks 'anything posted?' and must not take a lock for it",
    "libclient/rpc/endpoint.cc": "as endpoint.h",
}

# Files with a function that is one long table, which splitting would not make easier to read.
TABLES = {"daemon/control/config_keys.cc"}

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70


def files(root, suffixes=None):
    """Every file of ours, as (path, name relative to root), in a fixed order."""
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if any(SKIPPED_FOLDERS.match(part) for part in parts) or not path.is_file():
            continue
        name = "/".join(parts)
        if name.startswith("tests/rules/") and path.suffix == ".py" and suffixes is None:
            continue  # The rules name what they forbid.
        if suffixes is None or path.suffix in suffixes:
            yield path, name


def text_of(path):
    return path.read_text(encoding="utf-8", errors="replace")


def first_line(path):
    with path.open("rb") as file:
        return file.readline(200).decode("utf-8", errors="replace")


def included(root, name, target):
    """The file of ours that `#include target` in file `name` means, or None."""
    for candidate in (target, f"{name.rpartition('/')[0]}/{target}", f"libclient/include/{target}"):
        if (root / candidate).is_file():
            return candidate
    return None


def layer_of(name, table):
    matches = [prefix for prefix in table if name.startswith(prefix)]
    return max(matches, key=len) if matches else None


def layers(root):
    for path, name in files(root, CPP):
        is_test = TEST_FILE.search(name) and not name.startswith(("tests/", "bench/"))
        table = TEST_LAYERS if is_test else LAYERS
        layer = layer_of(name, table)
        if layer is None:
            yield f"{name}: lies in no layer; add its folder to LAYERS in tests/rules/rules.py"
            continue
        for number, line in enumerate(text_of(path).splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*["<]([^">]+)[">]', line)
            target = match and included(root, name, match.group(1))
            if not target or target.startswith(layer):
                continue
            if not any(target == entry or (entry.endswith("/") and target.startswith(entry)) for entry in table[layer]):
                yield f"{name}:{number}: {layer} must not include {target}"


def atomics(root):
    used = re.compile(r"std::atomic|<atomic>|__atomic_|__sync_|\bstdatomic\.h\b|\b_Atomic\b")
    for path, name in files(root, CPP):
        if name.startswith(("shm_proto/", "tests/", "bench/")) or name in ATOMICS_ALLOWED or TEST_FILE.search(name):
            continue
        for number, line in enumerate(cpp_scan.without_comments(text_of(path)).splitlines(), 1):
            if used.search(line):
                yield f"{name}:{number}: atomics belong in shm_proto; a reasoned exception goes into ATOMICS_ALLOWED"


def verbs(root):
    for path, name in files(root, CPP):
        if name.startswith("daemon/transport/verbs/"):
            continue
        for number, line in enumerate(cpp_scan.without_comments(text_of(path)).splitlines(), 1):
            if re.search(r"\bibv_\w+|<infiniband/", line):
                yield f"{name}:{number}: verbs are called in daemon/transport/verbs alone"


def shared_memory_names(root):
    for path, name in files(root, CPP):
        for number, line in enumerate(cpp_scan.without_comments(text_of(path)).splitlines(), 1):
            if re.search(r"\bshm_open\b|/dev/shm|\bshared_memory_object\b|\bshmget\b", line):
                yield f"{name}:{number}: shared memory has no name: use a memfd and pass its descriptor"


def spdx(root):
    kinds = {".h", ".hpp", ".c", ".cc", ".py", ".sh", ".cmake", ".map"}
    for path, name in files(root):
        text = text_of(path)
        if path.suffix in kinds or path.name == "CMakeLists.txt" or text.startswith("#!"):
            if not any("SPDX-License-Identifier: Apache-2.0" in line for line in text.splitlines()[:2]):
                yield f"{name}:1: the first line (after #!) must be: SPDX-License-Identifier: Apache-2.0"


def limits(root):
    for path, name in files(root, CPP | {".py", ".sh"}):
        text = text_of(path)
        lines = text.count("\n")
        if lines > MAX_FILE_LINES:
            yield f"{name}:1: {lines} lines; at most {MAX_FILE_LINES}: split it by concern"
        if path.suffix not in CPP or name in TABLES:
            continue
        for start, length in cpp_scan.functions(text):
            if length > MAX_FUNCTION_LINES:
                yield f"{name}:{start}: a function of {length} lines; at most {MAX_FUNCTION_LINES}"


def machine_paths(root):
    found = re.compile(r"""(?:^|[\s"'=(:`])(/(?:home|root|work|Users|mnt)/[\w.+-]+|/tmp/(?:wt|build)[/-][\w.+-]+)""")
    for path, name in files(root):
        for number, line in enumerate(text_of(path).splitlines(), 1):
            match = found.search(line)
            if match:
                yield f"{name}:{number}: a path of somebody's machine: {match.group(1)}"


def links(root):
    """Relative links of the documents lead somewhere."""
    for path, name in files(root, {".md"}):
        for number, line in enumerate(text_of(path).splitlines(), 1):
            for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", line):
                if not (path.parent / target).exists():
                    yield f"{name}:{number}: there is no {target}"


def promises(root):
    """Tests that docs/reliability.md names exist."""
    page = root / "docs/reliability.md"
    if not page.is_file():
        return
    known = set()
    for path, _ in files(root, {".cc"}):
        for suite, test in re.findall(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)", text_of(path), re.MULTILINE):
            known.add(f"{suite}.{test}")
    for number, line in enumerate(text_of(page).splitlines(), 1):
        for name in re.findall(r"`(\w+\.\w+)`", line):
            if name[0].isupper() and name not in known:
                yield f"docs/reliability.md:{number}: there is no test {name}"


def format_cpp(root):
    if not shutil.which("clang-format"):
        return None
    names = [name for _, name in files(root, CPP)]
    if not names:
        return []
    done = subprocess.run(
        ["clang-format", "--dry-run", "-Werror", *names], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return []
    bad = sorted({line.partition(":")[0] for line in done.stderr.splitlines() if "clang-format-violations" in line})
    return [f"{name}: not formatted; run: clang-format -i {name}" for name in bad] or [done.stderr]


def shell(root):
    if not shutil.which("shellcheck"):
        return None
    scripts = [name for path, name in files(root) if path.suffix == ".sh" or re.match(r"#!.*\bbash\b", first_line(path))]
    if not scripts:
        return []
    done = subprocess.run(
        # SC2034: variables of a library are used by who sources it.
        ["shellcheck", "--severity=warning", "--shell=bash", "--exclude=SC2034", "--format=gcc", *scripts],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return (done.stdout + done.stderr).splitlines()


RULES = {
    "layers": layers,
    "atomics": atomics,
    "verbs": verbs,
    "shared_memory_names": shared_memory_names,
    "spdx": spdx,
    "limits": limits,
    "machine_paths": machine_paths,
    "links": links,
    "promises": promises,
    "format": format_cpp,
    "shell": shell,
}


def main():
    parser = argparse.ArgumentParser(description="Checks one rule of the source.")
    parser.add_argument("rule", choices=sorted(RULES))
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    arguments = parser.parse_args()
    findings = RULES[arguments.rule](arguments.root)
    if findings is None:
        print(f"skipped: {arguments.rule} needs a program that is not installed (scripts/setup)")
        return SKIP_STATUS
    findings = list(findings)
    for finding in findings:
        print(finding)
    print(f"{arguments.rule}: {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
