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
import results  # noqa: E402
import tree  # noqa: E402

BAZEL = os.path.join(tree.ROOT, "tools", "bazel")
# Stores, groups, the event loop, the backends whose ranks can be threads, and
# GPUs whose streams are threads.
TSAN_TARGETS = ("//core/net/...", "//core/comm/...", "//backends/local/...",
                "//backends/cuda/...", "//backends/emulated_gpu/...", "//backends/nccl/...")
FUZZ_SECONDS = 20
# Tags that the filters of .bazelrc leave out, and how to run such tests.
LEFT_OUT = {
    "deep": "too slow for every change: tools/check --deep runs it",
    "gpu": "needs a GPU: tools/bazel test --config=gpu runs it",
}


def say(text):
    print(text, flush=True)


class Check:
    """Runs steps and keeps the tally."""

    def __init__(self, deep):
        self.deep = deep
        self.tally = results.Tally()
        self.workspace = tree.ROOT

    def step(self, name, function):
        """One counted step: `function` returns messages, none if all is well."""
        start = time.monotonic()
        try:
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

    def bazel(self, *arguments, **kwargs):
        """Runs Bazel in `workspace`, its output to ours."""
        sys.stdout.flush()
        return subprocess.run([BAZEL] + list(arguments), cwd=self.workspace,
                              check=False, **kwargs).returncode

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

    def build(self, *options):
        code = self.bazel("build", "--keep_going", "--noshow_progress", *options, "//...")
        return ["bazel build %s //... ended with %d" % (" ".join(options), code)] if code else []

    def _skip_reason(self, label):
        """Why Bazel skips a target: the packages whose stubs it depends on."""
        stubs = self.query('filter("apt_install_|cuda_toolkit_installed", deps(%s))' % label)
        packages = sorted(set(re.findall(r":apt_install_(\S+)", stubs)))
        needs = ["the package " + p for p in packages]
        if "cuda_toolkit_installed" in stubs:
            needs.append("the CUDA toolkit")
        return "needs " + " and ".join(needs) if needs else "not for this platform"

    def test(self, *options, targets=("//...",)):
        """Runs all tests of `targets`; returns their Tally."""
        with tempfile.TemporaryDirectory() as folder:
            events = os.path.join(folder, "events.json")
            code = self.bazel("test", "--keep_going", "--noshow_progress",
                              "--build_event_json_file=" + events, *options, "--",
                              *targets)
            if not os.path.exists(events):
                tally = results.Tally()
                tally.fail("bazel test", "ended with %d" % code)
                return tally
            tally, not_built = results.read_events(
                events, self._skip_reason, LEFT_OUT)
        for label in not_built:
            say("not built: %s %s" % (label, self._skip_reason(label)))
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

    def layering(self):
        return layering.check(self.query("//...", "--output=xml", "--notool_deps",
                                         "--noimplicit_deps"))

    def gpu_tests(self):
        return gpu_tests.check(self.query("tests(//...)", "--output=xml"))

    def self_test(self):
        done = subprocess.run(
            [sys.executable, "-B", "-m", "unittest", "-q", "check_test",
             "distributed_rule_test", "gpu_bundle_test"],
            cwd=os.path.dirname(os.path.abspath(__file__)), stderr=subprocess.PIPE,
            text=True, check=False)
        return [done.stderr.strip()] if done.returncode else []

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

    def consumer(self):
        """Another workspace that depends on this one: built, run, counted."""
        self.workspace = os.path.join(tree.ROOT, tree.CONSUMER)
        try:
            self.step("consumer workspace: tags of GPU tests", self.gpu_tests)
            if self.step("consumer workspace: bazel build //...", self.build):
                tally = self.test()
                say("consumer workspace: " + tally.counts())
                self.tally.add(tally)
        finally:
            self.workspace = tree.ROOT

    # ---- Only with --deep

    def configured(self, config):
        """One step: all tests under a configuration of .bazelrc."""
        def run():
            tally = self.test("--config=" + config)
            say("--config=%s: %s" % (config, tally.counts()))
            return tally.failures

        self.step("bazel test --config=%s //..." % config, run)

    def tsan(self):
        """What threads share, under ThreadSanitizer."""
        name = "bazel test --config=tsan " + " ".join(TSAN_TARGETS)
        sources = subprocess.run([os.path.join(tree.ROOT, "tools", "build", "tsan_sources.sh")],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                 check=False)
        if sources.returncode:
            self.tally.skip(name, "Abseil's source package cannot be had here")
            return

        def run():
            tally = self.test("--config=tsan", *sources.stdout.split(), targets=TSAN_TARGETS)
            say("--config=tsan: " + tally.counts())
            return tally.failures

        self.step(name, run)

    def clang_tidy(self):
        program = shutil.which("run-clang-tidy-14") or shutil.which("run-clang-tidy")
        if not program:
            return ["clang-tidy is not installed: tools/setup --for=deep installs it"]
        subprocess.run([os.path.join(tree.ROOT, "tools", "compile_commands")],
                       cwd=tree.ROOT, check=True, stdout=subprocess.DEVNULL)
        done = subprocess.run(
            [program, "-quiet", "-p", tree.ROOT,
             "^%s/(backends|core|rpc|serialization|testing|tools)/" % re.escape(tree.ROOT)],
            cwd=tree.ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, check=False)
        output = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)
        errors = sorted(set(re.findall(r"^\S+:\d+:\d+: (?:error|warning): .*$", output, re.M)))
        return errors or (["clang-tidy ended with %d" % done.returncode]
                          if done.returncode else [])

    def fuzz(self, label):
        """Lets libFuzzer look for new inputs, for a bounded time."""
        code = self.bazel("build", "--config=fuzz", "--noshow_progress", label)
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
                [program, "-max_total_time=%d" % FUZZ_SECONDS, "-timeout=10",
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
                if self.bazel("build", "--noshow_progress", "//tools/sherd"):
                    return ["//tools/sherd does not build"]
                info = subprocess.run([BAZEL, "info", "bazel-bin"], cwd=tree.ROOT, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
                sherd = os.path.join(info.stdout.strip(), "tools", "sherd", "sherd")
                out = os.path.join(folder, "out")
                model = os.path.join(folder, "model.safetensors")
                half = [sherd, "quickstart", "", "--dir", out, "--model", model]
                commands = [[sherd, "make-model", "--preset=tiny", "--out", model],
                            half[:2] + ["prepare"] + half[3:]]
                for ranks, step in (("4", "save"), ("3", "load")):
                    commands.append([sherd, "run", "-n", ranks, "--"] + half[:2] + [step] + half[3:])
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

    def deep_steps(self):
        for config in ["asan", "ubsan", "clang"]:
            self.configured(config)
        self.tsan()
        benchmarks = self.query('attr(tags, "benchmark", //...)').split()
        if benchmarks:
            self.step("micro benchmarks build", lambda: [
                "bazel build ended with an error"
            ] if self.bazel("build", "--noshow_progress", "-c", "opt", *benchmarks) else [])
        self.read_back()
        self.step("clang-tidy", self.clang_tidy)
        for label in self.query('attr(tags, "fuzzer", //...)').split():
            self.step("fuzz %s for %d s" % (label, FUZZ_SECONDS), lambda l=label: self.fuzz(l))

    def run(self):
        self.step("the check's own tests", self.self_test)
        self.step("clang-format", self.format)
        self.step("form of BUILD files", build_form.check)
        for name, lint in lints.ALL:
            self.step("lint: " + name, lint)
        self.step("shell scripts", self.shell)
        self.step("layering", self.layering)
        self.step("tags of GPU tests", self.gpu_tests)
        self.step("bazel build //...", self.build)
        self.tally.add(self.test(*(["--config=deep"] if self.deep else [])))
        self.consumer()
        if self.deep:
            self.deep_steps()


def main():
    parser = argparse.ArgumentParser(prog="tools/check", description=__doc__)
    parser.add_argument("--deep", action="store_true",
                        help="also sanitizers, clang, clang-tidy, fuzzing, slow tests")
    check = Check(parser.parse_args().deep)
    check.run()
    tally = check.tally
    for reason, what in sorted(tally.skips.items()):
        say("skipped %d: %s (%s%s)" % (
            len(what), reason, what[0], ", …" if len(what) > 1 else ""))
    for failure in tally.failures:
        say("FAILED %s" % failure)
    say(tally.counts())
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
