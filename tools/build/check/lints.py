"""Rules about C++ files that a compiler does not know. Each returns messages."""

import collections
import os
import re

import tree

# First parts of quoted includes that are not ours.
_VENDORS = {"absl", "benchmark", "gloo", "gmock", "google", "gtest", "isa-l",
            "nlohmann", "spdlog"}
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


def _cc_files():
    return [f for f in tree.files(".cc", ".h", ".cu", ".cuh")
            if not f.startswith(tree.CONSUMER)]


def _line(text, position):
    return text.count("\n", 0, position) + 1


def _matches(pattern, paths, message):
    found = []
    for path in paths:
        text = tree.code_only(tree.read(path))
        for match in re.finditer(pattern, text, re.MULTILINE):
            found.append("%s:%d: %s" % (path, _line(text, match.start()), message))
    return found


def environment(paths=None):
    """Only core/base/knobs.cc reads the environment."""
    paths = [f for f in paths or _cc_files() if f != "core/base/knobs.cc"]
    return _matches(
        r"\b(?:secure_)?getenv\s*\(", paths,
        "only core/base/knobs.cc reads the environment: add a knob there")


def includes(paths=None):
    """Quoted includes are "sherd/<path>" of a file that exists, or a vendor's."""
    found = []
    for path in paths or _cc_files():
        text = tree.code_only(tree.read(path))
        for match in _INCLUDE.finditer(text):
            name = match.group(1)
            first, _, rest = name.partition("/")
            where = "%s:%d: " % (path, _line(text, match.start()))
            if first == "sherd":
                # Protobuf's headers, and images of device code, are made.
                sources = {rest, re.sub(r"\.pb\.h$", ".proto", rest),
                           re.sub(r"\.inc$", ".cu", rest)}
                if not any(os.path.exists(os.path.join(tree.ROOT, s)) for s in sources):
                    found.append(where + '"%s": there is no %s' % (name, rest))
            elif first not in _VENDORS or not rest:
                found.append(where + '"%s": our headers are included as '
                             '"sherd/<package>/<file>.h"' % name)
    return found


def guards(paths=None):
    """Headers are guarded by SHERD_<PATH>_H_."""
    found = []
    for path in paths or [f for f in _cc_files() if f.endswith(".h")]:
        guard = "SHERD_" + re.sub(r"[^A-Za-z0-9]", "_", path).upper() + "_"
        text = tree.code_only(tree.read(path))
        if not re.match(r"\s*#ifndef %s\n#define %s\n" % (guard, guard), text):
            found.append("%s: begins with #ifndef %s, #define %s" % (path, guard, guard))
        elif not re.search(r"#endif  ?(// %s|/\* %s \*/)\s*$" % (guard, guard),
                           tree.read(path)):
            found.append("%s: ends with #endif  // %s" % (path, guard))
    return found


def protobuf(paths=None):
    """No Protobuf type appears in a header of core or backends."""
    paths = paths or [f for f in _cc_files()
                      if f.endswith(".h") and f.startswith(("core/", "backends/"))]
    return _matches(r"\.pb\.h\"|google::protobuf|google/protobuf/", paths,
                    "no Protobuf in a header of core or backends")


def markers(paths=None):
    """Nothing is left for later."""
    found = []
    for path in paths or tree.files(".cc", ".h", ".proto", ".bzl", ".bazel"):
        for number, line in enumerate(tree.read(path).split("\n"), 1):
            if re.search(r"\b(TODO|FIXME|XXX)\b", line):
                found.append("%s:%d: do it, or leave it out" % (path, number))
    return found


# Of core/base, what programs need.
_OF_BASE = ["sherd/core/base/error_info.h", "sherd/core/base/logging.h",
            "sherd/core/base/status_macros.h"]


def umbrella():
    """sherd.h includes the headers at the top of those packages of core that @sherd has."""
    packages = set(re.findall(r'"//(core/\w+)[:"]', tree.read("BUILD.bazel"))) - {"core/base"}
    wanted = _OF_BASE + ["sherd/" + path for path in tree.files(".h")
                         if path.rpartition("/")[0] in packages]
    included = _INCLUDE.findall(tree.code_only(tree.read("sherd.h")))
    return ["sherd.h: %s \"%s\": sherd.h has what lies at the top of core's packages" % (verb, name)
            for verb, names in (("include", set(wanted) - set(included)),
                                ("do not include", set(included) - set(wanted)))
            for name in sorted(names)]


# The code of the plugin guide's examples.
_GUIDE = "backends/PLUGIN_GUIDE.md"
_EXAMPLE = [tree.CONSUMER + "/" + name
            for name in ("BUILD.bazel", "sockets_backend.cc", "sockets_conformance_test.cc")]


def quotes(guide=_GUIDE, sources=None):
    """Each block of code in the plugin guide occurs, in whole lines, in the example."""
    code = ["\n" + tree.read(source) for source in sources or _EXAMPLE]
    text = tree.read(guide)
    found = []
    for match in re.finditer(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if not any("\n" + match.group(1) in source for source in code):
            found.append("%s:%d: not literally in %s" % (
                guide, _line(text, match.start()), ", ".join(sources or _EXAMPLE)))
    return found


# Sources in one folder, without tests and benchmarks.
_MOST_SOURCES = 25


def rooms(paths=None):
    """A folder is a concept: not too many sources, and no sources above the rooms of a package."""
    paths = paths or tree.files(".cc", ".h", "BUILD.bazel", "README.md")
    sources = [f for f in paths if f.endswith(".cc") and not
               re.search(r"_(test|benchmark)\.cc$", f) and not f.startswith(tree.CONSUMER)]
    folders = collections.Counter(f.rpartition("/")[0] for f in sources)
    found = ["%s: %d sources; at most %d in a folder" % (folder, count, _MOST_SOURCES)
             for folder, count in sorted(folders.items()) if count > _MOST_SOURCES]
    packages = {f.rpartition("/")[0] for f in paths if f.endswith("BUILD.bazel")}
    with_rooms = {f.rpartition("/")[0] for f in folders
                  if f not in packages and not f.endswith("/testdata")} & packages
    for package in sorted(with_rooms):
        if folders[package] and not package.startswith("tools/"):
            found.append("%s: sources belong in its rooms" % package)
        if package + "/README.md" not in paths:
            found.append("%s: a README.md explains what its rooms are for" % package)
    return found


def links(paths=None):
    """The targets of links in this repository's documents exist."""
    found = []
    for path in paths or tree.files(".md"):
        for match in re.finditer(r"\]\(([^)#:]+)(#[^)]*)?\)", tree.read(path)):
            target = os.path.join(tree.ROOT, os.path.dirname(path), match.group(1))
            if not os.path.exists(target):
                found.append("%s: links to %s, which does not exist" % (path, match.group(1)))
    return found


_NOT_CODE = re.compile(
    r'''"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*''', re.MULTILINE)
_SCOPES = re.compile(r"[{};]")
_NAMESPACE = re.compile(r"\bnamespace\b\s*([\w:]*)\s*$")
_TYPE = re.compile(r"\b(?:class|struct|union|enum(?:\s+(?:class|struct))?)\s+"
                   r"(?:(?:alignas|ABSL_\w+)\s*\([^()]*\)\s*|\[\[[^]]*\]\]\s*|ABSL_\w+\s+)*"
                   r"(\w+)\s*(?:final\s*)?(?::(?!:).*)?$", re.DOTALL)


def _types(text):
    """Qualified names of the types that C++ text defines in named namespaces, with positions."""
    text = _NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), tree.code_only(text))
    scopes = []  # A namespace's name, or None: nothing in there counts.
    start = 0
    for match in _SCOPES.finditer(text):
        head = text[start:match.start()].rstrip()
        if match.group(0) == "{":
            namespace = _NAMESPACE.search(head)
            defined = _TYPE.search(head)
            if defined and None not in scopes:
                yield "::".join(filter(None, scopes + [defined.group(1)])), start + len(head)
            inside = namespace.group(1) if namespace else None
            scopes.append("" if head.strip() == "extern" else inside or None)
        elif match.group(0) == "}" and scopes:
            scopes.pop()
        start = match.end()


def one_definition(paths=None):
    """No two files define types of one name in one namespace: linked together they are one."""
    defined = {}
    for path in paths or _cc_files():
        text = tree.read(path)
        for name, position in _types(text):
            defined.setdefault(name, {}).setdefault(path, _line(text, position))
    return ["%s: %s: %s defines one too; rename one of them, or put it into an unnamed namespace" %
            ("%s:%d" % places[0], name, "%s:%d" % places[1])
            for name, files in sorted(defined.items()) if len(files) > 1
            for places in [sorted(files.items())]]


# Name, function: each is a step of tools/check.
ALL = [
    ("environment", environment),
    ("includes", includes),
    ("header guards", guards),
    ("no Protobuf in headers", protobuf),
    ("no leftovers", markers),
    ("sherd.h", umbrella),
    ("quotes of the plugin guide", quotes),
    ("rooms", rooms),
    ("links of documents", links),
    ("types of one name", one_definition),
]
