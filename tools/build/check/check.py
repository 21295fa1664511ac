#!/usr/bin/env python3
"""The steps of tools/check; see there. The last line of output is the verdict."""

import argparse
import concurrent.futures
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import build_form  # noqa: E402
import gpu_tests  # noqa: E402
import layering  # noqa: E402
import lints  # noqa: E402
import parts  # noqa: E402
import progress  # noqa: E402
import public_labels  # noqa: E402
import results  # noqa: E402
import tidy  # noqa: E402
import tree  # noqa: E402

BAZEL = os.path.join(tree.ROOT, "tools", "bazel")
FUZZ_INPUTS = 10**6
# Tests wait far more than they compute: for each other's ranks, for deadlines.
# Bazel would run so many that all of them could compute.
TEST_OPTIONS = ["--jobs=HOST_CPUS*8", "--local_cpu_resources=HOST_CPUS*4"]


def say(text):
    print(text, flush=True)


def gpus():
    """How many GPUs are here."""
    return len(glob.glob("/dev/nvidia[0-9]*"))


def left_out():
    """Tags that the filters of .bazelrc leave out, and why such tests did not run."""
    return {
        "deep": "too slow for every change: tools/check --deep runs it",
        "gpu": None if gpus() else "needs a GPU, and there is none here",
    }


class Check:
    """Runs steps and keeps the tally."""

    def __init__(self, deep, patterns=()):
        self.deep = deep
        self.tally = results.Tally()
        self.workspace = tree.ROOT
        self.patterns = patterns or ["//..."]
        self.rules_xml = None
        self.progress = progress.Progress()

    def step(self, name, function):
        """One counted step: `function` returns messages, none if all is well."""
        start = time.monotonic()
        try:
            with self.progress.of(name):
                messages = function()
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            messages = ["%s: %s" % (type(error).__name__, error)]
        seconds = time.monotonic() - start
        say("%-8s %s (%.1f s)" % ("FAILED" if messages else "ok", name, seconds))
        for message in messages:
            say("  " + message)
        if messages:
            self.tally.fail(name, "%d findings" % len(messages) if len(messages) > 1
                            else messages[0].split("\n")[0])
        else:
            self.tally.passed += 1
        return not messages

    # ---- Bazel

    def bazel(self, command, *arguments, events=None):
        """Runs Bazel in `workspace`, its output to ours; returns its exit code."""
        name = " ".join(["bazel", command] + [
            a for a in arguments if re.match(r"//|@|--config", a)])
        with tempfile.TemporaryDirectory() as folder:
            with self.progress.bazel(name, events or os.path.join(folder, "events")) as options:
                sys.stdout.flush()
                return subprocess.run([BAZEL, command, *options, *arguments],
                                      cwd=self.workspace, check=False).returncode

    def query(self, expression, *options):
        done = subprocess.run(
            [BAZEL, "query", "--noshow_progress", "--keep_going"] + list(options) + [expression],
            cwd=self.workspace, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, check=False)
        if done.returncode not in (0, 3):  # 3: some packages are broken.
            raise ValueError("bazel query: " + done.stderr.strip())
        if done.returncode == 3:
            raise ValueError("bazel query: some packages do not load:\n" + "\n".join(
                l for l in done.stderr.split("\n") if l.startswith("ERROR")))
        return done.stdout

    def _skip_reasons(self, labels):
        """{label: why Bazel skips it}: the packages whose stubs it depends on."""
        all_of_them = "set(%s)" % " ".join(labels)
        needs = {label: [] for label in labels}
        for stub in self.query('filter("apt_install_|cuda_toolkit_installed", deps(%s))' %
                               all_of_them).split():
            package = re.search(r":apt_install_(\S+)", stub)
            for label in self.query("%s intersect rdeps(%s, %s)" % (
                    all_of_them, all_of_them, stub)).split():
                needs[label].append("the package " + package.group(1) if package
                                    else "the CUDA toolkit")
        return {label: "needs " + " and ".join(sorted(what)) if what
                else "not for this platform" for label, what in needs.items()}

    def read_events(self, path):
        return results.read_events(path, self._skip_reasons, left_out())

    def build(self, *options):
        words = [*options, *self.patterns]
        code = self.bazel("build", "--keep_going", *words)
        return ["bazel build %s ended with %d" % (" ".join(words), code)] if code else []

    def test(self, *options):
        """Runs all tests, of targets that build() has built; returns their Tally."""
        with tempfile.TemporaryDirectory() as folder:
            events = os.path.join(folder, "events.json")
            code = self.bazel("test", "--keep_going", *TEST_OPTIONS, *options,
                              *self.patterns, events=events)
            tally = self.read_events(events) if os.path.exists(events) else results.Tally()
        if code not in (0, 4) and not tally.failures:  # 4: there are no tests.
            tally.fail("bazel test", "ended with %d" % code)
        return tally

    # ---- Steps

    def format(self):
        program = shutil.which("clang-format-14") or shutil.which("clang-format")
        if not program:
            return ["clang-format is not installed: tools/setup installs it"]
        files = tree.files(".cc", ".h", ".cu", ".cuh")
        chunks = [files[i:i + 16] for i in range(0, len(files), 16)]

        def run(chunk):
            done = subprocess.run(
                [program, "--dry-run", "-Werror", "--style=file"] + chunk,
                cwd=tree.ROOT, stderr=subprocess.PIPE, text=True, check=False)
            return sorted(set(re.findall(r"^(\S+?):\d+:\d+: error:", done.stderr, re.M))) or (
                [done.stderr.strip()] if done.returncode else [])

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            bad = [f for found in pool.map(run, chunks) for f in found]
        return ["%s: run clang-format -i" % f for f in bad]

    def rules(self):
        """XML of all rules of this workspace, which several steps read."""
        if self.rules_xml is None:
            self.rules_xml = self.query("//...", "--output=xml", "--notool_deps",
                                        "--noimplicit_deps")
        return self.rules_xml

    def gpu_tests(self):
        return gpu_tests.check(self.query("tests(//...)", "--output=xml"))

    def self_test(self):
        done = subprocess.run(
            [sys.executable, "-B", "-m", "unittest", "discover", "-q", "-p", "*_test.py"],
            cwd=os.path.dirname(os.path.abspath(__file__)), stderr=subprocess.PIPE,
            text=True, check=False)
        return re.findall(r"^(?:ERROR|FAIL): .*", done.stderr, re.M) + [
            done.stderr.strip()] if done.returncode else []

    def shell(self):
        scripts = [f for f in tree.files("") if self._is_bash(f)]
        found = []
        for script in scripts:
            done = subprocess.run(["bash", "-n", script], cwd=tree.ROOT,
                                  stderr=subprocess.PIPE, text=True, check=False)
            found += [done.stderr.strip()] if done.returncode else []
        shellcheck = shutil.which("shellcheck")
        if self.deep and shellcheck:
            done = subprocess.run([shellcheck, "-f", "gcc"] + scripts, cwd=tree.ROOT,
                                  stdout=subprocess.PIPE, text=True, check=False)
            found += done.stdout.split("\n")[:-1]
        return found

    @staticmethod
    def _is_bash(path):
        with open(os.path.join(tree.ROOT, path), "rb") as file:
            return re.match(rb"#!.*\b(bash|sh)\n", file.readline()) is not None

    def in_consumer(self, function):
        """function() with another workspace that depends on this one in its place."""
        self.workspace = os.path.join(tree.ROOT, tree.CONSUMER)
        try:
            function()
        finally:
            self.workspace = tree.ROOT

    def count(self, tally, what=""):
        """Adds what a run of tests gave."""
        if what:
            say("%s: %s" % (what, tally.counts()))
            tally.failures = ["%s: %s" % (what, f) for f in tally.failures]
        self.tally.add(tally)

    # ---- Only with --deep

    def build_and_test(self, *options):
        """With another configuration, the first of `options`."""
        self.step("bazel build %s //..." % options[0], lambda: self.build(*options))
        self.count(self.test(*options), options[0])

    def asan_ubsan(self):
        self.build_and_test("--config=asan_ubsan")

    def tsan(self):
        """With the sources of Abseil."""
        sources = subprocess.run([os.path.join(tree.ROOT, "tools", "build", "tsan_sources.sh")],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 check=False)
        if sources.returncode:
            self.tally.skip("--config=tsan", "Abseil's source package cannot be had here")
            return
        self.build_and_test("--config=tsan", *sources.stdout.split())

    def clang_tidy(self):
        if not tidy.program():
            return ["clang-tidy is not installed: tools/setup --for=deep installs it"]
        # For the headers that the build generates.
        code = self.bazel("build", *self.query('kind("proto_library|cuda_image", //...)').split())
        if code:
            return ["bazel build ended with %d" % code]
        subprocess.run([os.path.join(tree.ROOT, "tools", "compile_commands")],
                       cwd=tree.ROOT, check=True, stdout=subprocess.DEVNULL)
        return tidy.check(self.progress)

    def fuzz(self, label):
        """Lets libFuzzer look for new inputs, a bounded number of times."""
        code = self.bazel("build", "--config=fuzz", label)
        if code:
            return ["bazel build --config=fuzz %s ended with %d" % (label, code)]
        package, _, name = label[2:].partition(":")
        output = subprocess.run([BAZEL, "info", "--config=fuzz", "bazel-bin"],
                                cwd=tree.ROOT, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, text=True, check=True)
        program = os.path.join(output.stdout.strip(), package, name)
        test = label[:-len("_fuzzer")]
        seeds = sorted({os.path.join(tree.ROOT, os.path.dirname(f.replace(":", "/")[2:]))
                        for f in self.query('kind("source file", labels(data, %s))' % test).split()})
        with tempfile.TemporaryDirectory() as folder:
            new, artifacts = os.path.join(folder, "new"), os.path.join(folder, "found-")
            os.mkdir(new)
            done = subprocess.run(
                [program, "-runs=%d" % FUZZ_INPUTS, "-timeout=10",
                 "-rss_limit_mb=2048", "-artifact_prefix=" + artifacts, new] + seeds,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                errors="replace", check=False)
            kept = []
            for path in glob.glob(artifacts + "*"):
                kept.append(shutil.copy(path, tempfile.gettempdir()))
        if done.returncode == 0:
            return []
        return ["%s ended with %d; inputs: %s\n%s" % (
            label, done.returncode, " ".join(kept) or "none", done.stderr[-4000:])]

    def read_back(self):
        """The safetensors package reads what Sherd wrote: a model with every
        dtype, the files of a checkpoint of it, and the gathered result."""
        name = "read back by the Python package safetensors"
        script = os.path.join(tree.ROOT, "serialization", "testdata", "read_back.py")
        with tempfile.TemporaryDirectory() as folder:
            python = os.path.join(folder, "venv", "bin", "python3")
            for command in ([sys.executable, "-m", "venv", os.path.join(folder, "venv")],
                            [python, "-m", "pip", "install", "--quiet", "safetensors"]):
                if subprocess.run(command, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, check=False).returncode:
                    self.tally.skip(name, "the package cannot be installed here")
                    return

            def run():
                targets = ["//tools/sherd", "//tools/examples:make_model",
                           "//tools/examples:quickstart"]
                if self.bazel("build", *targets):
                    return [" ".join(targets) + " do not build"]
                info = subprocess.run([BAZEL, "info", "bazel-bin"], cwd=tree.ROOT, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
                tools = os.path.join(info.stdout.strip(), "tools")
                sherd = os.path.join(tools, "sherd", "sherd")
                quickstart = os.path.join(tools, "examples", "quickstart")
                make_model = os.path.join(tools, "examples", "make_model")
                out = os.path.join(folder, "out")
                model = os.path.join(folder, "model.safetensors")
                where = ["--dir", out, "--model", model]
                commands = [[make_model, "--preset=tiny", "--out", model],
                            [quickstart, "prepare"] + where]
                for ranks, step in (("4", "save"), ("3", "load")):
                    commands.append([sherd, "run", "-n", ranks, "--", quickstart, step] + where)
                gathered = os.path.join(out, "gathered.safetensors")
                commands.append([python, script, gathered, "--against", model])
                for command in commands:
                    done = subprocess.run(command, stdout=subprocess.PIPE,
                                          stderr=subprocess.STDOUT, text=True, check=False)
                    if done.returncode:
                        return [" ".join(command) + ":\n" + done.stdout[-2000:]]
                shards = sorted(glob.glob(os.path.join(out, "checkpoint", "*.safetensors")))
                done = subprocess.run([python, script] + shards, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, check=False)
                return [done.stdout] if done.returncode or not shards else []

            self.step(name, run)

    def program(self, name):
        """A step: a program of tools/, which reports its own findings."""
        def run():
            code = subprocess.run([os.path.join(tree.ROOT, name)], check=False).returncode
            return ["%s ended with %d" % (name, code)] if code else []

        self.step(name, run)

    def bazel7(self):
        if os.geteuid():
            self.tally.skip("tools/check_bazel7", "needs root")
        else:
            self.program("tools/check_bazel7")

    def benchmarks(self):
        labels = self.query('attr(tags, "benchmark", //...)').split()
        self.step("micro benchmarks build", lambda: [
            "bazel build ended with an error"
        ] if self.bazel("build", "-c", "opt", *labels) else [])

    def fuzz_all(self):
        for label in self.query('attr(tags, "fuzzer", //...)').split():
            self.step("fuzz " + label, lambda l=label: self.fuzz(l))

    # ---- The parts

    def form(self):
        self.step("the check's own tests", self.self_test)
        self.step("clang-format", self.format)
        self.step("form of BUILD files", build_form.check)
        for name, lint in lints.ALL:
            self.step("lint: " + name, lint)
        self.step("shell scripts", self.shell)
        self.step("layering", lambda: layering.check(self.rules()))
        self.step("public labels", lambda: public_labels.check(self.rules()))
        self.step("public labels in the consumer workspace", public_labels.check_consumer)
        self.step("layering of rooms", layering.check_rooms)
        self.step("tags of GPU tests", self.gpu_tests)

    def tests(self):
        self.step("bazel build " + " ".join(self.patterns), self.build)
        self.count(self.test())

    def slow_tests(self):
        self.count(self.test("--config=deep", "--build_tests_only"), "--config=deep")

    def consumer(self):
        def run():
            self.step("consumer workspace: tags of GPU tests", self.gpu_tests)
            if self.step("consumer workspace: bazel build //...", self.build):
                self.count(self.test(), "consumer workspace")

        self.in_consumer(run)

    def on_gpus(self):
        options = ["--config=gpu", "--build_tests_only", "--test_env=SHERD_TEST_SHARE_GPUS=1"]
        self.count(self.test(*options), "--config=gpu")
        self.in_consumer(lambda: self.count(
            self.test(*options), "consumer workspace, --config=gpu"))

    def parts(self):
        """All that there are here, in the order of a run."""
        found = [
            ("form", "the check's own tests, format, BUILD files, lints, layering", self.form, False),
            ("tests", "all targets and tests", self.tests, False),
            ("consumer", "a workspace that depends on this one", self.consumer, False),
        ]
        if gpus():
            found.append(("gpu", "tests on GPUs, in both workspaces", self.on_gpus, False))
        found += [
            ("slow_tests", "tests that are too slow for every change, optimised",
             self.slow_tests, True),
            ("asan_ubsan", "all tests, built by clang, with --config=asan_ubsan",
             self.asan_ubsan, True),
            ("tsan", "all tests with --config=tsan", self.tsan, True),
            ("archive", "a workspace with an Abseil and a GoogleTest of its own",
             lambda: self.program("tools/check_archive"), True),
            ("bazel7", "the consumer workspace with Bazel 7",
             self.bazel7, True),
            ("benchmarks", "micro benchmarks build", self.benchmarks, True),
            ("read_back", "the Python package safetensors reads what Sherd wrote",
             self.read_back, True),
            ("clang_tidy", "static analysis",
             lambda: self.step("clang-tidy", self.clang_tidy), True),
            ("fuzz", "libFuzzer looks for new inputs, a million times each",
             self.fuzz_all, True),
        ]
        return [p for p in map(parts.Part._make, found) if self.deep or not p.deep]

    def run_part(self, part, memory):
        """Runs it, unless its result is known; returns a line about it."""
        kept = memory.find(part.name) if memory else None
        if kept:
            tally, seconds, when = kept
            of = "on this tree, %s" % when
        else:
            start = time.monotonic()
            whole, self.tally = self.tally, results.Tally()
            try:
                part.run()
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                self.tally.fail(part.name, "%s: %s" % (type(error).__name__, error))
            tally, self.tally = self.tally, whole
            seconds, of = time.monotonic() - start, ""
            if memory:
                memory.keep(part.name, tally, seconds)
        self.tally.add(tally)
        line = "part     %-12s %s (%d s%s)" % (
            part.name, tally.counts(), seconds, ", " + of if of else "")
        say(line)
        return line


def main():
    parser = argparse.ArgumentParser(prog="tools/check", description=__doc__)
    parser.add_argument("--deep", action="store_true",
                        help="also sanitizers, clang, clang-tidy, fuzzing, slow tests")
    parser.add_argument("--parts", action="store_true", help="lists the parts, and runs none")
    parser.add_argument("--part", action="append", metavar="NAME", help="runs this one only")
    parser.add_argument("--again", action="store_true",
                        help="runs parts, too, that passed on this tree")
    parser.add_argument("patterns", nargs="*", metavar="//PACKAGE/...",
                        help="builds and tests these targets, and checks nothing else")
    arguments = parser.parse_args()
    if arguments.patterns and (arguments.deep or arguments.part or arguments.parts):
        parser.error("//PACKAGE/... is a check of its own: there are no other options with it")
    check = Check(arguments.deep, arguments.patterns)
    memory = parts.Memory() if arguments.deep else None
    if memory and arguments.again:
        memory.forget(arguments.part)
    there = check.parts()
    unknown = set(arguments.part or []) - {p.name for p in there}
    if unknown:
        parser.error("--part=%s: there are %s%s" % (
            sorted(unknown)[0], ", ".join(p.name for p in there),
            "" if arguments.deep else "; --deep has more"))
    if arguments.parts:
        for part in there:
            say(parts.describe(part, memory))
        return 0
    if arguments.patterns:
        arguments.part = ["tests"]
    chosen = [p for p in there if not arguments.part or p.name in arguments.part]
    lines = [check.run_part(part, memory) for part in chosen]
    say("")
    for line in lines:
        say(line)
    if memory and arguments.part:
        left = [p.name for p in there if not memory.find(p.name)]
        say("parts that have not passed on this tree: " + (", ".join(left) or "none"))
    for line in check.tally.verdict():
        say(line)
    return 1 if check.tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
