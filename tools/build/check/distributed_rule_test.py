"""Tests of sherd_distributed_test and of tables of them: testing/defs.bzl runs as the
Python it parses as, and what it would hand to Bazel is looked at. And of its README."""

import os
import re
import unittest
import xml.etree.ElementTree as ElementTree

import gpu_tests
import tree

_TYPES = {str: "string", int: "int", bool: "bool", list: "list", dict: "dict",
          float: "float", type(None): "NoneType"}


class Failure(Exception):
    """fail() of Starlark."""


def _fail(text):
    raise Failure(text)


class Label:
    """A label of @sherd, or of the repository given."""

    def __init__(self, text, repository="sherd"):
        self.workspace_name = repository
        self.package, _, name = text[2:].partition(":")
        self.name = name or self.package.split("/")[-1]

    def __repr__(self):
        return "@%s//%s:%s" % (self.workspace_name, self.package, self.name)


class Native:
    """The names that a BUILD file of my/package in repository `repository` sees."""

    def __init__(self, repository):
        self._repository = repository
        self.suites = []

    def repository_name(self):
        return "@" + self._repository

    def package_name(self):
        return "my/package"

    def test_suite(self, **kwargs):
        self.suites.append(kwargs)


class NativeOfBazel7(Native):
    """Resolves labels itself, to canonical names."""

    def package_relative_label(self, text):
        if text.startswith("@"):
            repository, _, rest = text.lstrip("@").partition("//")
            return Label("//" + rest, repository + "~")
        if text.startswith("//"):
            return Label(text, self._repository)
        return Label("//my/package:" + text.lstrip(":"), self._repository)


def call(rule, native, repository, libraries=None, **kwargs):
    """The targets of one call of a macro: ({name: attributes}, [test_suite]).

    `libraries` gets the libraries' attributes by name.
    """
    tests = {}
    libraries = {} if libraries is None else libraries
    bound = native(repository)
    scope = {
        "Label": Label,
        "fail": _fail,
        "load": lambda *_: None,
        "native": bound,
        "sherd_cc_library": lambda **attributes: libraries.update(
            {attributes["name"]: attributes}),
        "sherd_cc_test": lambda **attributes: tests.update({attributes["name"]: attributes}),
        "type": lambda value: _TYPES.get(type(value), type(value).__name__),
    }
    table = {"Label": Label, "fail": _fail, "load": lambda *_: None, "type": scope["type"]}
    exec(tree.read("tools/build/defs.bzl").replace("%r", "%s"), table)  # pylint: disable=exec-used
    scope["expand_table"] = table["expand_table"]
    source = tree.read("testing/defs.bzl").replace("%r", "%s")
    # Lists of Starlark come from keys() and values() too.
    source = source.replace("_PLUGINS.keys() + _THREADS.keys()",
                            "list(_PLUGINS) + list(_THREADS)")
    source = source.replace("labels.values()", "list(labels.values())")
    exec(compile(source, "testing/defs.bzl", "exec"), scope)  # pylint: disable=exec-used
    scope[rule](**kwargs)
    return tests, bound.suites


def expand(native=Native, repository="", **kwargs):
    """The targets of one call: ({name: attributes}, test_suite)."""
    tests, suites = call("sherd_distributed_test", native, repository,
                         **{"name": "t", "srcs": ["t.cc"], **kwargs})
    return tests, suites[0]


def expand_table(tests, **kwargs):
    """The targets of a table: ({name: attributes}, [test_suite])."""
    return call("sherd_distributed_tests", Native, "", tests=tests, **kwargs)


def sources(tests, **kwargs):
    """{library: its sources} of a table."""
    libraries = {}
    call("sherd_distributed_tests", Native, "", libraries, tests=tests, **kwargs)
    return {name: library["srcs"] for name, library in libraries.items()}


def one(**kwargs):
    """The only target of a call."""
    tests, _ = expand(**kwargs)
    assert len(tests) == 1, tests
    return next(iter(tests.values()))


class TargetsTest(unittest.TestCase):

    def test_one_target_per_backend_and_world_size_and_a_suite_of_them(self):
        tests, suite = expand(backends=["gloo", "local"], world_sizes=[1, 4])
        names = ["t_gloo_1ranks", "t_gloo_4ranks", "t_local_1ranks", "t_local_4ranks"]
        self.assertEqual(sorted(tests), names)
        self.assertEqual(suite["tests"], [":" + n for n in names])
        self.assertEqual(suite["name"], "t")

    def test_a_suite_of_manual_tests_is_manual(self):
        self.assertEqual(expand(tags=["manual", "mine"])[1]["tags"], ["manual"])
        self.assertEqual(expand(tags=["mine"])[1]["tags"], [])

    def test_four_ranks_on_gloo_unless_something_else_is_said(self):
        test = one()
        self.assertEqual(test["name"], "t_gloo_4ranks")
        self.assertEqual(test["env"], {
            "SHERD_TEST_BACKEND": "gloo",
            "SHERD_TEST_WORLD_SIZE": "4",
            "SHERD_PLUGIN_PATH": "../sherd/backends/gloo:external/sherd/backends/gloo",
        })
        self.assertEqual(sorted(test["tags"]), ["backend-gloo", "cpu:4", "distributed"])
        self.assertEqual(test["size"], "medium")

    def test_no_more_processors_are_asked_for_than_ranks_or_four(self):
        for ranks, tag in [(1, "cpu:1"), (3, "cpu:3"), (4, "cpu:4"), (256, "cpu:4")]:
            self.assertIn(tag, one(world_size=ranks)["tags"])

    def test_what_cc_test_knows_is_passed_on(self):
        test = one(timeout="short", shard_count=3, flaky=True, args=["--x"], size="small",
                   data=[":d"], tags=["mine"], env={"A": "1"}, visibility=["//:__pkg__"])
        for name, value in [("timeout", "short"), ("shard_count", 3), ("flaky", True),
                            ("args", ["--x"]), ("size", "small"),
                            ("visibility", ["//:__pkg__"])]:
            self.assertEqual(test[name], value)
        self.assertIn(":d", test["data"])
        self.assertIn("mine", test["tags"])
        self.assertEqual(test["env"]["A"], "1")

    def test_ranks_of_local_are_threads_of_a_program_that_links_it(self):
        test = one(backends=["local"], world_size=3)
        self.assertEqual([str(d) for d in test["deps"]],
                         [":t_cases", "@sherd//backends/local:local"])
        self.assertEqual(test["data"], [])
        self.assertEqual(test["env"], {"SHERD_TEST_BACKEND": "local",
                                       "SHERD_TEST_WORLD_SIZE": "3"})

    def test_mpi_is_launched_and_others_on_request(self):
        self.assertEqual(one(backends=["mpi"])["env"]["SHERD_TEST_LAUNCHER"], "mpirun")
        self.assertNotIn("SHERD_TEST_LAUNCHER", one(backends=["shm"])["env"])
        self.assertEqual(one(backends=["shm"], launcher="mpirun")["env"]["SHERD_TEST_LAUNCHER"],
                         "mpirun")

    def test_rpc_is_linked_on_request_and_then_must_be_there(self):
        for rpc, linked in [(True, ["@sherd//rpc:rpc"]), (False, [])]:
            libraries = {}
            tests, _ = call("sherd_distributed_test", Native, "", libraries,
                            name="t", srcs=["t.cc"], deps=[":d"], rpc=rpc)
            self.assertEqual([str(d) for d in libraries["t_cases"]["deps"]],
                             [":d", "@sherd//testing:distributed_test_main"] + linked)
            self.assertEqual(tests["t_gloo_4ranks"]["env"].get("SHERD_TEST_RPC"),
                             "1" if rpc else None)


class GpuTest(unittest.TestCase):
    GPU = {"exclusive", "gpu", "requires-gpu-nvidia"}
    ALL = GPU | {"multi-gpu"}

    NCCL_PLUGINS = ["@sherd//backends/%s:libsherd_%s.so" % pair for pair in [
        ("nccl", "backend_nccl"), ("gloo", "backend_gloo"), ("shm", "backend_shm"),
        ("cuda", "device_cuda")]]

    def test_nccl_needs_one_per_rank_and_all_the_plugins_of_such_a_group(self):
        test = one(backends=["nccl"], world_size=2)
        self.assertTrue(self.ALL <= set(test["tags"]))
        self.assertEqual(test["env"]["SHERD_TEST_GPUS"], "2")
        self.assertEqual([str(d) for d in test["data"]], self.NCCL_PLUGINS)
        for name in ["nccl", "gloo", "shm", "cuda"]:
            self.assertIn("../sherd/backends/%s:" % name, test["env"]["SHERD_PLUGIN_PATH"] + ":")

    def test_emulated_gpus_need_none(self):
        test = one(backends=["nccl_emulated"], world_size=2)
        self.assertFalse(self.ALL & set(test["tags"]))
        self.assertIn("backend-nccl_emulated", test["tags"])
        emulator = "../sherd/testing/emulated_gpu/libsherd_emulated_gpu.so"
        for name, value in [("SHERD_TEST_BACKEND", "nccl"), ("SHERD_TEST_GPUS", "2"),
                            ("SHERD_EMULATED_GPUS", "4"), ("SHERD_CUDA_LIBRARY", emulator),
                            ("SHERD_NCCL_LIBRARY", emulator)]:
            self.assertEqual(test["env"][name], value)
        self.assertEqual(
            [str(d) for d in test["data"]],
            self.NCCL_PLUGINS + ["@sherd//testing/emulated_gpu:libsherd_emulated_gpu.so"])
        self.assertEqual(
            one(backends=["nccl_emulated"], world_size=6)["env"]["SHERD_EMULATED_GPUS"], "6")

    def test_one_gpu_is_not_many(self):
        for test in [one(backends=["nccl"], world_size=1), one(gpus=1, world_size=4)]:
            self.assertEqual(self.ALL & set(test["tags"]), self.GPU)
            self.assertEqual(test["env"]["SHERD_TEST_GPUS"], "1")

    def test_gpus_are_for_any_backend_and_in_all(self):
        for backend in ["gloo", "local", "mpi", "shm"]:
            test = one(backends=[backend], gpus=3, world_size=2)
            self.assertTrue(self.ALL <= set(test["tags"]))
            self.assertEqual(test["env"]["SHERD_TEST_GPUS"], "3")

    def test_tests_without_gpus_have_no_such_tag(self):
        for arguments in [{}, {"gpus": 0}, {"backends": ["mpi"]}, {"backends": ["local"]}]:
            test = one(**arguments)
            self.assertFalse(self.ALL & set(test["tags"]))
            self.assertNotIn("SHERD_TEST_GPUS", test["env"])


class PluginsTest(unittest.TestCase):

    def path(self, **kwargs):
        test = one(backends=["mine"], world_size=1, **kwargs)
        return test["env"]["SHERD_PLUGIN_PATH"].split(":")

    def test_of_the_same_package_another_package_and_another_repository(self):
        name = "libsherd_backend_mine.so"
        for label, path in [
                (":" + name, ["my/package"]),
                (name, ["my/package"]),
                ("//a/b:" + name, ["a/b"]),
                ("//:" + name, ["."]),
                ("@other//a/b:" + name, ["../other/a/b", "external/other/a/b"]),
        ]:
            test = one(backends=["mine"], world_size=1, plugins={"mine": label})
            self.assertEqual(test["data"], [label])
            self.assertEqual(self.path(plugins={"mine": label}), path)

    def test_where_the_caller_is_an_external_repository_itself(self):
        for native in [Native, NativeOfBazel7]:
            self.assertEqual(
                self.path(native=native, repository="user",
                          plugins={"mine": ":libsherd_backend_mine.so"}),
                ["../user/my/package", "external/user/my/package"])

    def test_bazel_7_knows_repositories_by_their_canonical_names(self):
        self.assertEqual(
            self.path(native=NativeOfBazel7,
                      plugins={"mine": "@other//a:libsherd_backend_mine.so"}),
            ["../other~/a", "external/other~/a"])

    def test_all_plugins_are_there_for_all_tests(self):
        tests, _ = expand(backends=["gloo", "mine"], world_size=1,
                          plugins={"mine": ":libsherd_backend_mine.so"})
        for test in tests.values():
            self.assertIn(":libsherd_backend_mine.so", test["data"])
            self.assertIn("my/package", test["env"]["SHERD_PLUGIN_PATH"].split(":"))


class BadArgumentsTest(unittest.TestCase):

    def test_each_is_refused_with_what_was_expected(self):
        for arguments, text in [
                ({"world_size": 0}, "world size 0, expected 1 to 256"),
                ({"world_size": -1}, "world size -1, expected 1 to 256"),
                ({"world_size": 1000}, "world size 1000, expected 1 to 256"),
                ({"world_sizes": [2, 257]}, "world size 257, expected 1 to 256"),
                ({"world_size": "4"}, "world size 4, expected a number"),
                ({"world_size": True}, "world size True, expected a number"),
                ({"world_size": [4]}, "world size [4], expected a number"),
                ({"world_sizes": 4}, "world_sizes 4, expected a list"),
                ({"world_sizes": []}, "world_sizes is empty"),
                ({"world_sizes": [2, 2]}, "world_sizes names 2 twice"),
                ({"world_size": 2, "world_sizes": [2]}, "world_size or world_sizes, not both"),
                ({"backends": []}, "backends is empty"),
                ({"backends": "gloo"}, "expected a list of names"),
                ({"backends": ["gloo", "gloo"]}, "backends names gloo twice"),
                ({"backends": ["glo"]}, "Backend glo not supported! There are: gloo, local, mpi,"
                                        " nccl, nccl_emulated, shm; name the plugin"),
                ({"launcher": "srun"}, "launcher srun, expected \"mpirun\" or None"),
                ({"launcher": "mpirun", "backends": ["local"]}, "ranks of the backend local are"),
                ({"rpc": "yes"}, "rpc yes, expected True or False"),
                ({"gpus": -1}, "gpus -1, expected 0 to 64"),
                ({"gpus": "all"}, "gpus all, expected a number"),
                ({"gpus": 1, "backends": ["nccl"], "world_size": 2},
                 "gpus = 1, but 2 ranks of the backend nccl need one each"),
                ({"backends": ["a"], "plugins": {"a": ":libsherd_backend_b.so"}},
                 "expected a target libsherd_backend_a.so"),
        ]:
            with self.assertRaises(Failure, msg=arguments) as caught:
                expand(**arguments)
            self.assertIn("t: ", str(caught.exception))
            self.assertIn(text, str(caught.exception), arguments)


class TableTest(unittest.TestCase):

    def test_each_row_has_the_targets_and_the_suite_of_a_test_of_its_own(self):
        tests, suites = expand_table(
            {"a": {}, "b": {"world_sizes": [1, 3]}, "c": {"backends": ["mpi"]}},
            backends=["gloo", "shm"], world_size=2, tags=["mine"])
        self.assertEqual([suite["name"] for suite in suites], ["a", "b", "c"])
        self.assertEqual(sorted(tests), [
            "a_gloo_2ranks", "a_shm_2ranks",
            "b_gloo_1ranks", "b_gloo_3ranks", "b_shm_1ranks", "b_shm_3ranks",
            "c_mpi_2ranks"])
        alone, _ = expand(name="b", backends=["gloo", "shm"], world_sizes=[1, 3], tags=["mine"])
        for name, test in alone.items():
            self.assertEqual({k: str(v) for k, v in test.items()},
                             {k: str(v) for k, v in tests[name].items()})

    def test_what_a_row_says_takes_the_place_of_what_all_share(self):
        tests, _ = expand_table({"a": {"data": [":d"], "world_size": 3}, "b": {}},
                                data=[":shared"], world_sizes=[2])
        self.assertEqual(sorted(tests), ["a_gloo_3ranks", "b_gloo_2ranks"])
        self.assertIn(":d", tests["a_gloo_3ranks"]["data"])
        self.assertNotIn(":shared", tests["a_gloo_3ranks"]["data"])
        self.assertIn(":shared", tests["b_gloo_2ranks"]["data"])

    def test_the_source_of_a_row_is_named_like_it_unless_it_says_its_own(self):
        for folder, own, srcs in [("", {}, ["a.cc"]), ("in", {}, ["in/a.cc"]),
                                  ("in", {"srcs": ["b.cc", "c.cc"]}, ["b.cc", "c.cc"])]:
            self.assertEqual(sources({"a": own}, folder=folder), {"a_cases": srcs})

    def test_each_bad_table_is_refused_with_what_was_expected(self):
        for tests, shared, text in [
                (["a"], {}, "sherd_distributed_tests: tests ['a'], expected {name:"),
                ({}, {}, "sherd_distributed_tests: tests is empty: no test would run"),
                ({"a": {}}, {"srcs": ["a.cc"]}, "srcs cannot be shared; give it in tests"),
                ({"a": {}}, {"name": "a"}, "name cannot be shared; give it in tests"),
                ({"a": ["gloo"]}, {}, "a: ['gloo'], expected the arguments of this test"),
                ({"a": {"name": "b"}}, {}, "a: has a second name, b; its key in tests"),
                ({"a": {"world_size": 0}}, {}, "a: world size 0, expected 1 to 256"),
                ({"a": {"backends": ["x"]}}, {}, "a: Backend x not supported!"),
        ]:
            with self.assertRaises(Failure, msg=text) as caught:
                expand_table(tests, **shared)
            self.assertIn(text, str(caught.exception))


class ReadmeTest(unittest.TestCase):

    def test_its_code_is_that_of_the_consumer_workspace(self):
        """Which is compiled and run."""
        def lines(text):
            return [l.strip() for l in text.split("\n") if l.strip()]

        folder = os.path.join(tree.ROOT, tree.CONSUMER)
        files = ["\n".join(lines(tree.read(os.path.join(tree.CONSUMER, f))))
                 for f in os.listdir(folder) if f.endswith(".cc") or f == "BUILD.bazel"]
        blocks = re.findall(r"```(?:cpp|python)\n(.*?)```", tree.read("testing/README.md"), re.S)
        self.assertGreater(len(blocks), 10)
        for block in blocks:
            if re.match(r"# (WORKSPACE|MODULE)", block):
                continue
            # Loads are at the top of a BUILD file that has other ones too.
            kept = [l for l in lines(block) if not re.match(r"(// \w+\.cc|# BUILD|load\()", l)]
            self.assertTrue(any("\n".join(kept) in f for f in files), block)


class GpuTestsCheckTest(unittest.TestCase):
    """gpu_tests.py on the XML of a query."""

    @staticmethod
    def rule(name, tags="", gpus="", deps="", kind="cc_test", emulated=""):
        env = "".join(
            '<pair><string value="%s"/><string value="%s"/></pair>' % pair
            for pair in [("SHERD_TEST_GPUS", gpus), ("SHERD_EMULATED_GPUS", emulated)] if pair[1])
        return '<rule class="%s" name="%s"><list name="tags">%s</list>%s%s</rule>' % (
            kind, name, "".join('<string value="%s"/>' % t for t in tags.split()),
            '<dict name="env">%s</dict>' % env if env else "",
            "".join('<rule-input name="%s"/>' % d for d in deps.split()))

    def check(self, *rules):
        xml = "<query>%s</query>" % "".join(rules)
        ElementTree.fromstring(xml)
        return gpu_tests.check(xml)

    def test_the_right_tags_pass(self):
        self.assertEqual([], self.check(
            self.rule("//core:kernel", deps="@local_config_cuda//:cudart", kind="cc_library"),
            self.rule("//core:plain_test", "cpu:2", deps="//core:kernel"),
            self.rule("//t:a", "gpu requires-gpu-nvidia exclusive", gpus="1"),
            self.rule("//t:b", "gpu requires-gpu-nvidia exclusive multi-gpu", gpus="2"),
            self.rule("//core:kernel_test", "gpu requires-gpu-nvidia",
                      deps="@local_config_cuda//:cudart"),
            self.rule("//core:headers_test", deps="@local_config_cuda//:cuda_headers"),
            self.rule("//t:c", gpus="2", emulated="4")))

    def test_each_departure_is_found(self):
        for rule, text in [
                (self.rule("//t:a", "requires-gpu-nvidia exclusive", gpus="1"), 'lacks the tag "gpu"'),
                (self.rule("//t:a", "gpu exclusive", gpus="1"), 'lacks the tag "requires-gpu-nvidia"'),
                (self.rule("//t:a", "gpu requires-gpu-nvidia", gpus="1"), 'lacks the tag "exclusive"'),
                (self.rule("//t:a", "gpu requires-gpu-nvidia exclusive", gpus="2"),
                 'lacks the tag "multi-gpu"'),
                (self.rule("//t:a", "gpu"), 'has the tag "gpu", but needs none'),
                (self.rule("//t:a", "multi-gpu"), 'has the tag "multi-gpu", but needs'),
                (self.rule("//t:a", deps="@local_config_cuda//:cudart"), 'lacks the tag "gpu"'),
        ]:
            found = self.check(rule)
            self.assertTrue(any(text in f for f in found), (text, found))


if __name__ == "__main__":
    unittest.main()
