"""@com_google_protobuf from libprotobuf-dev and protobuf-compiler."""

load(":system_library.bzl", "missing", "version_id")

_WKT = {
    "any": [],
    "api": ["source_context", "type"],
    "descriptor": [],
    "duration": [],
    "empty": [],
    "field_mask": [],
    "source_context": [],
    "struct": [],
    "timestamp": [],
    "type": ["any", "source_context"],
    "wrappers": [],
}

def _system_protobuf_impl(ctx):
    name, apt = "com_google_protobuf", "libprotobuf-dev protobuf-compiler"
    header = "/usr/include/google/protobuf/message.h"
    if not ctx.path(header).exists:
        fail(missing(name, "Protobuf", apt, [header]))
    protoc = ctx.which("protoc")
    if not protoc:
        fail(missing(name, "program protoc", apt, ["PATH"]))

    # The compiler and the library must be of one release.
    v = ctx.execute([protoc, "--version"]).stdout.strip().split(" ")[-1]
    lib = ctx.execute(["pkg-config", "--modversion", "protobuf"]).stdout.strip()
    if lib and lib != v:
        fail("\n*** protoc %s (%s) does not match libprotobuf %s" % (v, protoc, lib))
    ctx.file("WORKSPACE", "workspace(name = \"com_google_protobuf\")\n")
    ctx.symlink(protoc, "protoc")
    out = [
        "load(\"@rules_cc//cc:cc_library.bzl\", \"cc_library\")",
        "load(\"//bazel:proto_library.bzl\", \"proto_library\")",
        "package(default_visibility = [\"//visibility:public\"])",
        "exports_files([\"protoc\"])",
        "cc_library(name = \"protobuf\", linkopts = [\"-lprotobuf\", \"-pthread\"], defines = [\"SHERD_SYSTEM_VERSION_PROTOBUF=%s\"])" % version_id(ctx, "libprotobuf-dev"),
        "cc_library(name = \"protobuf_lite\", linkopts = [\"-lprotobuf-lite\", \"-pthread\"])",
        "cc_library(name = \"protoc_lib\", linkopts = [\"-lprotoc\"], deps = [\":protobuf\"])",
    ]
    for name, deps in _WKT.items():
        ctx.symlink("/usr/include/google/protobuf/%s.proto" % name, "google/protobuf/%s.proto" % name)
        out.append("proto_library(name = \"%s_proto\", srcs = [\"google/protobuf/%s.proto\"], deps = %r)" % (
            name,
            name,
            [":%s_proto" % d for d in deps],
        ))
    out += [
        # Their generated code is in libprotobuf itself.
        "filegroup(name = \"well_known_protos\", srcs = glob([\"google/protobuf/*.proto\"]))",
        "proto_lang_toolchain(",
        "    name = \"cc_toolchain\",",
        "    blacklisted_protos = %r," % [":%s_proto" % n for n in _WKT],
        "    command_line = \"--cpp_out=$(OUT)\",",
        "    runtime = \":protobuf\",",
        ")",
    ]
    ctx.file("BUILD.bazel", "\n".join(out) + "\n")
    ctx.file("bazel/BUILD.bazel", "")
    for r in ["proto_library", "cc_proto_library"]:
        ctx.file("bazel/%s.bzl" % r, "def %s(**kwargs):\n    native.%s(**kwargs)\n" % (r, r))

system_protobuf = repository_rule(
    implementation = _system_protobuf_impl,
    configure = True,
    environ = ["PATH"],
    local = True,
)
