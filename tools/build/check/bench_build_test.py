"""Tests of the BUILD file of tools/bench, run as the Python it parses as."""

import unittest

import tree


class BenchTest(unittest.TestCase):

    @staticmethod
    def dependencies(open_mpi=True, grpc=True):
        """Of all targets of tools/bench, in a system with or without these."""
        found = []

        def target(**kwargs):
            found.extend(kwargs.get("deps", []) + kwargs.get("srcs", []))

        names = {name: target for name in (
            "genrule", "package", "sherd_cc_binary", "sherd_cc_library", "sherd_cc_test",
            "sherd_cc_tests")}
        names.update(OPENMPI_INSTALLED=open_mpi, GRPC_INSTALLED=grpc, load=lambda *a, **k: None)
        exec(tree.read("tools/bench/BUILD.bazel"), names)  # pylint: disable=exec-used
        return found

    def test_it_builds_without_open_mpi_and_leaves_out_that_peer(self):
        self.assertIn("@openmpi", self.dependencies())
        without = self.dependencies(open_mpi=False)
        self.assertIn("peers/without_mpi.cc", without)
        self.assertFalse({"@openmpi", "//backends/mpi", "peers/mpi_move.cc"} & set(without))

    def test_without_grpc_that_peer_names_the_package(self):
        self.assertIn("@grpc", self.dependencies())
        without = self.dependencies(grpc=False)
        self.assertIn("peers/without_grpc.cc", without)
        self.assertFalse({"@grpc", "peers/grpc_rpc.cc"} & set(without))


if __name__ == "__main__":
    unittest.main()
