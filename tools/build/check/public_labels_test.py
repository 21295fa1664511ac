"""Tests of public_labels.py."""

import unittest
import unittest.mock

import public_labels
import tree


def rule(name, *visibility, kind="cc_library"):
    """A rule as the XML of a query shows it; without `visibility` it has its package's."""
    labels = "".join('<label value="%s"/>' % label for label in visibility)
    return """<rule class="%s" location="/r/BUILD.bazel:3:17" name="%s">
      <string name="name" value="x"/>
      %s
      <string name="generator_function" value="sherd_cc_library"/>
      <list name="deps"><label value="//visibility:public"/></list>
      <rule-input name="//backends:plugin"/>
      <rule-output name="%s.stripped"/></rule>""" % (
          kind, name, '<list name="visibility">%s</list>' % labels if visibility else "", name)


def query(*targets):
    return '<?xml version="1.1" encoding="UTF-8" standalone="no"?>\n' \
           '<query version="2">%s</query>' % "".join(targets)


EVERYBODY = "//visibility:public"


class PublicLabelsTest(unittest.TestCase):

    def test_rules_are_those_of_the_list(self):
        xml = query(rule("//core:a", EVERYBODY), rule("//core:b", "//:__subpackages__"),
                    rule("//core:c"), rule("//core:d", "//visibility:private"))
        self.assertEqual(public_labels.check(xml, ["//core:a"]), [])
        self.assertEqual(public_labels.check(xml, []), [
            "//core:a: is public: list it in tools/build/public_labels.txt, or narrow it"])
        self.assertEqual(public_labels.check(xml, ["//core:a", "//core:b", "//core:c"]), [
            "//core:%s: is listed in tools/build/public_labels.txt, but not public" % name
            for name in "bc"])

    def test_what_macros_make_counts(self):
        library = "//backends/x:libsherd_backend_x.so"
        xml = query(rule("//backends/x:x", EVERYBODY), rule(library, EVERYBODY, kind="cc_binary"),
                    rule("//p:suite", EVERYBODY, kind="test_suite"))
        self.assertEqual(public_labels.public(xml), {"//backends/x:x", library, "//p:suite"})

    def test_public_beside_others_is_public(self):
        xml = query(rule("//core:a", "//rpc:__pkg__", EVERYBODY),
                    rule("//core:b", "@@" + EVERYBODY),
                    rule("//core:c", "//core:friends", "//visibility_of:public"))
        self.assertEqual(public_labels.public(xml), {"//core:a", "//core:b"})

    def test_files_and_what_macros_use_do_not_count(self):
        xml = query(rule("//tools/build:optimised", EVERYBODY, kind="config_setting"),
                    rule("//tools/build/system:a", EVERYBODY), rule("//tools/builder:a", EVERYBODY),
                    '<source-file location="/r/LICENSE:1:1" name="//:LICENSE">'
                    '<visibility-label name="//visibility:public"/></source-file>',
                    '<generated-file generating-rule="//core:a" name="//core:a.inc"/>',
                    '<package-group name="//core:friends"><list name="packages">'
                    '<string value="//core"/></list></package-group>')
        self.assertEqual(public_labels.public(xml), {"//tools/builder:a"})

    def test_the_list_is_sorted_and_names_each_label_once(self):
        labels = public_labels.listed()
        self.assertIn("//:sherd", labels)
        self.assertIn("//backends/cuda:libsherd_device_cuda.so", labels)
        self.assertEqual(labels, sorted(set(labels), key=lambda label: label.split(":")))

    def test_the_consumer_workspace_depends_on_all_of_the_list(self):
        def check(labels, *named):
            return public_labels.check_consumer(
                'load(":p.bzl", "public_labels")\n\npublic_labels(\n    name = "p",\n'
                "    labels = [%s],\n)\n" % ", ".join('"@sherd%s"' % n for n in named), labels)

        where = "tools/build/consumer_test/BUILD.bazel: "
        self.assertEqual(check(["//:a", "//b:c"], "//:a", "//b:c"), [])
        self.assertEqual(check(["//:a", "//b:c"], "//:a"), [
            where + "public_labels() lacks @sherd//b:c, which tools/build/public_labels.txt lists"])
        self.assertEqual(check(["//:a"], "//:a", "//b:c"), [
            where + "@sherd//b:c is not listed in tools/build/public_labels.txt"])
        self.assertEqual(len(public_labels.check_consumer("", ["//:a"])), 1)

    def test_the_consumer_workspace_has_a_target_per_label_that_the_build_analyses(self):
        made = []
        names = {"attr": unittest.mock.Mock(),
                 "rule": lambda **_: lambda **target: made.append(target)}
        source = tree.read(tree.CONSUMER + "/public_labels.bzl")
        exec(source, names)  # pylint: disable=exec-used
        labels = ["@sherd" + label for label in public_labels.listed()]
        names["public_labels"](name="p", labels=labels)
        self.assertEqual([target["dep"] for target in made], labels)
        self.assertEqual(len({target["name"] for target in made}), len(labels))
        for target in made:
            self.assertRegex(target["name"], r"^p(/[\w.]+)+$")
            self.assertNotIn("tags", target)  # "manual" would take it out of //...


if __name__ == "__main__":
    unittest.main()
