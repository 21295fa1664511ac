"""The C++ macros of this workspace: the only callers of cc_* in it.

Headers appear as <sherd/package/file.h> wherever the code is built: in this
workspace, and in one that depends on it under any repository name. Labels that
a macro writes are Label()s, since a plain string would be resolved in the
caller's repository.
"""

load("@com_google_protobuf//bazel:cc_proto_library.bzl", "cc_proto_library")
load("@com_google_protobuf//bazel:proto_library.bzl", "proto_library")
load("@rules_cc//cc:cc_binary.bzl", "cc_binary")
load("@rules_cc//cc:cc_library.bzl", "cc_library")
load("@rules_cc//cc:cc_test.bzl", "cc_test")

# Flags that both GCC 12 and clang 14 know. Every warning is an error in this
# workspace (see .bazelrc); these are errors in every workspace that builds it.
SHERD_COPTS = [
    "-Wall",
    "-Wextra",
    "-Wno-missing-field-initializers",  # Fires on {.backend = "gloo"}.
    "-Wnon-virtual-dtor",
    "-Woverloaded-virtual",
    "-Werror=format",
    "-Werror=return-type",
    "-Werror=switch",
    "-Werror=unused-result",
]

# GCC's analyses of flow that cry wolf where it optimises: only there.
_NO_FALSE_ALARMS = [
    "-Wno-unknown-warning-option",  # clang does not know all of them.
    "-Wno-array-bounds",
    "-Wno-dangling-pointer",
    "-Wno-maybe-uninitialized",
    "-Wno-restrict",
    "-Wno-stringop-overflow",
    "-Wno-stringop-overread",
    "-Wno-uninitialized",
]

# As --cxxopt names those under which this code compiles; the first is ours.
CXX_STANDARDS = [
    "c++20",
    "gnu++20",
    "c++2a",
    "gnu++2a",
    "c++23",
    "gnu++23",
    "c++2b",
    "gnu++2b",
    "c++26",
    "gnu++26",
    "c++2c",
    "gnu++2c",
]

def _prefix():
    package = native.package_name()
    return "sherd/" + package if package else "sherd"

def _select(setting, yes, no):
    """`yes` where tools/build:setting (or one of several) holds, otherwise `no`."""
    settings = [setting] if type(setting) == "string" else setting
    choices = {str(Label("//tools/build:" + s)): yes for s in settings}
    choices["//conditions:default"] = no
    return select(choices)

def _own_copts():
    """The standard, if the build names none; and warnings, but for another workspace."""
    standard = _select(["language_" + s for s in CXX_STANDARDS], [], ["-std=" + CXX_STANDARDS[0]])
    own_repository = Label("//tools/build:defs.bzl").workspace_name
    if native.repository_name().lstrip("@") != own_repository:
        return standard  # Code of another one has its own options.
    return standard + SHERD_COPTS + _select("optimised", _NO_FALSE_ALARMS, [])

# The parts of Abseil that nearly every file uses.
_ABSEIL = [Label("@com_google_absl//absl/" + part) for part in [
    "base:core_headers",
    "functional:function_ref",
    "status",
    "status:statusor",
    "strings",
    "strings:str_format",
    "synchronization",
    "time",
    "types:span",
]]

def _with_abseil(deps, plain = False):
    """`deps`, and the usual parts of Abseil unless `plain` or below backends/: plugins do without."""
    return deps if plain or native.package_name().startswith("backends/") else deps + _ABSEIL

# Files of a room that belong to programs.
_OF_PROGRAMS = [
    "*_benchmark.cc",
    "*_test.cc",
]

def _files_of_rooms(name, rooms, without):
    """The .cc and .h files in the folders `rooms` of the calling package, but for `without`."""
    files = []
    for room in rooms:
        place = "" if room == "." else room + "/"
        found = native.glob(
            [place + "*.cc", place + "*.h"],
            allow_empty = True,  # Bazel 8 would refuse a room without a .cc file.
            exclude = [place + pattern for pattern in _OF_PROGRAMS],
        )
        if not found:
            fail("%s: no sources in the room %s" % (name, room))
        files += found
    for pattern in without:
        of_others = native.glob([pattern], allow_empty = True)
        own = [f for f in files if f not in of_others]
        if len(own) == len(files):
            fail("%s: without %s, which is not in its rooms" % (name, pattern))
        files = own
    return files

def sherd_cc_library(
        name,
        srcs = [],
        hdrs = [],
        copts = [],
        deps = [],
        include_prefix = None,
        plain = False,
        rooms = [],
        without = [],
        **kwargs):
    """A cc_library whose headers are included as "sherd/<package>/<file>.h".

    Headers belong in hdrs: those in srcs do not get the prefix.

    Args:
      name: of the target.
      srcs: sources beside those of rooms.
      hdrs: headers beside those of rooms: mostly the package's public ones.
      copts: further compiler options.
      deps: further dependencies than the usual parts of Abseil.
      include_prefix: in place of sherd/<package>.
      plain: of the standard library alone, as plugins need it: no Abseil.
      rooms: folders of the package that are this target: all their .cc and .h
        files but *_test.cc and *_benchmark.cc, not those of folders in them.
        ".": that of the BUILD file.
      without: files of rooms that belong to other targets; patterns of glob().
      **kwargs: as for cc_library.
    """
    files = _files_of_rooms(name, rooms, without)
    cc_library(
        name = name,
        srcs = srcs + [f for f in files if f.endswith(".cc")],
        hdrs = hdrs + [f for f in files if f.endswith(".h")],
        copts = _own_copts() + copts,
        deps = _with_abseil(deps, plain),
        include_prefix = include_prefix or _prefix(),
        # No shared object beside the archive: it would cost a link each, and
        # :gloo would leave a libgloo.so that is not the vendor's.
        linkstatic = True,
        **kwargs
    )

def sherd_cc_binary(name, copts = [], deps = [], plain = False, **kwargs):
    """A cc_binary with this workspace's warnings.

    Args:
      name: of the target.
      copts: further compiler options.
      deps: as for sherd_cc_library.
      plain: as for sherd_cc_library.
      **kwargs: as for cc_binary.
    """
    cc_binary(
        name = name,
        copts = _own_copts() + copts,
        deps = _with_abseil(deps, plain),
        **kwargs
    )

def _test(name, copts, deps, size = "small", **kwargs):
    """A cc_test; `deps` have its main()."""
    cc_test(
        name = name,
        size = size,
        copts = _own_copts() + copts,
        deps = _with_abseil(deps),
        **kwargs
    )

# What every test uses. A test with a main() of its own has that one.
_GOOGLETEST = [Label("@com_google_googletest//:gtest_main")]

def sherd_cc_test(name, copts = [], deps = [], size = "small", **kwargs):
    """A cc_test with this workspace's warnings, size "small" by default.

    Args:
      name: of the target.
      copts: further compiler options.
      deps: further dependencies than GoogleTest and the usual parts of Abseil.
      size: as for cc_test.
      **kwargs: as for cc_test.
    """
    _test(
        name = name,
        size = size,
        copts = copts,
        deps = deps + _GOOGLETEST,
        **kwargs
    )

def sherd_cc_benchmark(name, deps = [], **kwargs):
    """A micro benchmark, built on demand only: tools/bazel run -c opt //pkg:<name>

    Args:
      name: of the target.
      deps: further dependencies than Google Benchmark and the usual parts of
        Abseil.
      **kwargs: as for sherd_cc_binary.
    """
    sherd_cc_binary(
        name = name,
        testonly = True,
        tags = [
            "benchmark",
            "manual",
        ],
        deps = deps + [Label("@com_github_google_benchmark//:benchmark_main")],
        **kwargs
    )

def expand_table(macro, what, tests, folder, shared, alternatives = []):
    """Calls `macro` once per row of a table of tests: the body of sherd_cc_tests and its like.

    Args:
      macro: of one test, with a name and srcs.
      what: the name of the macro of the table, for errors.
      tests: {name: arguments of its own}. They take the place of those in
        `shared`. Without srcs of its own, NAME's source is folder/NAME.cc. A
        key may be x/NAME: then it is folder/x/NAME.cc.
      folder: of the sources, in the calling package.
      shared: arguments of all rows.
      alternatives: lists of arguments of which one takes the place of another.
    """
    if type(tests) != "dict":
        fail("%s: tests %r, expected {name: {argument: value}}" % (what, tests))
    if not tests:
        fail("%s: tests is empty: no test would run" % what)
    for argument in ["name", "srcs"]:
        if argument in shared:
            fail("%s: %s cannot be shared; give it in tests" % (what, argument))
    for key, own in tests.items():
        name = key.rpartition("/")[2]
        if type(own) != "dict":
            fail("%s: %r, expected the arguments of this test, {argument: value}" % (name, own))
        if "name" in own:
            fail("%s: has a second name, %r; its key in tests is its name" % (name, own["name"]))
        if name != key and "srcs" in own:
            fail("%s: has srcs, so that its key in tests needs no folder" % key)
        arguments = {"srcs": ["%s/%s.cc" % (folder, key) if folder else key + ".cc"]}
        replaced = []
        for some in alternatives:
            if [argument for argument in some if argument in own]:
                replaced += some
        for argument, value in shared.items():
            if argument not in replaced:
                arguments[argument] = value
        arguments.update(own)
        macro(name = name, **arguments)

def sherd_cc_tests(tests, folder = "", **kwargs):
    """Several sherd_cc_tests that share what they need, as a table.

        sherd_cc_tests(
            tests = {
                "store/store_test": {"size": "medium"},
                "store_parts_test": {"srcs": [
                    "store/store_session_test.cc",
                    "store/store_protocol_test.cc",
                ]},
            },
            deps = [":store"],
        )

    Args:
      tests: {name: arguments of its own}, as for sherd_cc_test. They take the
        place of those that all share. Without srcs of its own, NAME's source is
        folder/NAME.cc. A key may be x/NAME: then it is folder/x/NAME.cc.
      folder: of the sources, in this package.
      **kwargs: what all share, as for sherd_cc_test.
    """
    expand_table(sherd_cc_test, "sherd_cc_tests", tests, folder, kwargs)

def sherd_proto_library(name, srcs, **kwargs):
    """A proto_library imported as "sherd/<package>/<file>.proto".

    Args:
      name: of the target, ends in _proto.
      srcs: .proto files of this package.
      **kwargs: as for proto_library.
    """
    proto_library(
        name = name,
        srcs = srcs,
        import_prefix = _prefix(),
        strip_import_prefix = "/" + native.package_name(),
        **kwargs
    )

def sherd_cc_proto_library(name, deps, **kwargs):
    """The C++ code of one sherd_proto_library: "sherd/<package>/<file>.pb.h".

    Args:
      name: of the target, ends in _cc_proto.
      deps: exactly one sherd_proto_library.
      **kwargs: as for cc_proto_library.
    """
    cc_proto_library(name = name, deps = deps, **kwargs)

def sherd_backend_plugin(
        name,
        srcs,
        hdrs = [],
        deps = [],
        copts = [],
        linkopts = [],
        tags = [],
        testonly = None,
        visibility = None):
    """A collective backend, built twice from the same sources.

      :<name>                        cc_library, alwayslink: linked in, it
                                     registers itself.
      :libsherd_backend_<name>.so    for dlopen(): it exports the one function
                                     sherd_get_plugin_v0, and its objects are
                                     compiled with SHERD_PLUGIN_BUILD defined.

    Args:
      name: of the backend.
      srcs: its sources.
      hdrs: its headers, included as "sherd/<package>/<file>.h".
      deps: //backends:plugin and the vendor's library.
      copts: further compiler options.
      linkopts: further linker options.
      tags: of both targets.
      testonly: of both targets.
      visibility: of both targets.
    """
    _plugin(
        name = name,
        file = "libsherd_backend_%s.so" % name,
        srcs = srcs,
        hdrs = hdrs,
        copts = copts,
        linkopts = linkopts,
        tags = tags,
        testonly = testonly,
        visibility = visibility,
        deps = deps,
    )

def sherd_device_plugin(
        name,
        srcs,
        hdrs = [],
        deps = [],
        copts = [],
        linkopts = [],
        tags = [],
        testonly = None,
        visibility = None):
    """A device plugin, built twice from the same sources.

      :<name>                       cc_library, alwayslink: linked in, it
                                    registers itself.
      :libsherd_device_<name>.so    for dlopen(): it exports the one function
                                    sherd_get_device_v0, and its objects are
                                    compiled with SHERD_PLUGIN_BUILD defined.

    Args:
      name: of the type of device.
      srcs: its sources.
      hdrs: its headers, included as "sherd/<package>/<file>.h".
      deps: //backends:plugin and what it is made of.
      copts: further compiler options.
      linkopts: further linker options.
      tags: of both targets.
      testonly: of both targets.
      visibility: of both targets.
    """
    _plugin(
        name = name,
        file = "libsherd_device_%s.so" % name,
        srcs = srcs,
        hdrs = hdrs,
        copts = copts,
        linkopts = linkopts,
        tags = tags,
        testonly = testonly,
        visibility = visibility,
        deps = deps,
    )

def _plugin(name, file, srcs, hdrs, copts, linkopts, tags, testonly, visibility, deps):
    """:<name> and the shared object :<file>."""
    if hdrs:
        sherd_cc_library(
            name = name + "_headers",
            hdrs = hdrs,
            plain = True,
            tags = tags,
            testonly = testonly,
            visibility = ["//visibility:private"],
            deps = deps,
        )
        deps = [":%s_headers" % name] + deps
    sherd_cc_library(
        name = name,
        srcs = srcs,
        copts = copts,
        linkopts = linkopts,
        plain = True,
        tags = tags,
        testonly = testonly,
        visibility = visibility,
        deps = deps,
        alwayslink = True,
    )
    exports = Label("//tools/build:plugin.lds")
    sherd_cc_binary(
        name = file,
        srcs = srcs,
        additional_linker_inputs = [exports],
        copts = copts + ["-fvisibility=hidden"],
        linkopts = linkopts + [
            "-Wl,--version-script=$(location %s)" % exports,
            "-Wl,-z,defs",
        ],
        linkshared = True,
        linkstatic = True,
        local_defines = ["SHERD_PLUGIN_BUILD=1"],
        plain = True,
        tags = tags,
        testonly = testonly,
        visibility = visibility,
        deps = deps,
    )

def sherd_cc_fuzz_test(name, srcs, corpus = None, deps = [], copts = [], tags = [], **kwargs):
    """A LLVMFuzzerTestOneInput(), built twice.

      :<name>           test: replays the corpus, and cut and flipped variants
                        of each file, with any compiler and in every test run.
      :<name>_fuzzer    libFuzzer program for clang, built on demand only:
                        tools/bazel run --config=fuzz //pkg:<name>_fuzzer -- \\
                            /tmp/new_inputs $PWD/pkg/testdata/corpus

    Args:
      name: of the test, ends in _fuzz_test.
      srcs: sources; one of them defines LLVMFuzzerTestOneInput.
      corpus: files of this package; testdata/x_corpus/* if not given, where x is
        the name without _fuzz_test.
      deps: libraries under test.
      copts: further compiler options.
      tags: of the test.
      **kwargs: as for cc_test.
    """
    if corpus == None:
        corpus = native.glob(
            ["testdata/%s_corpus/*" % name[:-len("_fuzz_test")]],
            allow_empty = True,
        )
        if not corpus:
            fail("%s: no files in testdata/%s_corpus" % (name, name[:-len("_fuzz_test")]))
    _test(
        name = name,
        srcs = srcs,
        args = ["$(rootpaths %s)" % c for c in corpus],
        copts = copts,
        data = corpus,
        tags = tags + ["fuzz"],
        deps = deps + [Label("//tools/build:fuzz_replay_main")],
        **kwargs
    )
    sherd_cc_binary(
        name = name + "_fuzzer",
        testonly = True,
        srcs = srcs,
        copts = copts,
        linkopts = ["-fsanitize=fuzzer"],
        tags = [
            "fuzzer",
            "manual",
        ],
        deps = deps,
    )

def sherd_cc_fuzz_tests(tests, folder = "", **kwargs):
    """Several sherd_cc_fuzz_tests that share what they need, as a table.

    Args:
      tests: {name: arguments of its own}, as for sherd_cc_fuzz_test. Otherwise
        as for sherd_cc_tests.
      folder: as for sherd_cc_tests.
      **kwargs: what all share, as for sherd_cc_fuzz_test.
    """
    expand_table(sherd_cc_fuzz_test, "sherd_cc_fuzz_tests", tests, folder, kwargs)
