"""clang-tidy over what the build compiles.

Files without findings are remembered, with all that they consisted of: the
whole takes seconds of CPU for each of hundreds of files, and may be interrupted.
"""

import concurrent.futures
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import threading

import memory
import tree

_NAME = "clang_tidy"
_CONFIG = ".clang-tidy"
_OURS = re.compile(r"(backends|core|rpc|serialization|testing|tools)/")
_INCLUDE = re.compile(r'^\s*#\s*include\s+"sherd/([^"]+)"', re.M)
_FINDING = re.compile(r"^\S+:\d+:\d+: (?:error|warning): .*$", re.M)
# They follow paths, which took 24 of the 30 s of core/comm/channel/work_test.cc; the
# paths of tests run, and under sanitizers.
_NOT_IN_TESTS = "-clang-analyzer-*"


def program():
    """Its path, or None."""
    return shutil.which("clang-tidy-14") or shutil.which("clang-tidy")


@functools.lru_cache(maxsize=None)
def _content(path):
    """(checksum, included files of ours) of a file; ("", ()) if it is generated."""
    if not os.path.isfile(os.path.join(tree.ROOT, path)):
        return "", ()
    text = tree.read(path)
    return hashlib.sha256(text.encode()).hexdigest(), tuple(_INCLUDE.findall(text))


def closure(path):
    """`path` and what it includes of ours, directly or not."""
    seen, left = set(), [path]
    while left:
        file = left.pop()
        if file not in seen:
            seen.add(file)
            left.extend(_content(file)[1])
    return sorted(seen)


def fingerprint(path, arguments):
    """Of all that decides what clang-tidy finds in `path`."""
    digest = hashlib.sha256(json.dumps(arguments).encode())
    for file in [_CONFIG] + closure(path):
        digest.update(("%s %s\n" % (file, _content(file)[0])).encode())
    return digest.hexdigest()


class _CleanFiles:
    """The fingerprints of files without findings."""

    def __init__(self):
        self._lock = threading.Lock()
        self._clean = memory.read(_NAME)

    def knows(self, path, key):
        return self._clean.get(path) == key

    def keep(self, path, key):
        with self._lock:
            self._clean[path] = key
            memory.write(_NAME, self._clean)


def commands():
    """{file of ours: its compile command}, as tools/compile_commands writes them."""
    with open(os.path.join(tree.ROOT, "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    found = {}
    for entry in entries:
        path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), tree.ROOT)
        if _OURS.match(path):
            found[path] = entry["arguments"]
    return found


def _look_at(path):
    """clang-tidy's output for a file: findings, or that it ended with an error."""
    command = [program(), "-quiet", "-p", tree.ROOT]
    if path.endswith("_test.cc"):
        command.append("--checks=" + _NOT_IN_TESTS)
    done = subprocess.run(command + [path], cwd=tree.ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=False)
    return _FINDING.findall(re.sub(r"\x1b\[[0-9;]*m", "", done.stdout)) or (
        ["%s: clang-tidy ended with %d" % (path, done.returncode)] if done.returncode else [])


def check(progress):
    """Findings of all files that are not remembered, each once."""
    clean = _CleanFiles()
    keys = {path: fingerprint(path, arguments) for path, arguments in commands().items()}
    left = sorted(p for p, key in keys.items() if not clean.knows(p, key))
    found, looked_at = set(), []

    def look_at(path):
        findings = _look_at(path)
        if not findings:
            clean.keep(path, keys[path])
        found.update(findings)
        looked_at.append(path)

    with progress.of("clang-tidy", lambda: "%d of %d files" % (len(looked_at), len(left))):
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(look_at, left))
    return sorted(found)
