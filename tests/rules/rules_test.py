#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every rule finds what breaks it and leaves alone what keeps it."""

import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cpp_scan
import rules

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


class RuleTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def findings(self, rule):
        return list(rules.RULES[rule](self.root))

    def test_a_layer_may_include_below_but_not_above_or_beside(self):
        self.write("shm_proto/ring.h", SPDX)
        self.write("daemon/memory/pool.h", SPDX + '#include "shm_proto/ring.h"\n')
        self.write("daemon/clients/client.h", SPDX + '#include "daemon/memory/pool.h"\n')
        self.assertEqual(self.findings("layers"), [])
        self.write("daemon/sched/bad.h", SPDX + '#include "daemon/memory/pool.h"\n')
        self.write("shm_proto/bad.h", SPDX + '#include "daemon/memory/pool.h"\n')
        self.assertEqual(len(self.findings("layers")), 2)

    def test_the_engine_sees_the_transport_interface_and_nothing_else_of_it(self):
        self.write("daemon/transport/transport.h", SPDX)
        self.write("daemon/transport/tcp/tcp.h", SPDX)
        self.write("daemon/engine/good.cc", SPDX + '#include "daemon/transport/transport.h"\n')
        self.assertEqual(self.findings("layers"), [])
        self.write("daemon/engine/bad.cc", SPDX + '#include "daemon/transport/tcp/tcp.h"\n')
        self.assertEqual(
            self.findings("layers"), ["daemon/engine/bad.cc:2: daemon/engine/ must not include daemon/transport/tcp/tcp.h"]
        )

    def test_daemon_and_library_never_include_each_other(self):
        self.write("libclient/include/sluice/sluice.h", SPDX)
        self.write("daemon/io/io.h", SPDX)
        self.write("daemon/main.cc", SPDX + "#include <sluice/sluice.h>\n")
        self.write("libclient/client.cc", SPDX + '#include "daemon/io/io.h"\n')
        self.assertEqual(len(self.findings("layers")), 2)

    def test_a_file_outside_every_layer_is_found(self):
        self.write("misc/thing.cc", SPDX)
        self.assertEqual(len(self.findings("layers")), 1)

    def test_atomics_outside_the_shared_part(self):
        self.write("shm_proto/ring.h", "#include <atomic>\nstd::atomic<int> tail;\n")
        self.write("daemon/io/loop.h", "// std::atomic would be wrong here\n")
        self.assertEqual(self.findings("atomics"), [])
        self.write("daemon/io/loop.h", "std::atomic<int> flag;\n")
        self.assertEqual(len(self.findings("atomics")), 1)

    def test_atomics_allowed_files_exist(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        for name, reason in rules.ATOMICS_ALLOWED.items():
            self.assertTrue((root / name).is_file(), name)
            self.assertTrue(reason)

    def test_raw_verbs_calls(self):
        self.write("daemon/transport/verbs/wrapper.cc", "ibv_post_send(a, b, c);\n")
        self.assertEqual(self.findings("verbs"), [])
        self.write("daemon/engine/engine.cc", "ibv_post_send(a, b, c);\n")
        self.assertEqual(len(self.findings("verbs")), 1)

    def test_named_shared_memory(self):
        self.write("daemon/memory/pool.cc", "memfd_create(name, 0);  // never /dev/shm\n")
        self.assertEqual(self.findings("shared_memory_names"), [])
        self.write("daemon/memory/pool.cc", 'shm_open("/pool", O_RDWR, 0600);\n')
        self.assertEqual(len(self.findings("shared_memory_names")), 1)

    def test_missing_spdx_line(self):
        self.write("a.cc", SPDX)
        self.write("script", "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n")
        self.assertEqual(self.findings("spdx"), [])
        self.write("b.cc", "int x;\n")
        self.write("script2", "#!/bin/sh\ntrue\n")
        self.write("x/CMakeLists.txt", "project(x)\n")
        self.assertEqual(len(self.findings("spdx")), 3)

    def test_long_files_and_functions(self):
        body = "  Do();\n" * 68
        self.write("a.cc", "namespace n {\nvoid F() {\n" + body + "}\n}\n")
        self.assertEqual(self.findings("limits"), [])
        self.write("a.cc", "namespace n {\nvoid F() {\n" + body + "  Do();\n}\n}\n")
        self.assertEqual(self.findings("limits"), ["a.cc:2: a function of 71 lines; at most 70"])
        self.write("a.cc", "int x;\n" * 801)
        self.assertEqual(len(self.findings("limits")), 1)

    def test_paths_of_a_machine(self):
        self.write("good.md", "Lies in /usr/lib, /run/sluice/ or example.org/home/page.\n")
        self.assertEqual(self.findings("machine_paths"), [])
        self.write("bad.md", "Lies in /home/somebody/project.\n")
        self.assertEqual(len(self.findings("machine_paths")), 1)

    def test_links_that_lead_nowhere(self):
        self.write("docs/a.md", "[b](b.md#part) [web](https://example.org/x) [up](../c.md)\n")
        self.write("docs/b.md", "")
        self.assertEqual(self.findings("links"), ["docs/a.md:1: there is no ../c.md"])

    def test_promises_whose_test_is_gone(self):
        self.write("a_test.cc", "TEST(Ring, WrapsRound) {}\nTEST_F(\n    Ring, Longer) {}\n")
        self.write("docs/reliability.md", "| wraps | `Ring.WrapsRound`, `Ring.Longer` |\n")
        self.assertEqual(self.findings("promises"), [])
        self.write("docs/reliability.md", "| wraps | `Ring.Wraps` |\n")
        self.assertEqual(self.findings("promises"), ["docs/reliability.md:1: there is no test Ring.Wraps"])

    @unittest.skipUnless(shutil.which("clang-format"), "clang-format is not installed")
    def test_unformatted_code(self):
        self.write(".clang-format", "BasedOnStyle: Google\n")
        self.write("a.cc", "int x;\n")
        self.assertEqual(self.findings("format"), [])
        self.write("a.cc", "int   x ;\n")
        self.assertEqual(self.findings("format"), ["a.cc: not formatted; run: clang-format -i a.cc"])

    @unittest.skipUnless(shutil.which("shellcheck"), "shellcheck is not installed")
    def test_shell_mistakes(self):
        self.write("good", '#!/usr/bin/env bash\nif [[ "$1" == x ]]; then echo; fi\n')
        self.assertEqual(self.findings("shell"), [])
        self.write("bad", '#!/usr/bin/env bash\ncd "$1"\nx=`echo $(ls *.txt`)\n')
        self.assertNotEqual(self.findings("shell"), [])


class ScanTest(unittest.TestCase):
    def lengths(self, text):
        return [length for _, length in cpp_scan.functions(text)]

    def test_methods_constructors_and_lambdas(self):
        text = """class A {
 public:
  A() : x_{1},
        y_{2} {
    Do();
  }
  int B() const { return x_; }
  int c[2] = {1, 2};
};
void A::C() {
  auto f = [] {
    return 1;
  };
}
"""
        self.assertIn(3, self.lengths(text))  # The constructor's body.
        self.assertIn(5, self.lengths(text))  # C(), its lambda included.
        self.assertIn(1, self.lengths(text))

    def test_braces_in_strings_and_comments_do_not_count(self):
        text = 'void F() {\n  // {\n  Use("{{", \'{\', R"({)");\n}\nvoid G() {\n}\n'
        self.assertEqual(self.lengths(text), [4, 2])


if __name__ == "__main__":
    unittest.main()
