"""Step 1 of 2 for WORKSPACE users: declares every external repository.

Nothing is downloaded: each repository is a view of what the distribution
installed, under the labels that the Bazel Central Registry uses. A repository
that the caller declared earlier wins (maybe()).
"""

load("//tools/build/system:cuda_configure.bzl", "cuda_configure")
load(
    "//tools/build/system:rule_sets.bzl",
    "distro_bazel_module",
    "no_coverage_tools",
    "rules_cc_shim",
    "rules_shell_shim",
)
load("//tools/build/system:system_absl.bzl", "system_absl")
load("//tools/build/system:system_library.bzl", "system_library")
load("//tools/build/system:system_protobuf.bzl", "system_protobuf")

def maybe(rule, name, **kwargs):
    """Like maybe() of @bazel_tools, but also usable in a module extension.

    Args:
      rule: the repository rule.
      name: of the repository.
      **kwargs: passed on to the rule.
    """
    if not hasattr(native, "existing_rule") or not native.existing_rule(name):
        rule(name = name, **kwargs)

def sherd_dependencies():
    """Declares the repositories that //... of this workspace needs."""
    _rule_set_repositories()
    system_library_repositories()

def _rule_set_repositories():
    # What MODULE.bazel has as bazel_dep().
    maybe(rules_cc_shim, name = "rules_cc")
    maybe(rules_shell_shim, name = "rules_shell")
    maybe(no_coverage_tools, name = "remote_coverage_tools")
    for name, path in {
        "bazel_skylib": "tools/skylib",
        "platforms": "tools/platforms",
        "rules_java": "rules/java",
        "rules_proto": "rules/proto",
    }.items():
        maybe(
            distro_bazel_module,
            name = name,
            apt = "bazel-" + name.replace("bazel_", "").replace("_", "-"),
            path = "/usr/share/bazel/" + path,
        )

def _maybe_library(name, **kwargs):
    # The rule's own ctx.name is a mangled one under bzlmod.
    maybe(
        system_library,
        name = name,
        build_file = Label("//tools/build/system:%s.BUILD" % name),
        repo_name = name,
        **kwargs
    )

def system_library_repositories():
    """The C++ libraries, for WORKSPACE and MODULE.bazel alike."""

    # Required: without one of them nothing builds, and loading fails with the
    # line that installs it.
    maybe(system_absl, name = "com_google_absl")
    maybe(system_protobuf, name = "com_google_protobuf")
    _maybe_library(
        name = "cli11",
        apt = "libcli11-dev",
        headers = ["CLI/CLI.hpp"],
    )
    _maybe_library(
        name = "com_google_googletest",
        apt = "googletest",
        links = {
            "/usr/src/googletest/googlemock": "googlemock",
            "/usr/src/googletest/googletest": "googletest",
        },
    )
    _maybe_library(
        name = "isal",
        apt = "libisal-dev",
        headers = ["isa-l/crc.h"],
        libraries = ["libisal.so"],
    )
    _maybe_library(
        name = "nlohmann_json",
        apt = "nlohmann-json3-dev",
        headers = ["nlohmann/json.hpp"],
    )
    _maybe_library(
        name = "openblas",
        apt = "libopenblas-serial-dev",
        headers = ["cblas.h"],
        libraries = ["libopenblas.so"],
    )
    _maybe_library(
        name = "spdlog",
        apt = "libspdlog-dev",
        headers = ["spdlog/spdlog.h"],
        libraries = ["libspdlog.so"],
    )
    _maybe_library(
        name = "xxhash",
        apt = "libxxhash-dev",
        headers = ["xxhash.h"],
    )

    # Optional: an absent one becomes a stub whose targets are incompatible, so
    # that //... skips what needs it.
    _maybe_library(
        name = "com_github_google_benchmark",
        apt = "libbenchmark-dev",
        headers = ["benchmark/benchmark.h"],
        libraries = ["libbenchmark.so"],
        optional = True,
        targets = [
            "benchmark",
            "benchmark_main",
        ],
    )
    _maybe_library(
        name = "gloo",
        apt = "libgloo-dev",
        headers = ["gloo/context.h"],
        libraries = ["libgloo.so"],
        optional = True,
    )
    _maybe_library(
        name = "grpc",
        apt = "libgrpc++-dev",
        headers = ["grpcpp/grpcpp.h"],
        libraries = ["libgrpc++.so"],
        optional = True,
        pkg_config = ["grpc++"],
    )
    _maybe_library(
        name = "openmpi",
        apt = "libopenmpi-dev",
        links = {"/usr/lib/{multiarch}/openmpi/include": "include"},
        optional = True,
        pkg_config = ["mpi"],
        programs = ["mpirun"],
    )
    maybe(cuda_configure, name = "local_config_cuda")
