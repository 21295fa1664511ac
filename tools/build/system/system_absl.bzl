"""@com_google_absl from libabsl-dev, with upstream's labels.

Abseil's pkg-config files carry the dependency graph.  The table maps each
Bazel label to the pkg-config module that holds it; the closure of -l flags is
read from pkg-config once per repository fetch.
"""

load(":system_library.bzl", "missing", "version_id")

# package -> {target: pkg-config module without "absl_"}; None = same name.
_LABELS = {
    "algorithm": {"algorithm": None, "container": "algorithm_container"},
    "base": {
        "base": None,
        "config": None,
        "core_headers": None,
        "dynamic_annotations": None,
        "endian": None,
        "log_severity": None,
    },
    "cleanup": {"cleanup": None},
    "container": {
        "btree": None,
        "fixed_array": None,
        "flat_hash_map": None,
        "flat_hash_set": None,
        "inlined_vector": None,
        "node_hash_map": None,
        "node_hash_set": None,
    },
    "debugging": {
        "failure_signal_handler": None,
        "leak_check": None,
        "stacktrace": None,
        "symbolize": None,
    },
    "flags": {
        "commandlineflag": "flags_commandlineflag",
        "config": "flags_config",
        "flag": "flags",
        "marshalling": "flags_marshalling",
        "parse": "flags_parse",
        "reflection": "flags_reflection",
        "usage": "flags_usage",
    },
    "functional": {"any_invocable": None, "bind_front": None, "function_ref": None},
    "hash": {"hash": None},
    "memory": {"memory": None},
    "meta": {"type_traits": None},
    "numeric": {"bits": None, "int128": None},
    "random": {
        "bit_gen_ref": "random_bit_gen_ref",
        "distributions": "random_distributions",
        "random": "random_random",
        "seed_sequences": "random_seed_sequences",
    },
    "status": {"status": None, "statusor": None},
    "strings": {
        "cord": None,
        "str_format": None,
        "string_view": "strings",
        "strings": None,
    },
    "synchronization": {"synchronization": None},
    "time": {"time": None},
    "types": {
        "any": None,
        "compare": None,
        "optional": None,
        "span": None,
        "variant": None,
    },
    "utility": {"utility": None},
}

def _pkg_config(ctx, module, option):
    r = ctx.execute(["pkg-config", option, "absl_" + module])
    return r.stdout.strip() if r.return_code == 0 else None

def _system_absl_impl(ctx):
    name, apt = "com_google_absl", ctx.attr.apt
    if not ctx.which("pkg-config"):
        fail(missing(name, "program pkg-config", "pkg-config", ["PATH"]))
    header = "/usr/include/absl/base/options.h"
    if not ctx.path(header).exists:
        fail(missing(name, "Abseil", apt, [header]))
    version = _pkg_config(ctx, "base", "--modversion")
    if version == None:
        fail(missing(name, "absl_base.pc", apt, ["pkg-config"]))
    if int(version[:8]) < ctx.attr.min_version:
        fail("\n*** Abseil %s is older than the least supported, %d" % (version, ctx.attr.min_version))
    define = "SHERD_SYSTEM_VERSION_ABSL=" + version_id(ctx, apt)
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % name)
    ctx.file("BUILD.bazel", "")
    ctx.file("absl/BUILD.bazel", "")
    for package, targets in _LABELS.items():
        out = [
            "load(\"@rules_cc//cc:cc_library.bzl\", \"cc_library\")",
            "package(default_visibility = [\"//visibility:public\"])",
        ]
        for target, module in targets.items():
            flags = _pkg_config(ctx, module or target, "--libs")
            if flags == None:
                fail(missing(name, "absl_%s.pc" % (module or target), apt, ["pkg-config"]))

            # No --as-needed: where libraries are linked dynamically, a
            # cc_library's .so lacks its deps' linkopts, so that the program
            # must name them all, used or not.
            out.append("cc_library(name = %r, linkopts = %r, defines = [%r])" % (
                target,
                [f for f in flags.split(" ") if f],
                define,
            ))
        ctx.file("absl/%s/BUILD.bazel" % package, "\n".join(out) + "\n")

system_absl = repository_rule(
    implementation = _system_absl_impl,
    attrs = {
        "apt": attr.string(default = "libabsl-dev"),
        "min_version": attr.int(default = 20220623),
    },
    configure = True,
    environ = [
        "PATH",
        "PKG_CONFIG_PATH",
    ],
    local = True,
)
