"""What other repositories may depend on: a list that people read, and the visibility of rules."""

import ast
import re
import xml.etree.ElementTree as ElementTree

import tree

LIST = "tools/build/public_labels.txt"
_CONSUMER = tree.CONSUMER + "/BUILD.bazel"
_PUBLIC = "//visibility:public"
# Macros of .bzl files use these in other repositories.
_OF_MACROS = re.compile(r"//tools/build[:/]")


def listed():
    """The labels of the list."""
    return re.findall(r"^//.*$", tree.read(LIST), re.MULTILINE)


def public(query_xml):
    """The rules of public visibility in a query's XML, also those that macros made.

    The XML shows the visibility that a rule has of its own. A package's default
    is private: form of BUILD files. Files are no rules: those that a BUILD file
    exports are not among these, and neither are .bzl files.
    """
    return {rule.get("name")
            for rule in ElementTree.fromstring(query_xml).iter("rule")
            for labels in rule.iterfind("list[@name='visibility']")
            if any(label.get("value", "").lstrip("@") == _PUBLIC for label in labels)
            and not _OF_MACROS.match(rule.get("name"))}


def check(query_xml, labels=None):
    """Rules of public visibility are those of the list, and no others."""
    labels = listed() if labels is None else labels
    found = public(query_xml)
    return ["%s: %s" % (label, "is public: list it in %s, or narrow it" % LIST
                        if label in found else "is listed in %s, but not public" % LIST)
            for label in sorted(found ^ set(labels))]


def consumed(build_file=None):
    """Labels, as here, that the consumer workspace's public_labels() names."""
    text = tree.read(_CONSUMER) if build_file is None else build_file
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "public_labels":
            for argument in node.keywords:
                if argument.arg == "labels":
                    return [label[len("@sherd"):] for label in ast.literal_eval(argument.value)]
    return []


def check_consumer(build_file=None, labels=None):
    """The consumer workspace depends on each label of the list; its build analyses them."""
    labels = listed() if labels is None else labels
    found = consumed(build_file)
    return ["%s: %s" % (_CONSUMER, "public_labels() lacks @sherd%s, which %s lists" % (label, LIST)
                        if label in labels else "@sherd%s is not listed in %s" % (label, LIST))
            for label in sorted(set(found) ^ set(labels))]
