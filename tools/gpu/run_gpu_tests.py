#!/usr/bin/env python3
"""Runs the tests and benchmarks on GPUs that tools/gpu/bundle packed.

Tests first, one at a time, then benchmarks. Where there are fewer GPUs than
ranks, the ranks share them: NCCL takes each for a host of its own
(NCCL_HOSTID), and what they send goes over sockets on the loopback.

The last line is "N passed, N failed, N skipped". The exit code is 1 if anything
failed, and if anything was skipped, unless --allow-skips: on this machine
nothing should be. --emulated runs all of it with the emulated driver and NCCL
where the bundle has them, on a machine without GPUs: this shows whether the
bundle is complete, and nothing about GPUs.
"""

import argparse
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import results  # noqa: E402

TOP = os.path.dirname(os.path.abspath(__file__))
EMULATOR = "testing/emulated_gpu/libsherd_emulated_gpu.so"
# NCCL on one host without other users: on the loopback, few channels, no
# service threads of its own.
NCCL_ENV = {
    "NCCL_DEBUG": "WARN",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MAX_CTAS": "2",
    "NCCL_RAS_ENABLE": "0",
    "NCCL_SOCKET_IFNAME": "lo",
}


# Benchmarks take the options of tools/bench.
BENCH = ["--cases=^gpu_", "--world=1", "--calls=5"]
BENCH_BYTES = "--bytes=8,1MiB,64MiB,1GiB"
EMULATED_BYTES = "--bytes=8,4096"


def say(text):
    print(text, flush=True)


def ask(python, code):
    """The output of another Python; "" if it fails."""
    try:
        return subprocess.run([python, "-c", code], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=False).stdout
    except OSError:
        return ""


def find_python():
    """A Python that has PyTorch, or "python3"."""
    found = "import importlib.util as u; print('torch' if u.find_spec('torch') else '')"
    for python in ["python3"] + sorted(glob.glob("/opt/*/.venv/bin/python3")):
        if ask(python, found).strip():
            return python
    return "python3"


def find_nccl(python):
    """A libnccl.so.2 that the loader does not find by itself, or ""."""
    folders = ["/usr/local/cuda/lib64"]
    folders += [os.path.join(f, "nvidia/nccl/lib")
                for f in ask(python, "import sys; print('\\n'.join(sys.path))").split("\n") if f]
    paths = [os.path.join(f, "libnccl.so.2") for f in folders]
    return next(filter(os.path.exists, paths), "")


def environment(program, arguments, scratch):
    env = dict(os.environ)
    env.update(program["env"])
    env["LD_LIBRARY_PATH"] = ":".join(
        filter(None, [os.path.join(TOP, "lib"), os.environ.get("LD_LIBRARY_PATH", "")]))
    env["TEST_TMPDIR"] = scratch
    env["TEST_TIMEOUT"] = str(program["seconds"])
    env["TEST_SRCDIR"] = os.path.join(TOP, "files")
    if arguments.emulated:
        emulator = os.path.join(TOP, "files", EMULATOR)
        env.update(SHERD_CUDA_LIBRARY=emulator, SHERD_NCCL_LIBRARY=emulator,
                   SHERD_EMULATED_GPUS=str(arguments.emulated))
        return env
    for name, value in NCCL_ENV.items():
        env.setdefault(name, value)
    env["SHERD_TEST_SHARE_GPUS"] = "1"
    if not env.get("SHERD_NCCL_LIBRARY") and arguments.nccl:
        env["SHERD_NCCL_LIBRARY"] = arguments.nccl
    return env


def run_program(command, env, seconds, log):
    """Its exit code, or a text with the reason why it has none."""
    process = subprocess.Popen(command, cwd=os.path.join(TOP, "files"), env=env, stdout=log,
                               stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(timeout=seconds + 10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return "no end after %d s" % seconds


def run_test(program, arguments, log, tally):
    name = program["name"]
    with tempfile.TemporaryDirectory() as scratch:
        report = os.path.join(scratch, "report.xml")
        env = environment(program, arguments, scratch)
        env["GTEST_OUTPUT"] = "xml:" + report
        code = run_program([os.path.join(TOP, "files", program["program"])] + program["args"],
                           env, program["seconds"], log)
        failed = None
        try:
            failed = results.add_googletest(tally, name, ElementTree.parse(report).getroot())
        except (OSError, ElementTree.ParseError):
            pass
        if failed is None or (code != 0 and not failed):
            tally.fail(name, "ended with %s" % code if isinstance(code, int) else code)
    return code


def run_benchmark(program, arguments, log, tally):
    with tempfile.TemporaryDirectory() as scratch:
        options = BENCH + [EMULATED_BYTES if arguments.emulated else BENCH_BYTES,
                           "--python=" + arguments.python,
                           "--json=" + os.path.abspath(arguments.log) + ".jsonl"]
        code = run_program(
            [os.path.join(TOP, "files", program["program"])] + program["args"] + options,
            environment(program, arguments, scratch), program["seconds"], log)
    if code == 0:
        tally.passed += 1
    else:
        tally.fail(program["name"], "ended with %s" % code)
    return code


def run_all(programs, arguments, log_path):
    tally = results.Tally()
    stop = time.monotonic() + arguments.minutes * 60
    with open(log_path, "wb", buffering=0) as log:
        for program in programs:
            name = program["name"]
            if time.monotonic() > stop:
                tally.fail(name, "not run: the time is over")
                continue
            log.write(("\n==== %s\n" % name).encode())
            before = log.tell()
            start = time.monotonic()
            run = run_benchmark if program["benchmark"] else run_test
            failures = len(tally.failures)
            run(program, arguments, log, tally)
            good = len(tally.failures) == failures
            say("%-6s %s (%.1f s)" % ("ok" if good else "FAILED", name, time.monotonic() - start))
            if program["benchmark"]:
                with open(log_path, "rb") as file:
                    file.seek(before)
                    say(file.read().decode(errors="replace"))
    return tally


def main():
    parser = argparse.ArgumentParser(prog="run", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", metavar="REGEX", help="of the targets' names")
    parser.add_argument("--log", default="gpu_tests.log", help="default: %(default)s")
    parser.add_argument("--minutes", type=float, default=60,
                        help="no program is started after them (default: %(default)s)")
    parser.add_argument("--python", default=find_python(), metavar="PROGRAM",
                        help="one with PyTorch, to be measured beside Sherd (%(default)s)")
    parser.add_argument("--nccl", metavar="LIBRARY", help="default: PyTorch's, or the loader's")
    parser.add_argument("--allow-skips", action="store_true")
    parser.add_argument("--emulated", type=int, default=0, metavar="GPUS", help="see above")
    arguments = parser.parse_args()
    if arguments.nccl is None:
        arguments.nccl = find_nccl(arguments.python)
    with open(os.path.join(TOP, "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    programs = [p for p in manifest["programs"] if re.search(arguments.filter, p["name"])]
    if not programs:
        say("no program matches %r" % arguments.filter)
        return 1
    own = os.confstr("CS_GNU_LIBC_VERSION") or "an unknown libc"
    say("glibc: %s here, %s needed; NCCL: %s" % (own, manifest["glibc"],
                                                 arguments.nccl or "the loader's"))
    if arguments.emulated:
        say("EMULATED: these results do not apply to GPUs")
    tally = run_all(programs, arguments, arguments.log)
    for failure in tally.failures:
        say("FAILED " + failure)
    for reason, what in sorted(tally.skips.items()):
        say("skipped %d: %s (%s%s)" % (len(what), reason, what[0],
                                       ", …" if len(what) > 1 else ""))
    say("output of all programs: " + os.path.abspath(arguments.log))
    say(tally.counts())
    return 1 if tally.failures or (tally.skipped and not arguments.allow_skips) else 0


if __name__ == "__main__":
    sys.exit(main())
