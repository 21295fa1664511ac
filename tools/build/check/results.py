"""The results of a `bazel test` run, from its build events and its tests' XML."""

import collections
import json
import os
import re
import urllib.parse
import xml.etree.ElementTree as ElementTree


class Tally:
    """Counts, with a reason for everything that did not pass."""

    def __init__(self):
        self.passed = 0
        self.failures = []  # "what: why"
        self.skips = collections.defaultdict(list)  # reason -> what
        self.not_built = collections.defaultdict(list)  # reason -> labels

    def fail(self, what, why=""):
        self.failures.append(what + (": " + why if why else ""))

    def skip(self, what, reason):
        self.skips[reason].append(what)

    @property
    def skipped(self):
        return sum(len(v) for v in self.skips.values())

    def add(self, other):
        self.passed += other.passed
        self.failures += other.failures
        for reason, what in other.skips.items():
            self.skips[reason] += what
        for reason, labels in other.not_built.items():
            self.not_built[reason] += [l for l in labels if l not in self.not_built[reason]]

    def counts(self):
        return "%d passed, %d failed, %d skipped" % (
            self.passed, len(self.failures), self.skipped)

    def verdict(self):
        """Lines: what was not built, skipped and failed, why, and the counts."""
        for reason, labels in sorted(self.not_built.items()):
            yield "not built, %d targets: %s" % (len(labels), reason)
            yield from ("  " + label for label in sorted(labels))
        for reason, what in sorted(self.skips.items()):
            yield "skipped %d: %s (%s%s)" % (
                len(what), reason, what[0], ", …" if len(what) > 1 else "")
        yield from ("FAILED " + failure for failure in self.failures)
        yield self.counts()

    def to_json(self):
        return {"passed": self.passed, "failures": self.failures, "skips": self.skips,
                "not_built": self.not_built}

    @staticmethod
    def from_json(kept):
        tally = Tally()
        tally.passed, tally.failures = kept["passed"], kept["failures"]
        tally.skips.update(kept["skips"])
        tally.not_built.update(kept["not_built"])
        return tally


def _summary(text):
    """A message of GoogleTest in one line."""
    lines = [l.strip() for l in (text or "").strip().split("\n") if l.strip()]
    if len(lines) > 1 and re.match(r"\S+:\d+$", lines[0]):
        lines = lines[1:]  # GoogleTest's first line is "file:line".
    summary = " | ".join(lines)
    return summary if len(summary) <= 300 else summary[:300] + "..."


def is_googletest(root):
    return root.tag == "testsuites" and any(
        c.get("classname") is not None for c in root.iter("testcase"))


def add_googletest(tally, label, root):
    """Adds the cases of one GoogleTest XML; returns how many failed."""
    failed = 0
    for case in root.iter("testcase"):
        name = "%s %s.%s" % (label, case.get("classname"), case.get("name"))
        failure, skip = case.find("failure"), case.find("skipped")
        if failure is not None:
            failed += 1
            tally.fail(name, _summary(failure.get("message")))
        elif skip is not None:
            tally.skip(name, _summary(skip.get("message")) or "no reason given")
        elif case.get("status") == "notrun" or case.get("result") == "suppressed":
            tally.skip(name, "the test is disabled")
        else:
            tally.passed += 1
    return failed


def _path(uri):
    return urllib.parse.unquote(urllib.parse.urlparse(uri).path)


def add_test_run(tally, label, status, xml_path):
    """Adds one run (of one shard) of one test target."""
    passed = status in ("PASSED", "FLAKY")
    root = None
    if xml_path and os.path.exists(xml_path) and os.path.getsize(xml_path):
        try:
            root = ElementTree.parse(xml_path).getroot()
        except ElementTree.ParseError:
            root = None  # A test that died while it wrote.
    if root is None or not is_googletest(root):
        if passed:
            tally.passed += 1
        else:
            tally.fail(label, status)
        return
    if not add_googletest(tally, label, root) and not passed:
        # It crashed, ran out of time, or failed outside of a case.
        tally.fail(label, status)


def _read_events(path):
    """(tests with their tags, aborted labels, runs) of an event file."""
    tests, aborted, runs = {}, {}, {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            event = json.loads(line)
            identity = event.get("id", {})
            if "testSize" in event.get("configured", {}):
                label = identity["targetConfigured"]["label"]
                tests[label] = event["configured"].get("tag", [])
            elif "targetCompleted" in identity and "aborted" in event:
                aborted[identity["targetCompleted"]["label"]] = event["aborted"].get("reason")
            elif "testResult" in identity and "testResult" in event:
                key = identity["testResult"]
                result = event["testResult"]
                outputs = {o["name"]: _path(o["uri"])
                           for o in result.get("testActionOutput", []) if "uri" in o}
                # A later attempt replaces an earlier one.
                runs[key["label"], key.get("run", 0), key.get("shard", 0)] = (
                    result.get("status", "NO_STATUS"), outputs.get("test.xml"))
    return tests, aborted, runs


def read_events(path, skip_reasons, left_out):
    """The Tally of a build or test run.

    Args:
      path: of the file that --build_event_json_file wrote.
      skip_reasons: labels that Bazel skipped -> {label: why}.
      left_out: tag -> why the tests that carry it were not run; None: another
        run counts them.
    """
    tests, aborted, runs = _read_events(path)
    tally = Tally()
    for (label, _, _), (status, xml_path) in sorted(runs.items()):
        add_test_run(tally, label, status, xml_path)
    skipped = sorted(l for l, why in aborted.items() if why == "SKIPPED")
    reasons = skip_reasons(skipped) if skipped else {}
    for label in skipped:
        tally.not_built[reasons[label]].append(label)
    ran = {label for label, _, _ in runs}
    for label in sorted(set(tests) - ran):
        tags = [t for t in tests[label] if t in left_out]
        if label in reasons:
            tally.skip(label, reasons[label])
        elif not tags:
            tally.fail(label, "was not built or not run")
        elif left_out[tags[0]]:
            tally.skip(label, left_out[tags[0]])
    return tally
