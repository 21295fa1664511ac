"""Stand-ins for rule sets that the network would otherwise bring."""

def _distro_bazel_module_impl(ctx):
    if not ctx.path(ctx.attr.path).exists:
        fail("\n*** @%s: %s is absent.\n*** On Debian: sudo apt-get install %s" % (ctx.name, ctx.attr.path, ctx.attr.apt))
    for f in ctx.path(ctx.attr.path).readdir():
        ctx.symlink(f, f.basename)

distro_bazel_module = repository_rule(
    implementation = _distro_bazel_module_impl,
    attrs = {
        "apt": attr.string(mandatory = True),
        "path": attr.string(mandatory = True),
    },
    local = True,
)

_RULES = {
    "cc_binary": "cc",
    "cc_import": "cc",
    "cc_library": "cc",
    "cc_proto_library": "cc",
    "cc_test": "cc",
    "cc_toolchain": "cc/toolchains",
    "cc_toolchain_suite": "cc/toolchains",
    "fdo_prefetch_hints": "cc/toolchains",
    "fdo_profile": "cc/toolchains",
    "objc_library": "cc",
}

def _rules_cc_shim_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"rules_cc\")\n")
    ctx.file("BUILD.bazel", "")
    for d in ["cc", "cc/common", "cc/toolchains"]:
        ctx.file(d + "/BUILD.bazel", "exports_files(glob([\"*.bzl\"]))\n")
    loads, names = "", ""
    for rule, package in _RULES.items():
        # The modern per-rule files (rules_cc >= 0.1), so that BUILD files
        # load the same names under Bazel 4 and Bazel 9.
        ctx.file("%s/%s.bzl" % (package, rule), "def %s(**kwargs):\n    native.%s(**kwargs)\n" % (rule, rule))
        loads += "load(\"//%s:%s.bzl\", _%s = \"%s\")\n" % (package, rule, rule, rule)
        names += "%s = _%s\n" % (rule, rule)

    # A module-level "CcInfo = CcInfo" would shadow the built-in: go through a
    # second file.
    ctx.file("cc/common/native.bzl", "native_cc_info = CcInfo\nnative_cc_common = cc_common\n")
    for name, symbol in {"cc_info": "CcInfo", "cc_common": "cc_common"}.items():
        ctx.file(
            "cc/common/%s.bzl" % name,
            "load(\":native.bzl\", \"native_%s\")\n\n%s = native_%s\n" % (name, symbol, name),
        )
    ctx.file("cc/defs.bzl", loads + names)
    ctx.file("cc/find_cc_toolchain.bzl", """\
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

CC_TOOLCHAIN_ATTRS = {
    "_cc_toolchain": attr.label(default = Label("@bazel_tools//tools/cpp:current_cc_toolchain")),
}

def use_cc_toolchain(mandatory = False):
    return ["@bazel_tools//tools/cpp:toolchain_type"]

def find_cc_toolchain(ctx):
    return find_cpp_toolchain(ctx)
""")
    ctx.file("cc/action_names.bzl", """\
load("@bazel_tools//tools/build_defs/cc:action_names.bzl", _C = "CPP_COMPILE_ACTION_NAME", _L = "CPP_LINK_DYNAMIC_LIBRARY_ACTION_NAME")

CPP_COMPILE_ACTION_NAME = _C
CPP_LINK_DYNAMIC_LIBRARY_ACTION_NAME = _L
""")

rules_cc_shim = repository_rule(implementation = _rules_cc_shim_impl)

def _rules_shell_shim_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"rules_shell\")\n")
    ctx.file("BUILD.bazel", "")
    ctx.file("shell/BUILD.bazel", "")
    for rule in ["sh_binary", "sh_library", "sh_test"]:
        ctx.file("shell/%s.bzl" % rule, "def %s(**kwargs):\n    native.%s(**kwargs)\n" % (rule, rule))

rules_shell_shim = repository_rule(implementation = _rules_shell_shim_impl)

# Bazel resolves these labels for every test, with or without coverage.
_NO_COVERAGE = """\
#!/bin/sh
echo "bazel coverage needs remote_coverage_tools, which is not set up here." >&2
exit 1
"""

def _no_coverage_tools_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"remote_coverage_tools\")\n")
    ctx.file("no_coverage.sh", _NO_COVERAGE, executable = True)
    ctx.file("BUILD.bazel", """\
package(default_visibility = ["//visibility:public"])

[
    sh_binary(
        name = tool,
        srcs = ["no_coverage.sh"],
    )
    for tool in [
        "coverage_output_generator",
        "coverage_report_generator",
        "lcov_merger",
    ]
]
""")

no_coverage_tools = repository_rule(implementation = _no_coverage_tools_impl)
