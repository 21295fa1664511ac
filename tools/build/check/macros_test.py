"""Tests of tools/build/defs.bzl, run as the Python it parses as."""

import fnmatch
import unittest

import tree


class Failure(Exception):
    """fail() of Starlark."""


class MacrosTest(unittest.TestCase):
    @staticmethod
    def calls(rule, macro, repository="sherd", holds=(), files=(), **kwargs):
        """What `macro` hands to `rule`, in `repository`.

        `holds`: settings of tools/build; `files`: of the calling package.
        """
        calls = []

        class Native:
            def repository_name(self):
                return "@" + repository

            def package_name(self):
                return "a"

            def glob(self, include, allow_empty, exclude=()):
                assert allow_empty, "newer versions of Bazel fail where a pattern has no file"

                def named(path, patterns):
                    return any(fnmatch.fnmatch(path, p) and path.count("/") == p.count("/")
                               for p in patterns)
                return [f for f in files if named(f, include) and not named(f, exclude)]

        class Label(str):
            workspace_name = "sherd"

        def select(choices):
            for setting, value in choices.items():
                if setting.split(":")[1] in holds:
                    return value
            return choices["//conditions:default"]

        def fail(text):
            raise Failure(text)

        names = {"Label": Label, "native": Native(), "select": select, "type": lambda v: {
            str: "string", dict: "dict"}.get(type(v), "list"), "load": lambda *a: None,
                 "fail": fail, "cc_binary": lambda **_: None,
                 rule: lambda **arguments: calls.append(arguments)}
        source = tree.read("tools/build/defs.bzl").replace("%r", "%s")
        exec(source, names)  # pylint: disable=exec-used
        names[macro](**kwargs)
        return calls

    def copts(self, repository, *holds):
        [library] = self.calls("cc_library", "sherd_cc_library", repository, holds,
                               name="x", copts=["-Wextra-of-x"])
        return library["copts"]

    def test_code_is_cxx20_unless_the_build_names_a_standard_that_has_it(self):
        self.assertEqual(self.copts("mine"), ["-std=c++20", "-Wextra-of-x"])
        self.assertEqual(self.copts("mine", "language_gnu++23"), ["-Wextra-of-x"])

    def test_false_alarms_of_optimised_builds_are_off(self):
        self.assertIn("-Wall", self.copts("sherd"))
        self.assertNotIn("-Wno-maybe-uninitialized", self.copts("sherd"))
        self.assertIn("-Wno-maybe-uninitialized", self.copts("sherd", "optimised"))

    def test_a_test_has_the_main_of_googletest_or_replays_its_corpus(self):
        googletest = "@com_google_googletest//:gtest_main"
        [test] = self.calls("cc_test", "sherd_cc_test", name="x", deps=[":y"])
        self.assertEqual(test["deps"][0], ":y")
        self.assertIn(googletest, test["deps"])
        [fuzz] = self.calls("cc_test", "sherd_cc_fuzz_test", name="x_fuzz_test", srcs=[],
                            size="medium", files=["testdata/x_corpus/1", "testdata/y_corpus/2"])
        self.assertNotIn(googletest, fuzz["deps"])
        self.assertEqual((fuzz["deps"][0], fuzz["size"]),
                         ("//tools/build:fuzz_replay_main", "medium"))
        self.assertEqual(fuzz["data"], ["testdata/x_corpus/1"])
        with self.assertRaisesRegex(Failure, "no files in testdata/x_corpus"):
            self.calls("cc_test", "sherd_cc_fuzz_test", name="x_fuzz_test", srcs=[])

    def room(self, *files, **arguments):
        """srcs and hdrs of a library in a package of these files."""
        [library] = self.calls("cc_library", "sherd_cc_library", files=files, name="x", **arguments)
        return library["srcs"], library["hdrs"]

    def test_a_library_has_the_sources_of_its_rooms_but_for_programs(self):
        files = ["in/a.cc", "in/a.h", "in/a_test.cc", "in/a_fuzz_test.cc", "in/a_benchmark.cc",
                 "in/b.inc", "in/d.h", "in/deeper/c.cc", "out/d.cc", "e.h"]
        self.assertEqual(self.room(*files, hdrs=["e.h"], rooms=["in"]),
                         (["in/a.cc"], ["e.h", "in/a.h", "in/d.h"]))
        self.assertEqual(self.room(*files, rooms=["in", "in/deeper"], without=["in/a.*"]),
                         (["in/deeper/c.cc"], ["in/d.h"]))
        self.assertEqual(self.room(*files, rooms=["."]), ([], ["e.h"]))
        self.assertEqual(self.room(*files), ([], []))

    def test_rooms_and_exceptions_that_do_not_exist_are_refused(self):
        for arguments, text in [
                ({"rooms": ["on"]}, "x: no sources in the room on"),
                ({"rooms": ["in"], "without": ["in/b.cc"]}, "x: without in/b.cc, which is not in"),
                ({"rooms": ["in"], "without": ["out/d.cc"]}, "x: without out/d.cc, which is not"),
        ]:
            with self.assertRaisesRegex(Failure, text):
                self.room("in/a.cc", "out/d.cc", **arguments)

    def test_a_benchmark_is_built_on_demand_only(self):
        [benchmark] = self.calls("cc_binary", "sherd_cc_benchmark", name="x", srcs=["x.cc"])
        self.assertEqual((benchmark["testonly"], benchmark["tags"]),
                         (True, ["benchmark", "manual"]))

    def table(self, tests, **shared):
        """{name: arguments of cc_test} of a table."""
        return {test["name"]: test
                for test in self.calls("cc_test", "sherd_cc_tests", tests=tests, **shared)}

    def test_a_table_has_a_test_per_row_of_what_all_share_and_of_its_own(self):
        tests = self.table({"a_test": {}, "b_test": {"size": "large", "tags": ["deep"]}},
                           size="medium", deps=[":x"])
        self.assertEqual({name: test["size"] for name, test in tests.items()},
                         {"a_test": "medium", "b_test": "large"})
        self.assertEqual(tests["b_test"]["tags"], ["deep"])
        self.assertNotIn("tags", tests["a_test"])
        for name, own in [("a_test", {"size": "medium"}),
                          ("b_test", {"size": "large", "tags": ["deep"]})]:
            [alone] = self.calls("cc_test", "sherd_cc_test", name=name, srcs=[name + ".cc"],
                                 deps=[":x"], **own)
            self.assertEqual(tests[name], alone)

    def test_the_source_of_a_row_is_named_like_it_unless_it_says_its_own(self):
        own = {"srcs": ["b.cc", "c.cc"]}
        self.assertEqual(
            {name: test["srcs"] for name, test in
             self.table({"a_test": {}, "b_test": own}, folder="in").items()},
            {"a_test": ["in/a_test.cc"], "b_test": ["b.cc", "c.cc"]})
        self.assertEqual(self.table({"a_test": {}})["a_test"]["srcs"], ["a_test.cc"])
        self.assertEqual(self.table({"in/a_test": {}})["a_test"]["srcs"], ["in/a_test.cc"])
        self.assertEqual(self.table({"b/a_test": {}}, folder="in")["a_test"]["srcs"],
                         ["in/b/a_test.cc"])

    def test_each_bad_table_is_refused_with_what_was_expected(self):
        for tests, shared, text in [
                (["a"], {}, "sherd_cc_tests: tests ['a'], expected {name: {argument: value}}"),
                ({}, {}, "sherd_cc_tests: tests is empty: no test would run"),
                ({"a": {}}, {"srcs": ["a.cc"]}, "sherd_cc_tests: srcs cannot be shared; give it"),
                ({"a": {}}, {"name": "a"}, "sherd_cc_tests: name cannot be shared; give it"),
                ({"a": ["b.cc"]}, {}, "a: ['b.cc'], expected the arguments of this test"),
                ({"a": {"name": "b"}}, {}, "a: has a second name, b; its key in tests is its"),
                ({"in/a": {"srcs": ["b.cc"]}}, {}, "in/a: has srcs, so that its key in tests"),
        ]:
            with self.assertRaises(Failure, msg=text) as caught:
                self.table(tests, **shared)
            self.assertIn(text, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
