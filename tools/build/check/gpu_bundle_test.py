"""Tests of tools/gpu: what the runner of a bundle makes of its programs."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest

import tree

_XML = """cat > "${GTEST_OUTPUT#xml:}" <<END
<testsuites><testsuite name="S">%s</testsuite></testsuites>
END
"""
_CASE = '<testcase name="%s" status="run" result="completed" classname="S">%s</testcase>'
_PASSED = _XML % _CASE % ("passes", "")
_SKIPPED = _XML % _CASE % ("skips", '<skipped message="x.cc:5&#x0A;no GPU"/>')
_FAILED = _XML % _CASE % ("fails", '<failure message="x.cc:5&#x0A;wrong"/>') + "exit 1\n"


class RunTest(unittest.TestCase):

    def setUp(self):
        self.top = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.top)
        shutil.copy(os.path.join(tree.ROOT, "tools/gpu/run_gpu_tests.py"),
                    os.path.join(self.top, "run"))
        shutil.copy(os.path.join(tree.ROOT, "tools/build/check/results.py"), self.top)
        self.programs = []

    def add(self, name, script, benchmark=False, seconds=60, env=None):
        path = os.path.join(self.top, "files", "pkg", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/bash\n" + script)
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        self.programs.append({"name": "//pkg:" + name, "program": "pkg/" + name,
                              "args": ["an argument"], "env": env or {}, "seconds": seconds,
                              "benchmark": benchmark})

    def run_all(self, *arguments):
        with open(os.path.join(self.top, "manifest.json"), "w", encoding="utf-8") as file:
            json.dump({"glibc": "2.34", "programs": self.programs}, file)
        done = subprocess.run(
            [sys.executable, "-B", os.path.join(self.top, "run"), "--nccl=/the/libnccl.so.2",
             "--log=" + os.path.join(self.top, "log"), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return done.returncode, done.stdout

    def log(self):
        with open(os.path.join(self.top, "log"), encoding="utf-8") as file:
            return file.read()

    def test_it_counts_cases_and_says_what_benchmarks_said(self):
        self.add("good", _PASSED)
        self.add("fast", 'echo "4.2 TB/s $*"\n', benchmark=True)
        code, output = self.run_all("--python=/the/python3")
        self.assertEqual(code, 0, output)
        self.assertIn("4.2 TB/s an argument --cases=^gpu_ --world=1", output)
        self.assertIn("--python=/the/python3 --json=%s/log.jsonl" % self.top, output)
        self.assertEqual(output.split("\n")[-2], "2 passed, 0 failed, 0 skipped")

    def test_failures_are_named(self):
        self.add("good", _PASSED)
        self.add("bad", _FAILED)
        self.add("crash", "kill -SEGV $$\n")
        self.add("liar", _PASSED + "exit 3\n")
        self.add("slow", "exit 1\n", benchmark=True)
        code, output = self.run_all()
        self.assertEqual(code, 1)
        for text in ["//pkg:bad S.fails: wrong", "//pkg:crash: ended with -11",
                     "//pkg:liar: ended with 3", "//pkg:slow: ended with 1",
                     "2 passed, 4 failed, 0 skipped"]:
            self.assertIn(text, output)

    def test_a_skip_is_no_success_unless_it_is_said_to_be(self):
        self.add("skips", _SKIPPED)
        code, output = self.run_all()
        self.assertEqual(code, 1)
        self.assertIn("skipped 1: no GPU (//pkg:skips S.skips)", output)
        self.assertEqual(self.run_all("--allow-skips")[0], 0)

    def test_what_does_not_end_is_ended(self):
        self.add("hangs", "sleep 1000 & wait\n", seconds=-9)
        code, output = self.run_all()
        self.assertEqual(code, 1)
        self.assertIn("//pkg:hangs: no end after -9 s", output)

    def test_nothing_begins_after_the_time(self):
        self.add("late", _PASSED)
        self.assertIn("//pkg:late: not run: the time is over", self.run_all("--minutes=0")[1])

    def test_programs_find_what_they_need(self):
        self.add("env", 'echo "$1|$PWD|$A|$SHERD_NCCL_LIBRARY|$NCCL_SOCKET_IFNAME|'
                        '$SHERD_TEST_SHARE_GPUS|$LD_LIBRARY_PATH"\n' + _PASSED, env={"A": "b"})
        self.assertEqual(self.run_all()[0], 0)
        self.assertIn("an argument|%s/files|b|/the/libnccl.so.2|lo|1|%s/lib" % (
            self.top, self.top), self.log())

    def test_the_emulated_driver_is_the_bundles_and_is_said_aloud(self):
        self.add("env", 'echo "$SHERD_CUDA_LIBRARY|$SHERD_NCCL_LIBRARY|$SHERD_EMULATED_GPUS|'
                        '$SHERD_TEST_SHARE_GPUS"\n' + _PASSED)
        code, output = self.run_all("--emulated=3")
        self.assertEqual(code, 0)
        self.assertIn("EMULATED", output)
        emulator = self.top + "/files/testing/emulated_gpu/libsherd_emulated_gpu.so"
        self.assertIn("%s|%s|3|\n" % (emulator, emulator), self.log())

    def test_a_filter_that_leaves_nothing_is_an_error(self):
        self.add("good", _PASSED)
        code, output = self.run_all("--filter=nothing")
        self.assertEqual(code, 1)
        self.assertIn("no program matches", output)


if __name__ == "__main__":
    unittest.main()
