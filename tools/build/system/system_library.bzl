"""Repository rule over a library that the distribution installed."""

def multiarch(ctx):
    """Returns Debian's multiarch triplet of this machine, e.g. x86_64-linux-gnu."""
    r = ctx.execute(["gcc", "-print-multiarch"])
    return r.stdout.strip() if r.return_code == 0 and r.stdout.strip() else "x86_64-linux-gnu"

def missing(name, what, apt, where):
    """The text of a failure: what is missing, and the line that installs it."""
    return """
*** @{name}: {what} was not found.
*** On Debian or Ubuntu: sudo apt-get install {apt}
*** (tools/setup installs everything that is required)
*** Searched: {where}""".format(name = name, what = what, apt = apt, where = ", ".join(where))

def version_id(ctx, package):
    """The package's version as an identifier.

    The compiler's own folders are no input of an action; this goes into a
    define, so that an upgrade by apt gives new command lines, thus a rebuild.
    """
    r = ctx.execute(["dpkg-query", "-W", "-f=${Version}", package])
    version = r.stdout.strip() if r.return_code == 0 else "unknown"
    return "".join([c if c.isalnum() else "_" for c in version.elems()])

def _find(ctx, dirs, file):
    return [d for d in dirs if ctx.path(d + "/" + file).exists]

def _what_is_missing(ctx, arch):
    """Returns None if the library is complete, otherwise a message."""
    a = ctx.attr
    if a.repo_name in ctx.os.environ.get("SHERD_WITHOUT", "").split(","):
        return missing(a.repo_name, "it (SHERD_WITHOUT names it)", a.apt, ["nowhere"])
    for src in a.links:
        src = src.format(multiarch = arch)
        if not ctx.path(src).exists:
            return missing(a.repo_name, src, a.apt, [src])
    header_dirs = ["/usr/include", "/usr/include/" + arch, "/usr/local/include"]
    for h in a.headers:
        if not _find(ctx, header_dirs, h):
            return missing(a.repo_name, "header <%s>" % h, a.apt, header_dirs)
    lib_dirs = ["/usr/lib/" + arch, "/usr/lib", "/usr/lib64", "/usr/local/lib"]
    for l in a.libraries:
        if not _find(ctx, lib_dirs, l):
            return missing(a.repo_name, "library " + l, a.apt, lib_dirs)
    for p in a.programs:
        if not ctx.which(p):
            return missing(a.repo_name, "program " + p, a.apt, ["PATH"])
    return None

_STUB = """\
load("@rules_cc//cc:cc_library.bzl", "cc_library")

# {name} is not installed. Everything here is incompatible: wildcard builds
# skip what depends on it, and naming such a target prints the constraint.
package(default_visibility = ["//visibility:public"])

constraint_setting(name = "apt")

constraint_value(
    name = "apt_install_{apt}",
    constraint_setting = ":apt",
)

[
    cc_library(
        name = target,
        target_compatible_with = [":apt_install_{apt}"],
    )
    for target in {targets}
]
"""

def _system_library_impl(ctx):
    a = ctx.attr
    arch = multiarch(ctx)
    ctx.file("WORKSPACE", "workspace(name = \"%s\")\n" % a.repo_name)
    error = _what_is_missing(ctx, arch)
    if error and not a.optional:
        fail(error)
    ctx.file("defs.bzl", "AVAILABLE = %r\n" % (not error))
    if error:
        # buildifier: disable=print
        print("optional library, targets that need it are skipped:" + error)
        ctx.file("BUILD.bazel", _STUB.format(
            name = a.repo_name,
            apt = a.apt,
            targets = repr(a.targets or [a.repo_name]),
        ))
        return
    for src, dst in a.links.items():
        ctx.symlink(src.format(multiarch = arch), dst)

    # pkg-config knows the right set of -l flags, which changes between releases
    # (Open MPI 6 splits libmpi, for one).
    linkopts = []
    for module in a.pkg_config:
        r = ctx.execute(["pkg-config", "--libs", module])
        if r.return_code == 0:
            linkopts += [f for f in r.stdout.strip().split(" ") if f]
    ctx.template("BUILD.bazel", a.build_file, {
        "{PKG_CONFIG_LINKOPTS}": repr(linkopts),
        "{VERSION_ID}": version_id(ctx, a.apt),
    })

system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {
        "apt": attr.string(mandatory = True),
        "build_file": attr.label(mandatory = True, allow_single_file = True),
        "headers": attr.string_list(),
        "libraries": attr.string_list(),
        "links": attr.string_dict(),
        "optional": attr.bool(),
        "pkg_config": attr.string_list(),
        "programs": attr.string_list(),
        "repo_name": attr.string(mandatory = True),
        # The targets of the stub; by default one, named like the repository.
        "targets": attr.string_list(),
    },
    configure = True,
    environ = [
        "PATH",
        "SHERD_WITHOUT",
    ],
    local = True,
)
