"""Tests of a build without -std=c++20."""

import os
import subprocess
import tempfile
import unittest

import tree

# Headers that others include first.
_HEADERS = ["sherd.h", "core/comm/init.h", "core/comm/process_group.h",
            "core/sharding/sharding_spec.h", "core/sharding/sharded_tensor.h",
            "core/tensor/dtype.h", "serialization/checkpoint.h"]


class HeadersTest(unittest.TestCase):

    def test_the_first_error_names_the_flag(self):
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(tree.ROOT, os.path.join(folder, "sherd"))
            running = [(header, subprocess.Popen(
                ["g++", "-std=gnu++17", "-fsyntax-only", "-Wfatal-errors", "-I" + folder,
                 "-x", "c++", "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True)) for header in _HEADERS]
            for header, compiler in running:
                _, errors = compiler.communicate('#include "sherd/%s"\n' % header)
                self.assertIn("build --cxxopt=-std=c++20", errors, header)


if __name__ == "__main__":
    unittest.main()
