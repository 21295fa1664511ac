"""Tests of the checks themselves: each must find what it is there to find."""

import io
import json
import os
import sys
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree as ElementTree

import build_form
import check
import layering
import lints
import parts
import progress
import results
import tree


class TargetsTest(unittest.TestCase):
    """tools/check //PACKAGE/...: what Bazel is asked for, without a Bazel."""

    def commands(self, *arguments):
        """The exit code of check.py, and how it called Bazel."""
        calls = []

        def bazel(_, command, *rest, events=None):
            calls.append([command] + [r for r in rest if r.startswith("//")])
            return 0

        with unittest.mock.patch.object(check.Check, "bazel", bazel), \
                unittest.mock.patch.object(sys, "argv", ["check.py", *arguments]), \
                unittest.mock.patch("sys.stdout", io.StringIO()), \
                unittest.mock.patch("sys.stderr", io.StringIO()):
            try:
                return check.main(), calls
            except SystemExit as end:
                return end.code, calls

    def test_only_these_are_built_and_tested(self):
        targets = ["//core/nn/...", "//rpc:rpc"]
        self.assertEqual(self.commands(*targets),
                         (0, [["build", *targets], ["test", *targets]]))

    def test_without_them_all_are(self):
        self.assertEqual(self.commands("--part=tests"),
                         (0, [["build", "//..."], ["test", "//..."]]))

    def test_they_are_not_a_part_of_another_check(self):
        for option in ["--deep", "--parts", "--part=form"]:
            self.assertEqual(self.commands(option, "//core/nn/..."), (2, []))


class LayeringTest(unittest.TestCase):

    def test_arrows_down_are_allowed(self):
        for source, target in [
                ("//core/tensor:tensor", "//core/base:status_macros"),
                ("//core/comm:work", "//core/net:frame"),
                ("//core/process:subprocess", "//core/base:plain"),
                ("//core/comm:membership", "//core/process:process"),
                ("//core/sharding:reshard_plan", "//core/tensor:tensor"),
                ("//core/nn:module", "//core/sharding:sharded_tensor"),
                ("//backends/gloo:gloo", "//backends:plugin"),
                ("//backends:plugin", "//backends:plugin.h"),
                ("//backends/cuda:kernels", "//core/tensor:plain_types"),
                ("//backends/gloo:gloo", "//backends/gloo:gloo_headers"),
                ("//backends/shm:shm", "//core/process:process"),
                ("//backends/nccl:nccl_meeting", "//core/process:process"),
                ("//backends:loader", "//core/comm:backend_registry"),
                ("//serialization:checkpoint", "//core/sharding:sharded_tensor"),
                ("//testing:fixture", "//backends:loader"),
                ("//tools/sherd:sherd", "//serialization:checkpoint"),
                ("//:sherd", "//backends:loader"),
        ]:
            self.assertIsNone(layering.violation(source, target, False), (source, target))

    def test_arrows_up_and_across_are_not(self):
        for source, target in [
                ("//core/base:knobs", "//core/tensor:dtype"),
                ("//core/tensor:tensor", "//core/net:frame"),
                ("//core/comm:work", "//core/sharding:placement"),
                ("//core/comm:work", "//backends:loader"),
                ("//backends/gloo:gloo", "//core/base:status_macros"),
                ("//core/process:process", "//core/net:frame"),
                ("//core/tensor:tensor", "//core/process:process"),
                ("//backends/gloo:gloo", "//core/process:process"),
                ("//backends/shm:shm", "//core/process:subprocess"),
                ("//backends/gloo:gloo", "//backends/local:local"),
                ("//backends/gloo:gloo", "//backends:loader"),
                ("//backends/gloo:gloo", "//backends:plugin_call"),
                ("//backends/gloo:gloo", "//core/tensor:plain_types"),
                ("//backends/cuda:cuda", "//core/tensor:tensor"),
                ("//backends:plugin", "//core/base:knobs"),
                ("//backends:plugin", "//backends:loader"),
                ("//serialization:checkpoint", "//rpc:agent"),
                ("//serialization:checkpoint", "//testing:matchers"),
                ("//testing:fixture", "//serialization:checkpoint"),
                ("//rpc:agent", "//tools/sherd:sherd"),
                ("//elsewhere:thing", "//core/base:knobs"),
        ]:
            self.assertIsNotNone(layering.violation(source, target, False), (source, target))

    def test_tests_may_use_testing_and_backends_but_not_every_package(self):
        test = "//core/sharding:x_test"
        self.assertIsNone(layering.violation(test, "//testing:fixture", True))
        self.assertIsNone(layering.violation(test, "//backends/local:local", True))
        self.assertIsNotNone(layering.violation(test, "//serialization:archive", True))
        self.assertIsNotNone(layering.violation(test, "//tools/sherd:sherd", True))

    def test_emulated_gpus_are_for_tests(self):
        emulator = "//testing/emulated_gpu:driver"
        self.assertIsNotNone(layering.violation(emulator, "//serialization:archive", False))
        self.assertIsNotNone(layering.violation("//core/tensor:tensor", emulator, False))
        self.assertIsNone(layering.violation("//backends/cuda:x_test", emulator, True))

    def test_emulated_gpus_see_of_backends_what_they_double(self):
        emulator = "//testing/emulated_gpu:driver"
        for target in ["//core/base:knobs", "//testing:matchers", "//backends/cuda:driver_api",
                       "//backends/nccl:nccl_api", "@com_google_absl//absl/strings:strings"]:
            self.assertIsNone(layering.violation(emulator, target, False), target)
        for target in ["//backends/cuda:cuda_plugin", "//backends/nccl:communicator",
                       "//backends:plugin", "//backends:loader", "//backends/shm:shm"]:
            self.assertIsNotNone(layering.violation(emulator, target, True), target)

    def test_vendors_have_their_places(self):
        protobuf = "@com_google_protobuf//:protobuf"
        self.assertIsNone(layering.violation("//serialization:codec", protobuf, False))
        self.assertIsNotNone(layering.violation("//core/comm:store", protobuf, False))
        self.assertIsNotNone(layering.violation("//backends/gloo:gloo", protobuf, False))
        self.assertIsNone(layering.violation(
            "//core/comm:store", "@com_google_absl//absl/status:status", False))

    def test_edges_come_from_the_xml_of_bazel_query(self):
        xml = """<query version="2">
          <rule class="cc_library" name="//core/base:a">
            <rule-input name="//core/comm:b"/></rule>
          <rule class="cc_library" name="//core/base:t">
            <boolean name="testonly" value="true"/>
            <rule-input name="//core/comm:b"/></rule>
          <rule class="cc_library" name="//testing:t">
            <rule-input name="//backends/local:local"/></rule>
        </query>"""
        self.assertEqual(len(layering.check(xml)), 1)
        self.assertIn("//core/base:a -> //core/comm:b", layering.check(xml)[0])


class RoomsTest(unittest.TestCase):
    DRAWING = "low <- {left, right} <- high"

    def violations(self, files, places=None):
        """Of the package "p"; `files`: {path: what it includes of p}."""
        return layering.room_violations("p", self.DRAWING, places or {}, {
            "p/" + path: "".join('#include "sherd/p/%s"\n' % i for i in includes)
            for path, includes in files.items()})

    def test_arrows_down_and_within_a_room_are_allowed(self):
        self.assertEqual([], self.violations({
            "low/a.h": [], "low/b.cc": ["low/a.h"], "left/c.h": ["low/a.h"], "right/d.h": [],
            "high/e.cc": ["left/c.h", "right/d.h", "low/a.h", "high/e.h"], "high/e.h": []}))

    def test_arrows_up_and_across_are_not(self):
        for source, target in [("low/a.h", "high/x.h"), ("low/a.cc", "left/x.h"),
                               ("left/a.h", "right/x.h"), ("right/a.inc", "left/x.h"),
                               ("left/a.h", "high/x.h")]:
            [found] = self.violations({source: [target], target: []})
            self.assertEqual(found, "p/%s -> p/%s: %s does not include %s; the order is %s" % (
                source, target, source.split("/")[0], target.split("/")[0], self.DRAWING))

    def test_a_header_at_the_top_is_of_the_room_that_implements_it(self):
        files = {"x.h": [], "high/x.cc": ["x.h"], "low/a.h": ["x.h"]}
        self.assertEqual(len(self.violations(files)), 1)
        self.assertIn("p/low/a.h -> p/x.h: low does not include high", self.violations(files)[0])
        self.assertEqual(self.violations({"y.h": ["left/z.h"], "low/y.cc": [], "left/z.h": []}),
                         ["p/y.h -> p/left/z.h: low does not include left; the order is "
                          + self.DRAWING])

    def test_some_files_have_a_place_of_their_own(self):
        files = {"high/x.h": [], "high/x.cc": ["high/x.h"], "low/a.h": ["high/x.h"], "y.h": []}
        self.assertEqual([], self.violations(files, {"low": ["high/x", "y"]}))
        self.assertEqual(
            self.violations({"low/a.h": []}, {"low": ["high/gone"]}),
            ["p/high/gone: is not there: take it out of tools/build/check/layering.py"])

    def test_every_file_has_a_place(self):
        self.assertEqual(self.violations({"new/a.h": [], "y.h": []}), [
            "p/new/a.h: the room new is not drawn: give it a place in "
            "tools/build/check/layering.py",
            "p/y.h: its room is not drawn: give it a place in tools/build/check/layering.py"])

    def test_tests_are_free_but_sources_with_a_header_are_no_tests(self):
        self.assertEqual([], self.violations({
            "low/a_test.cc": ["high/x.h"], "low/a_benchmark.cc": ["high/x.h"],
            "testdata/program.cc": ["high/x.h"], "high/x.h": []}))
        [found] = self.violations({
            "b_test.h": [], "low/b_test.cc": ["high/x.h"], "high/x.h": []})
        self.assertIn("p/low/b_test.cc -> p/high/x.h: low does not include high", found)

    def test_comments_and_other_packages_are_no_arrows(self):
        self.assertEqual([], layering.room_violations("p", self.DRAWING, {}, {
            "p/low/a.h": '/*\n#include "sherd/p/high/x.h"\n*/\n#include "sherd/q/high/x.h"\n'
                         "#include <high/x.h>\n",
            "p/high/x.h": ""}))

    def test_the_drawings_are_of_rooms_that_there_are(self):
        for package, drawing in layering.DRAWINGS.items():
            folders = {path[len(package) + 1:].split("/")[0] for path in tree.files(".cc", ".h")
                       if path.startswith(package + "/")}
            listed = layering.PLACES.get(package, {})
            for room in layering.rooms(drawing):
                self.assertTrue(room in folders or room in listed, (package, room))


class BuildFormTest(unittest.TestCase):
    GOOD = '''load("//tools/build:defs.bzl", "sherd_cc_library")

package(default_visibility = ["//visibility:private"])

sherd_cc_library(
    name = "a",
    srcs = ["a.cc"],
    hdrs = ["a.h"],
    visibility = ["//visibility:public"],
    deps = [
        ":b",
        "//core/base:knobs",
        "@com_google_absl//absl/status",
        "@com_google_absl//absl/status:statusor",
    ],
)
'''

    def check(self, old, new):
        self.assertIn(old, self.GOOD)
        return build_form.check_source("x/BUILD.bazel", self.GOOD.replace(old, new))

    def test_the_good_form_passes(self):
        self.assertEqual(build_form.check_source("x/BUILD.bazel", self.GOOD), [])

    def test_every_departure_is_found(self):
        for old, new, message in [
                ('    name = "a",\n    srcs = ["a.cc"],', '    srcs = ["a.cc"],\n    name = "a",', "order"),
                ('        ":b",\n        "//core/base:knobs",',
                 '        "//core/base:knobs",\n        ":b",', "not sorted"),
                ('        "@com_google_absl//absl/status:statusor",\n    ],',
                 '        "@com_google_absl//absl/status:statusor"],', "trailing comma"),
                ('    ],\n)', '    ])', "trailing comma"),
                ('        ":b",\n        "//core', '        ":b", "//core', "per line"),
                ('    name = "a",', "    name = 'a',", "double quotes"),
                ('    name = "a",', '\tname = "a",', "tabs"),
                ("visibility:private", "visibility:public", "private by default"),
                ('"sherd_cc_library")', '"sherd_cc_library", "sherd_cc_test")', "not used"),
                ('sherd_cc_library(\n', 'cc_library(\n', "use the macro"),
                ('        ":b",\n', '        ":b",\n        ":b",\n', "twice"),
                ('    name = "a",', '    name = "a"', "does not parse"),
        ]:
            found = self.check(old, new)
            self.assertTrue(any(message in f for f in found), (new, found))

    def test_dictionaries_and_what_they_hold_have_the_form_of_lists(self):
        def check(value):
            return self.check('    hdrs = ["a.h"],\n',
                              '    hdrs = ["a.h"],\n    tests = %s,\n' % value)

        for value in ['{}', '{"a": {}}', '{"a": {"b": ["c"]}}',
                      '{\n        "a": {},\n        "b": {},\n    }',
                      '{"a": {"b": [\n        "c",\n        "d",\n    ]}}']:
            self.assertEqual([], check(value), value)
        for value, message in [
                ('{"a": {}, "b": {}}', "one element per line"),
                ('{\n        "a": {},\n        "b": {}}', "and } on its own line"),
                ('{"a": {"b": 1, "c": 2}}', "one element per line"),
                ('{"a": {"b": ["c", "d"]}}', "one element per line"),
                ('{"a": [\n        "c",\n        "d"]}', "and ] on its own line")]:
            [found] = check(value)
            self.assertIn(message, found)

    def test_a_file_is_searched_once_however_many_strings_it_has(self):
        # Which is linear in the file: 22 s for all files together otherwise.
        with unittest.mock.patch("ast.get_source_segment", return_value="") as cut:
            build_form.check_source("x/BUILD.bazel", self.GOOD)
        self.assertEqual(cut.call_count, 1)  # One load().


class LintsTest(unittest.TestCase):

    def lint(self, function, text, path="core/comm/x.h"):
        with tempfile.TemporaryDirectory() as root:
            old, tree.ROOT = tree.ROOT, root
            try:
                for name, content in [(path, text), ("core/base/knobs.h", "")]:
                    os.makedirs(os.path.join(root, os.path.dirname(name)), exist_ok=True)
                    with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                        file.write(content)
                return function([path])
            finally:
                tree.ROOT = old

    def test_links_to_outputs_that_are_gone_are_no_files(self):
        with tempfile.TemporaryDirectory() as root:
            old, tree.ROOT = tree.ROOT, root
            try:
                os.symlink(os.path.join(root, "gone"), os.path.join(root, "bazel-bin"))
                self.assertEqual(tree.files(""), [])
            finally:
                tree.ROOT = old

    def test_the_environment_is_read_in_one_place(self):
        self.assertTrue(self.lint(lints.environment, "x = std::getenv(\"A\");"))
        self.assertFalse(self.lint(lints.environment, "// getenv(\"A\") is not used"))
        self.assertFalse(self.lint(lints.environment, "getenv(name)", "core/base/knobs.cc"))

    def test_links_of_documents_lead_somewhere(self):
        self.assertFalse(self.lint(lints.links, "[a](x.md) [b](http://b.c/d)", "core/x.md"))
        self.assertTrue(self.lint(lints.links, "[a](y.md#there)", "core/x.md"))

    def test_a_room_holds_a_concept_and_a_package_says_what_for(self):
        package = ["a/BUILD.bazel", "a/README.md", "a/a.h"]
        room = ["a/room/s%d.cc" % n for n in range(25)] + ["a/room/s0_test.cc"]
        self.assertFalse(lints.rooms(package + room))
        self.assertTrue(lints.rooms(package + room + ["a/room/one_more.cc"]))
        self.assertTrue(lints.rooms(package + room + ["a/a.cc"]))
        self.assertTrue(lints.rooms(package[:1] + room))

    def test_includes_carry_the_prefix_and_exist(self):
        for line, wrong in [
                ('#include "sherd/core/base/knobs.h"', False),
                ('#include "absl/status/status.h"', False),
                ('// #include "core/base/knobs.h"', False),
                ('#include "sherd/core/base/knob.h"', True),
                ('#include "core/base/knobs.h"', True),
                ('#include "knobs.h"', True),
                ('#include "../base/knobs.h"', True),
        ]:
            self.assertEqual(bool(self.lint(lints.includes, line + "\n")), wrong, line)

    def test_guards_follow_the_path(self):
        guard = "SHERD_CORE_COMM_X_H_"
        good = "// Words.\n#ifndef {0}\n#define {0}\n#endif  // {0}\n".format(guard)
        self.assertFalse(self.lint(lints.guards, good))
        self.assertFalse(self.lint(lints.guards, good.replace(
            "  // " + guard, " /* %s */" % guard)))
        self.assertTrue(self.lint(lints.guards, good.replace("COMM", "COM")))
        self.assertTrue(self.lint(lints.guards, "#pragma once\n"))

    def test_the_guide_quotes_the_example_literally(self):
        source = "int a;\n\nvoid F() {\n  a = 1;\n}\n"
        guide = "Words.\n\n```cpp\n%s```\n\nMore.\n\n```cpp\nint a;\n```\n"
        for block, wrong in [
                ("void F() {\n  a = 1;\n}\n", False),
                ("  a = 1;\n", False),
                ("a = 1;\n", True),
                ("  a = 2;\n", True),
                ("int a;\nvoid F() {\n", True),
        ]:
            with tempfile.TemporaryDirectory() as root:
                with unittest.mock.patch.object(tree, "ROOT", root):
                    for name, text in [("x.cc", source), ("G.md", guide % block)]:
                        with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                            file.write(text)
                    found = lints.quotes("G.md", ["x.cc"])
            self.assertEqual(found, ["G.md:3: not literally in x.cc"] if wrong else [], block)

    def test_a_type_is_defined_once(self):
        one = "namespace a::b {\nstruct X {\n  struct Y {};\n};\n}  // namespace a::b\n"
        for other, wrong in [
                (one, True),
                ("namespace a { namespace b { enum class X : int { kOne }; } }", True),
                ("namespace a::b { template <typename T> class alignas(8) X final : Z<T> {}; }",
                 True),
                ("namespace a::b { struct X; }", False),
                ("namespace a::b { template <> struct X<int> {}; }", False),
                ("namespace a::b { struct X f(); class W { struct X {}; }; }", False),
                ("namespace a::b { namespace { struct X {}; } }", False),
                ("namespace a { struct X {}; }", False),
                ("namespace a::b {\n#define P struct X {\nchar c = '{'; }\nstruct X {};", False),
                ("namespace a::b { void f() { struct X {}; } }", False),
                ("// namespace a::b { struct X {}; }", False),
                ("namespace a::b { const char* s = \"}\"; struct X {}; }", True),
        ]:
            with tempfile.TemporaryDirectory() as root:
                with unittest.mock.patch.object(tree, "ROOT", root):
                    for name, text in [("x.h", one), ("y.h", other)]:
                        with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                            file.write(text)
                    found = lints.one_definition(["x.h", "y.h"])
            self.assertEqual(len(found), int(wrong), other)
            if wrong:
                self.assertIn("x.h:2: a::b::X: y.h:", found[0])

    def test_protobuf_stays_out_of_headers(self):
        self.assertTrue(self.lint(lints.protobuf, '#include "sherd/a/b.pb.h"\n'))
        self.assertTrue(self.lint(lints.protobuf, "google::protobuf::Message* m;"))
        self.assertFalse(self.lint(lints.protobuf, "// no google::protobuf here"))

    def test_nothing_is_left_for_later(self):
        self.assertTrue(self.lint(lints.markers, "// TO" "DO: later\n"))


_GOOGLETEST = """<testsuites name="AllTests"><testsuite name="S">
  <testcase name="A" classname="S" status="run" result="completed"/>
  <testcase name="B" classname="S" status="run" result="completed">
    <failure message="x.cc:3&#x0A;Expected 1, got 2"/></testcase>
  <testcase name="C" classname="S" status="run" result="skipped">
    <skipped message="x.cc:5&#x0A;needs a GPU"/></testcase>
  <testcase name="DISABLED_D" classname="S" status="notrun" result="suppressed"/>
</testsuite></testsuites>"""
_GENERATED = """<testsuites><testsuite name="pkg/t" tests="1" failures="0">
  <testcase name="pkg/t" status="run"/></testsuite></testsuites>"""


class ResultsTest(unittest.TestCase):

    def add(self, status, xml):
        tally = results.Tally()
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write(xml)
            file.flush()
            results.add_test_run(tally, "//p:t", status, file.name)
        return tally

    def test_googletest_cases_are_counted_with_reasons(self):
        tally = self.add("FAILED", _GOOGLETEST)
        self.assertEqual(tally.counts(), "1 passed, 1 failed, 2 skipped")
        self.assertEqual(tally.failures, ["//p:t S.B: Expected 1, got 2"])
        self.assertIn("needs a GPU", tally.skips)

    def test_a_target_that_fails_with_passing_cases_is_a_failure(self):
        passing = _GOOGLETEST.replace('<failure message="x.cc:3&#x0A;Expected 1, got 2"/>', "")
        tally = self.add("TIMEOUT", passing)
        self.assertEqual(tally.failures, ["//p:t: TIMEOUT"])

    def test_a_target_without_googletest_counts_as_one(self):
        self.assertEqual(self.add("PASSED", _GENERATED).counts(), "1 passed, 0 failed, 0 skipped")
        self.assertEqual(self.add("FAILED", _GENERATED).counts(), "0 passed, 1 failed, 0 skipped")
        self.assertEqual(self.add("FAILED", "<testsui").counts(), "0 passed, 1 failed, 0 skipped")

    def test_build_events_name_skipped_and_unbuilt_tests(self):
        def configured(label, **more):
            return {"id": {"targetConfigured": {"label": label}}, "configured": more}

        def aborted(label, reason):
            return {"id": {"targetCompleted": {"label": label}}, "aborted": {"reason": reason}}

        events = [
            configured("//p:t", testSize="SMALL"),
            configured("//p:mpi", testSize="SMALL"),
            configured("//p:broken", testSize="SMALL"),
            configured("//p:slow", testSize="SMALL", tag=["deep"]),
            configured("//p:gpu", testSize="SMALL", tag=["gpu"]),
            configured("//p:lib"),
            aborted("//p:mpi", "SKIPPED"),
            aborted("//p:lib", "SKIPPED"),
            {"id": {"testResult": {"label": "//p:t", "run": 1, "shard": 1, "attempt": 1}},
             "testResult": {"status": "PASSED"}},
        ]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write("\n".join(json.dumps(e) for e in events))
            file.flush()
            tally = results.read_events(
                file.name, lambda labels: {l: "needs MPI" for l in labels},
                {"deep": "too slow", "gpu": None})
        self.assertEqual(tally.counts(), "1 passed, 1 failed, 2 skipped")
        self.assertEqual(dict(tally.skips),
                         {"needs MPI": ["//p:mpi"], "too slow": ["//p:slow"]})
        self.assertEqual(tally.failures, ["//p:broken: was not built or not run"])
        self.assertEqual(dict(tally.not_built), {"needs MPI": ["//p:lib", "//p:mpi"]})

    def test_the_verdict_names_every_target_that_was_not_built(self):
        tally, other = results.Tally(), results.Tally()
        tally.passed = 3
        tally.not_built["needs MPI"] = ["//p:mpi", "//p:lib"]
        other.not_built["needs MPI"] = ["//p:lib", "//q:lib"]
        tally.add(other)
        self.assertEqual(list(tally.verdict()), [
            "not built, 3 targets: needs MPI", "  //p:lib", "  //p:mpi", "  //q:lib",
            "3 passed, 0 failed, 0 skipped"])

    def test_generated_xml_is_told_from_googletest(self):
        self.assertTrue(results.is_googletest(ElementTree.fromstring(_GOOGLETEST)))
        self.assertFalse(results.is_googletest(ElementTree.fromstring(_GENERATED)))


class ProgressTest(unittest.TestCase):

    def setUp(self):
        self.out = io.StringIO()
        self.now = 100

    def progress(self, terminal=False):
        return progress.Progress(self.out, terminal, lambda: self.now)

    def test_the_innermost_activity_is_shown_with_its_seconds(self):
        shown = self.progress()
        with shown.of("fuzz"):
            self.now += 60
            shown.tick()
            with shown.of("bazel build", lambda: "3 of 9 targets built"):
                self.now += 5
                shown.tick()
            shown.tick()
        shown.tick()
        self.assertEqual(self.out.getvalue(), "running  fuzz (60 s)\n"
                         "running  bazel build (3 of 9 targets built, 5 s)\n"
                         "running  fuzz (65 s)\n")

    def test_a_terminal_has_one_line_and_bazel_paints_its_own(self):
        shown = self.progress(terminal=True)
        with shown.of("clang-tidy"):
            shown.tick()
            self.assertEqual(self.out.getvalue().split("\r\033[K")[-1], "running  clang-tidy (0 s)")
            with shown.bazel("bazel build", "/no/events") as options:
                shown.tick()
                self.assertIn("--show_progress", options)
        self.assertNotIn("bazel", self.out.getvalue())
        self.assertTrue(self.out.getvalue().endswith("\r\033[K"))
        self.assertNotIn("\n", self.out.getvalue())

    def test_targets_are_counted_while_bazel_writes(self):
        def event(name, **more):
            return json.dumps({"id": {name: {"label": "//p:t"}}, **more}) + "\n"

        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            events = progress.BuildEvents(file.name)
            self.assertEqual(events.text(), "loading")
            file.write(event("targetConfigured", configured={}) * 2 + event("targetCompleted")[:9])
            file.flush()
            self.assertEqual(events.text(), "0 of 2 targets built")
            file.write(event("targetCompleted")[9:] + event("testSummary"))
            file.flush()
            self.assertEqual(events.text(), "1 of 2 targets built, 1 tests run")


class PartsTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = unittest.mock.patch.object(tree, "ROOT", folder.name)
        root.start()
        self.addCleanup(root.stop)
        self.write("a.cc", "1")
        self.tally = results.Tally()
        self.tally.passed = 7
        self.tally.skip("//p:t", "needs a GPU")
        self.tally.not_built["needs MPI"].append("//p:mpi")

    @staticmethod
    def write(name, text):
        with open(os.path.join(tree.ROOT, name), "w", encoding="utf-8") as file:
            file.write(text)

    def test_what_passed_is_known_while_the_tree_is_the_same(self):
        parts.Memory().keep("asan", self.tally, 61.4)
        tally, seconds, _ = parts.Memory().find("asan")
        self.assertEqual(list(tally.verdict()), list(self.tally.verdict()))
        self.assertEqual(seconds, 61)
        self.assertIsNone(parts.Memory().find("ubsan"))
        for name, text in [("a.cc", "2"), ("a.cc", "1"), ("b.cc", ""), (".bazelrc", "build")]:
            before = parts.fingerprint()
            self.write(name, text)
            self.assertNotEqual(parts.fingerprint(), before, name)
        self.assertIsNone(parts.Memory().find("asan"))

    def test_git_is_not_needed(self):
        with unittest.mock.patch.dict(os.environ, PATH="/nowhere"):
            self.write(".bazelrc.user", "of nobody else")
            self.assertEqual(tree.everything(), ["a.cc"])

    def test_what_failed_or_saw_a_change_is_not_kept(self):
        memory = parts.Memory()
        self.write("a.cc", "2")
        memory.keep("asan", self.tally, 1)
        self.assertIsNone(parts.Memory().find("asan"))
        self.tally.fail("//p:t", "wrong")
        parts.Memory().keep("asan", self.tally, 1)
        self.assertIsNone(parts.Memory().find("asan"))

    def test_parts_that_passed_can_be_run_again(self):
        for name in ("asan", "ubsan"):
            parts.Memory().keep(name, self.tally, 1)
        parts.Memory().forget(["asan"])
        self.assertIsNone(parts.Memory().find("asan"))
        self.assertIsNotNone(parts.Memory().find("ubsan"))
        parts.Memory().forget(None)
        self.assertIsNone(parts.Memory().find("ubsan"))


if __name__ == "__main__":
    unittest.main()
