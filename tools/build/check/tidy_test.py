"""Tests of tidy.py, with a program in clang-tidy's place."""

import io
import json
import os
import stat
import tempfile
import unittest
import unittest.mock

import progress
import tidy
import tree

# Notes what it was called with, and finds the word "bad" in the last argument.
_PROGRAM = """#!/bin/sh
echo "$*" >> calls
for file; do :; done
[ "$file" != core/crash.cc ] || exit 3
grep -q bad "$file" || exit 0
echo "$PWD/$file:1:2: error: bad [some-check]"
exit 1
"""


class TidyTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.program = os.path.join(folder.name, "clang-tidy")
        for patch in (unittest.mock.patch.object(tree, "ROOT", folder.name),
                      unittest.mock.patch.object(tidy, "program", lambda: self.program)):
            patch.start()
            self.addCleanup(patch.stop)
        self.write("clang-tidy", _PROGRAM)
        os.chmod(self.program, stat.S_IRWXU)
        self.write(".clang-tidy", "Checks: some-check")
        self.write("core/a.h", '#include "sherd/core/b.h"')
        self.write("core/b.h", "")
        self.write("core/a.cc", '#include "sherd/core/a.h"\n#include "sherd/core/made.pb.h"')
        self.write("core/a_test.cc", '#include <core/a.h>')
        self.build("-Wall")

    @staticmethod
    def write(name, text):
        path = os.path.join(tree.ROOT, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def build(self, option, files=("core/a.cc", "core/a_test.cc")):
        self.write("compile_commands.json", json.dumps([
            {"directory": tree.ROOT, "file": os.path.join(tree.ROOT, name),
             "arguments": ["gcc", option, name]}
            for name in files + ("external/dependency.cc",)]))

    def looked_at(self):
        """Runs the check; ([files it looked at], findings)."""
        tidy._content.cache_clear()  # As a new process would begin.
        self.write("calls", "")
        findings = tidy.check(progress.Progress(out=io.StringIO(), terminal=False))
        self.calls = tree.read("calls").splitlines()
        return sorted(call.split()[-1] for call in self.calls), findings

    def test_what_is_clean_and_the_same_is_not_looked_at_again(self):
        both = ["core/a.cc", "core/a_test.cc"]
        self.assertEqual(self.looked_at(), (both, []))
        self.assertEqual(self.looked_at(), ([], []))
        self.write("core/b.h", "int b;")
        self.assertEqual(self.looked_at(), (["core/a.cc"], []))
        self.write("core/a_test.cc", "int a;")
        self.assertEqual(self.looked_at(), (["core/a_test.cc"], []))
        self.write(".clang-tidy", "Checks: others")
        self.assertEqual(self.looked_at(), (both, []))
        self.build("-O1")
        self.assertEqual(self.looked_at(), (both, []))

    def test_findings_are_told_until_they_are_gone(self):
        self.write("core/a.cc", "bad")
        for _ in range(2):
            files, findings = self.looked_at()
            self.assertIn("core/a.cc", files)
            self.assertEqual(findings, [
                tree.ROOT + "/core/a.cc:1:2: error: bad [some-check]"])
        self.write("core/a.cc", "good")
        self.assertEqual(self.looked_at(), (["core/a.cc"], []))

    def test_a_program_that_fails_is_a_finding(self):
        self.write("core/crash.cc", "")
        self.build("-Wall", files=("core/crash.cc",))
        self.assertEqual(self.looked_at()[1], ["core/crash.cc: clang-tidy ended with 3"])
        self.assertEqual(self.looked_at()[0], ["core/crash.cc"])

    def test_paths_are_followed_where_they_are_not_run(self):
        self.looked_at()
        for call in self.calls:
            self.assertEqual("-clang-analyzer" in call, call.endswith("_test.cc"), call)


if __name__ == "__main__":
    unittest.main()
