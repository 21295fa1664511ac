"""CUDA kernels under Bazel: nvcc compiles them, and they become bytes of C++.

Nothing of the toolkit is linked, and without it there are no bytes:
everything builds with and without it.
"""

load("@local_config_cuda//:defs.bzl", "CUDA_FOUND", "CUDA_VERSION", "NVCC")
load("@rules_cc//cc:find_cc_toolchain.bzl", "find_cc_toolchain", "use_cc_toolchain")
load("@rules_cc//cc/common:cc_common.bzl", "cc_common")
load("@rules_cc//cc/common:cc_info.bzl", "CcInfo")

_ArchitecturesInfo = provider(
    doc = "The GPUs for which kernels are compiled.",
    fields = {"names": "as nvcc has them in sm_NAME, oldest first"},
)

def _number(name):
    digits = name[:-1] if name[-1:] in ["a", "f"] else name
    return int(digits) if digits.isdigit() else None

def _cuda_architectures_impl(ctx):
    names = ctx.build_setting_value.split(",")
    for name in names:
        if _number(name) == None:
            fail("%s is a list of compute capabilities, as in 80,90,100; found %r" % (ctx.label, name))
    return _ArchitecturesInfo(names = sorted(names, key = _number))

cuda_architectures = rule(
    implementation = _cuda_architectures_impl,
    build_setting = config.string(flag = True),
    doc = "A build setting: compute capabilities with commas between them.",
)

def _at_least(version):
    """Whether the toolkit is of `version`, e.g. [12, 8], or later."""
    found = [int(n) for n in CUDA_VERSION.split(".") if n.isdigit()]
    return found >= version

def _is_known(name):
    """Whether the toolkit compiles for `name`. All that compile C++20 know 90."""
    return _number(name) < 100 or _at_least([12, 8])

def _fatbin(ctx):
    """Compiles src for all architectures, and to PTX for those to come."""
    cc_toolchain = find_cc_toolchain(ctx)
    deps = cc_common.merge_cc_infos(cc_infos = [d[CcInfo] for d in ctx.attr.deps])
    context = deps.compilation_context
    wanted = ctx.attr._architectures[_ArchitecturesInfo].names

    # GPUs younger than the toolkit compile the PTX of the newest that it knows.
    names = [name for name in wanted if _is_known(name)]
    if not names:
        fail("CUDA %s compiles for none of %s: see --//tools/build:cuda_architectures" % (CUDA_VERSION, ", ".join(wanted)))
    args = ctx.actions.args()
    args.add("-ccbin", cc_toolchain.compiler_executable)
    args.add_all(["-fatbin", "-std=c++20", "-O3", "--Werror=all-warnings"])

    # Functions that are constexpr run on GPUs, too.
    args.add("--expt-relaxed-constexpr")
    for name in names:
        args.add("-gencode=arch=compute_%s,code=sm_%s" % (name, name))
    args.add("-gencode=arch=compute_%s,code=compute_%s" % (names[-1], names[-1]))

    # Drivers before 12.4 cannot read what it writes. Those that toolkits of 12
    # are built for may be older, those of 13 are not.
    if _at_least([13, 0]):
        args.add("--compress-mode=size")
    args.add_all(ctx.attr.copts)
    args.add_all(context.defines, before_each = "-D")

    # nvcc knows no -iquote; its host compiler does.
    args.add_all(context.quote_includes, format_each = "-Xcompiler=-iquote,%s", uniquify = True)
    args.add_all(context.includes, before_each = "-I", uniquify = True)
    args.add_all(context.system_includes, before_each = "-isystem", uniquify = True)
    fatbin = ctx.actions.declare_file(ctx.label.name + ".fatbin")
    args.add(ctx.file.src)
    args.add("-o", fatbin)
    ctx.actions.run(
        arguments = [args],
        executable = NVCC,
        inputs = depset([ctx.file.src], transitive = [context.headers, cc_toolchain.all_files]),
        mnemonic = "CudaCompile",
        outputs = [fatbin],
        progress_message = "Compiling %s (nvcc, sm_%s)" % (ctx.file.src.short_path, ", sm_".join(names)),
        use_default_shell_env = True,
    )
    return fatbin

def _cuda_image_impl(ctx):
    include = ctx.actions.declare_file(ctx.label.name + ".inc")
    if not CUDA_FOUND:
        ctx.actions.write(include, "// No nvcc was found.\nconstexpr unsigned long long kImage[] = {0};\nconstexpr unsigned long kImageBytes = 0;\n")
        return DefaultInfo(files = depset([include]))
    fatbin = _fatbin(ctx)
    ctx.actions.run_shell(
        arguments = [NVCC[:-len("nvcc")] + "bin2c", fatbin.path, include.path],
        command = "(\"$1\" --const --type longlong --name kImage \"$2\" && " +
                  "echo 'constexpr unsigned long kImageBytes = sizeof(kImage);') > \"$3\"",
        inputs = [fatbin],
        mnemonic = "CudaEmbed",
        outputs = [include],
        progress_message = "Embedding %s" % fatbin.short_path,
        use_default_shell_env = True,
    )
    return DefaultInfo(files = depset([include]))

cuda_image = rule(
    implementation = _cuda_image_impl,
    attrs = {
        "copts": attr.string_list(doc = "further options of nvcc"),
        "deps": attr.label_list(
            doc = "what src includes",
            providers = [CcInfo],
        ),
        "src": attr.label(
            allow_single_file = [".cu"],
            mandatory = True,
        ),
        "_architectures": attr.label(default = Label("//tools/build:cuda_architectures")),
        "_cc_toolchain": attr.label(default = Label("@bazel_tools//tools/cpp:current_cc_toolchain")),
    },
    doc = "<name>.inc: C++ that defines kImage and kImageBytes, a fatbin of kernels.",
    fragments = ["cpp"],
    toolchains = use_cc_toolchain(),
)
