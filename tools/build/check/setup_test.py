"""Tests of tools/setup, against an apt of this test's own."""

import os
import shutil
import subprocess
import tempfile
import unittest

import tree

_DPKG_QUERY = 'cat "$STATE/installed"\n'
# "policy NAME" knows what is in the file "available"; empty before an update.
_APT_CACHE = """case "$1" in
  dumpavail) cat "$STATE/lists" ;;
  policy) grep -qx "$2" "$STATE/lists" && echo "  Candidate: 1.0" ;;
esac
exit 0
"""
_APT_GET = """echo "$*" >> "$STATE/calls"
case "$*" in
  *update*) cp "$STATE/available" "$STATE/lists" ;;
  *install*) exit "$(cat "$STATE/install_code")" ;;
esac
"""


class SetupTest(unittest.TestCase):

    def setUp(self):
        self.state = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.state)
        for name, text in (("dpkg-query", _DPKG_QUERY), ("apt-cache", _APT_CACHE),
                           ("apt-get", _APT_GET), ("sudo", 'shift; "$@"\n')):
            self.write(os.path.join("bin", name), "#!/bin/bash\n" + text)
            os.chmod(os.path.join(self.state, "bin", name), 0o755)
        for name in ("installed", "lists", "available", "calls"):
            self.write(name, "")
        self.write("install_code", "0")

    def write(self, name, text):
        path = os.path.join(self.state, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def setup(self, *arguments):
        path = os.path.join(self.state, "bin") + ":" + os.environ["PATH"]
        return subprocess.run(
            [os.path.join(tree.ROOT, "tools/setup"), *arguments], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, check=False,
            env={"PATH": path, "STATE": self.state})

    def install_line(self):
        with open(os.path.join(self.state, "calls"), encoding="utf-8") as file:
            return [line for line in file.read().split("\n") if " install " in line]

    def test_a_check_brings_mpi(self):
        line = self.setup("--dry-run").stdout
        for package in ("libgrpc++-dev", "libopenmpi-dev", "openmpi-bin", "g++", "clang-format"):
            self.assertIn(" " + package, line)
        self.assertNotIn(" clang-tidy", line)
        self.assertNotIn("openmpi", self.setup("--dry-run", "--for=build").stdout)

    def all_but(self, *absent):
        names = self.setup("--dry-run").stdout.split("--no-install-recommends ")[1].split()
        return [n for n in names if n not in absent]

    def test_what_the_distribution_has_is_installed_and_must_be(self):
        self.write("available", "\n".join(self.all_but()) + "\n")
        self.assertEqual(self.setup().returncode, 0)
        self.assertIn(" libopenmpi-dev", self.install_line()[0])
        self.write("install_code", "100")
        done = self.setup()
        self.assertEqual(done.returncode, 1)
        self.assertIn("apt-get install failed", done.stderr)

    def test_what_the_distribution_lacks_is_left_out_with_a_reason(self):
        names = self.all_but("libopenmpi-dev", "openmpi-bin")
        self.write("available", "\n".join(names) + "\n")
        done = self.setup()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no libopenmpi-dev (Open MPI, for backends/mpi", done.stderr)
        self.assertNotIn("openmpi-bin", self.install_line()[0])

        # The next run does not query the network.
        self.write("installed", "".join("ii  %s\n" % n for n in names))
        self.write("calls", "")
        done = self.setup()
        self.assertIn("no openmpi-bin", done.stderr)
        self.assertIn("everything is installed", done.stderr)
        with open(os.path.join(self.state, "calls"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "")


if __name__ == "__main__":
    unittest.main()
