"""Tests of tools/quickstart: what cannot work is refused before anything is built."""

import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest

import tree


class QuickstartTest(unittest.TestCase):

    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        os.mkdir(os.path.join(self.root, "tools"))
        shutil.copy(os.path.join(tree.ROOT, "tools/quickstart"), os.path.join(self.root, "tools"))
        setup = self.write("tools/setup", b"#!/bin/bash\necho would build\nexit 1\n")
        os.chmod(setup, 0o755)

    def write(self, name, content):
        path = os.path.join(self.root, name)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def run_with(self, *arguments):
        done = subprocess.run(
            [os.path.join(self.root, "tools/quickstart"), *arguments], cwd=self.root,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return done.returncode, done.stdout

    def test_a_model_and_a_new_folder_lead_to_the_build(self):
        header = json.dumps({"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}).encode()
        model = self.write("model", struct.pack("<Q", len(header)) + header + b"abc")
        self.assertIn("would build", self.run_with("--out=a/b/c", model)[1])

    def test_others_do_not(self):
        file = self.write("file", b"")
        for arguments, text in [
                ((self.write("lines", b"root:x:0:0:root:/root:/bin/bash\n"),), "header has 34"),
                ((self.write("huge", b"\xff" * 8 + b"{}"),), "header has 18446744073709551615"),
                ((self.write("cut", struct.pack("<Q", 3) + b"{}"),), "header has 3 bytes"),
                ((self.write("none", struct.pack("<Q", 0) + b"{}"),), "header has 0 bytes"),
                ((self.write("list", struct.pack("<Q", 2) + b"[]"),), "begins with no brace"),
                ((file,), "has 0 bytes"),
                (("/nowhere",), "no such file"),
                ((self.root,), "not a file"),
                (("--out=" + file + "/x",), "is not a folder"),
                (("--load-only", "--out=" + self.root), "no checkpoint in"),
        ]:
            code, output = self.run_with(*arguments)
            self.assertEqual(code, 2, arguments)
            self.assertIn(text, output)
            self.assertNotIn("would build", output, arguments)


if __name__ == "__main__":
    unittest.main()
