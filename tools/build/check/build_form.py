"""The essentials of buildifier's form: BUILD and .bzl files parse as Python."""

import ast
import re

import tree

# Buildifier's order of arguments: these first, the rest by name, those last.
_FIRST = ["name", "package_name", "size", "timeout", "testonly", "src",
          "srcs_version", "srcs", "out", "outs", "hdrs"]
_LAST = ["deps", "implementation", "implements", "alwayslink"]
_SORTED_LISTS = {"data", "default_visibility", "deps", "hdrs", "srcs", "tags",
                 "tests", "textual_hdrs", "tools", "visibility"}
# These repositories are views of vendors' libraries, compiled as the vendor
# does.
_VIEWS = "tools/build/system/"
_NATIVE = {"cc_binary", "cc_library", "cc_proto_library", "cc_test", "proto_library"}


def _argument_key(name):
    if name in _FIRST:
        return (0, _FIRST.index(name), "")
    if name in _LAST:
        return (2, _LAST.index(name), "")
    return (1, 0, name)


def _label_key(text):
    phase = 1 if text.startswith(":") else 2 if text.startswith("//") else (
        3 if text.startswith("@") else 0)
    return (phase, text.replace(":", ".").split("."), text)


def _callee(call):
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _strings(node):
    if isinstance(node, ast.List) and all(
            isinstance(e, ast.Constant) and isinstance(e.value, str) for e in node.elts):
        return [e.value for e in node.elts]
    return None


def _check_list(node, what):
    """A list or dictionary of several elements has one per line and a trailing comma."""
    if isinstance(node, ast.Dict):
        elements, ends, bracket = node.keys, node.values, "}"
    elif isinstance(node, ast.List):
        elements, ends, bracket = node.elts, node.elts, "]"
    else:
        return
    for element in ends:
        yield from _check_list(element, what)
    if len(elements) < 2:
        return
    lines = [e.lineno for e in elements]
    if len(set(lines)) != len(lines) or lines[0] == node.lineno:
        yield node.lineno, "%s: one element per line" % what
    elif ends[-1].end_lineno == node.end_lineno:
        yield node.lineno, "%s: a trailing comma, and %s on its own line" % (what, bracket)


def _check_arguments(call):
    name = _callee(call)
    keywords = [k for k in call.keywords if k.arg]
    if len(keywords) > 1:
        lines = [k.value.lineno for k in keywords]
        if len(set(lines)) != len(lines) or lines[0] == call.lineno:
            yield call.lineno, "%s(): one argument per line" % name
        elif call.keywords[-1].value.end_lineno == call.end_lineno:
            yield call.lineno, "%s(): a trailing comma, and ) on its own line" % name
    order = [k.arg for k in keywords]
    if order != sorted(order, key=_argument_key):
        yield call.lineno, "%s(): arguments in the order %s" % (
            name, ", ".join(sorted(order, key=_argument_key)))
    for keyword in keywords:
        what = "%s(%s)" % (name, keyword.arg)
        yield from _check_list(keyword.value, what)
        values = _strings(keyword.value)
        if values and keyword.arg in _SORTED_LISTS:
            if values != sorted(values, key=_label_key):
                yield keyword.value.lineno, what + " is not sorted"
            if len(set(values)) != len(values):
                yield keyword.value.lineno, what + " names something twice"


def _check_loads(tree_, source):
    loads = [s.value for s in tree_.body
             if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and
             _callee(s.value) == "load"]
    labels = [c.args[0].value for c in loads]
    # Buildifier: other repositories first, then by label.
    in_order = sorted(
        labels, key=lambda label: (not label.startswith("@"), _label_key(label)))
    if labels != in_order:
        yield loads[0].lineno, "loads in the order " + ", ".join(in_order)
    body = source
    for call in loads:
        body = body.replace(ast.get_source_segment(source, call), "", 1)
    for call in loads:
        names = [a.value for a in call.args[1:]] + [k.arg for k in call.keywords]
        if names != sorted(names, key=_label_key) and not call.keywords:
            yield call.lineno, "load(): names are not sorted"
        for name in names:
            if not re.search(r"\b%s\b" % re.escape(name), body):
                yield call.lineno, "load(): %s is not used" % name


def _check_text(source):
    if not source.endswith("\n") and source:
        yield source.count("\n") + 1, "ends with a newline"
    for number, line in enumerate(source.split("\n"), 1):
        if "\t" in line:
            yield number, "no tabs"
        if line != line.rstrip():
            yield number, "no blanks at the end"
        if line.strip() and not line.lstrip().startswith("#"):
            if (len(line) - len(line.lstrip())) % 4 and '"""' not in source:
                yield number, "indentation in steps of four"


def _check_quotes(tree_, source):
    lines = source.encode("utf-8").split(b"\n")  # Offsets are those of bytes.
    for node in ast.walk(tree_):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if lines[node.lineno - 1][node.col_offset:].startswith(b"'"):
                yield node.lineno, "double quotes"


def _check_build_file(path, tree_, source):
    """Rules for BUILD files that do not apply to .bzl files."""
    yield from _check_text(source)
    calls = [s.value for s in ast.walk(tree_)
             if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)]
    for call in calls:
        if _callee(call) != "load":
            yield from _check_arguments(call)
        if _callee(call) in _NATIVE and not path.startswith(_VIEWS):
            yield call.lineno, "%s(): use the macro sherd_%s" % ((_callee(call),) * 2)
    for call in calls:
        for keyword in call.keywords:
            if _callee(call) == "package" and keyword.arg == "default_visibility" and \
                    _strings(keyword.value) != ["//visibility:private"] and \
                    not path.startswith("tools/build/"):
                yield call.lineno, "package(): private by default; say visibility per target"


def check_source(path, source):
    """Yields messages about one file."""
    try:
        parsed = ast.parse(source, path)
    except SyntaxError as error:
        return ["%s:%s: does not parse: %s" % (path, error.lineno, error.msg)]
    found = list(_check_loads(parsed, source)) + list(_check_quotes(parsed, source))
    if '"@rules_cc//' in source and not path.startswith("tools/build/"):
        found.append((1, "only tools/build/defs.bzl loads @rules_cc: use its macros"))
    if not path.endswith(".bzl"):
        found += list(_check_build_file(path, parsed, source))
    return ["%s:%d: %s" % (path, line, text) for line, text in sorted(found)]


def check():
    found = []
    for path in tree.files("BUILD.bazel", "BUILD", ".bzl"):
        if path.startswith(tree.CONSUMER):
            continue
        found += check_source(path, tree.read(path))
    return found
