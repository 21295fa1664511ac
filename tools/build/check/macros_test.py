"""Tests of tools/build/defs.bzl, run as the Python it parses as."""

import unittest

import tree


class MacrosTest(unittest.TestCase):
    @staticmethod
    def copts(repository, **holds):
        """Of a library in `repository`; `holds`: settings of tools/build."""
        calls = []

        class Native:
            def repository_name(self):
                return "@" + repository

            def package_name(self):
                return "a"

        class Label(str):
            workspace_name = "sherd"

        def select(choices):
            for setting, value in choices.items():
                if holds.get(setting.split(":")[1]):
                    return value
            return choices["//conditions:default"]

        names = {"Label": Label, "native": Native(), "select": select, "type": lambda v: {
            str: "string"}.get(type(v), "list"), "load": lambda *a: None,
                 "cc_library": lambda **kwargs: calls.append(kwargs)}
        exec(tree.read("tools/build/defs.bzl"), names)  # pylint: disable=exec-used
        names["sherd_cc_library"](name="x", copts=["-Wextra-of-x"])
        return calls[0]["copts"]

    def test_code_is_cxx20_unless_the_build_names_a_standard_that_has_it(self):
        self.assertEqual(self.copts("mine"), ["-std=c++20", "-Wextra-of-x"])
        self.assertEqual(self.copts("mine", **{"language_gnu++23": True}), ["-Wextra-of-x"])

    def test_false_alarms_of_optimised_builds_are_off(self):
        self.assertIn("-Wall", self.copts("sherd"))
        self.assertNotIn("-Wno-maybe-uninitialized", self.copts("sherd"))
        self.assertIn("-Wno-maybe-uninitialized", self.copts("sherd", optimised=True))


if __name__ == "__main__":
    unittest.main()
