"""Finds the CUDA toolkit; writes an incompatible stand-in where there is none."""

_STUB = """\
load("@rules_cc//cc:cc_library.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

constraint_setting(name = "toolkit")

constraint_value(
    name = "cuda_toolkit_installed",
    constraint_setting = ":toolkit",
)

[
    cc_library(
        name = target,
        target_compatible_with = [":cuda_toolkit_installed"],
    )
    for target in [
        "cuda_headers",
        "cudart",
        "nccl",
    ]
]
"""

_DEFS = """\
CUDA_FOUND = %r
CUDA_VERSION = %r
NCCL_FOUND = %r
NVCC = %r
"""

def _find_toolkit(ctx):
    if "cuda" in ctx.os.environ.get("SHERD_WITHOUT", "").split(","):
        return None
    roots = [ctx.os.environ.get(v, "") for v in ["CUDA_PATH", "CUDA_HOME"]]
    nvcc = ctx.which("nvcc")
    if nvcc:
        roots.append(str(nvcc.realpath.dirname.dirname))
    for root in roots + ["/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda"]:
        if root and ctx.path(root + "/bin/nvcc").exists:
            return str(ctx.path(root).realpath)
    return None

def _cuda_configure_impl(ctx):
    ctx.file("WORKSPACE", "workspace(name = \"local_config_cuda\")\n")
    root = _find_toolkit(ctx)
    if not root:
        ctx.file("defs.bzl", _DEFS % (False, "", False, ""))
        ctx.file("BUILD.bazel", _STUB)
        return
    libs = [
        d
        for d in [root + "/lib64", root + "/targets/x86_64-linux/lib", root + "/lib"]
        if ctx.path(d + "/libcudart.so").exists
    ]
    if not libs:
        fail("\n*** %s has nvcc, but no libcudart.so. SHERD_WITHOUT=cuda builds without it." % root)
    output = ctx.execute([root + "/bin/nvcc", "--version"]).stdout
    version = output.split("release ")[1].split(",")[0] if "release " in output else "unknown"
    nccl = ctx.path(root + "/include/nccl.h").exists or ctx.path("/usr/include/nccl.h").exists
    ctx.symlink(root + "/include", "include")
    ctx.file("defs.bzl", _DEFS % (True, version, nccl, root + "/bin/nvcc"))
    ctx.template("BUILD.bazel", ctx.attr._build_file, {
        "{LIB}": libs[0],
        "{VERSION_ID}": version.replace(".", "_"),
    })

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    attrs = {
        "_build_file": attr.label(
            allow_single_file = True,
            default = Label("//tools/build/system:cuda.BUILD"),
        ),
    },
    configure = True,
    environ = [
        "CUDA_HOME",
        "CUDA_PATH",
        "PATH",
        "SHERD_WITHOUT",
    ],
    local = True,
)
