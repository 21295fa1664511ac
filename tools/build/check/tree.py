"""The files of this repository, and their text without comments."""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
CONSUMER = "tools/build/consumer_test"


def files(*endings):
    """Paths below ROOT that end so, sorted; without outputs of Bazel or users."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(
            d for d in folders
            if not d.startswith((".", "bazel-", "sherd-quickstart")) and
            d != "__pycache__" and not os.path.islink(os.path.join(folder, d)))
        for name in names:
            path = os.path.join(folder, name)
            # Not a file: a link to outputs that are no longer there.
            if name.endswith(endings) and os.path.isfile(path):
                found.append(os.path.relpath(path, ROOT))
    return sorted(found)


def everything():
    """Paths of all files that are not ignored, as git has them where it is here."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.CalledProcessError):
        return [f for f in files("") if f not in (".bazelrc.user", "compile_commands.json")]
    names = filter(None, os.fsdecode(listed.stdout).split("\0"))
    return sorted(n for n in names if os.path.isfile(os.path.join(ROOT, n)))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])+'", re.DOTALL)


def code_only(text):
    """C++ text with comments blanked, line numbers and strings kept."""
    def blank(match):
        token = match.group(0)
        return re.sub(r"[^\n]", " ", token) if token.startswith("/") else token

    return _TOKEN.sub(blank, text)


if __name__ == "__main__":  # For programs that are no Python.
    sys.stdout.write("".join(name + "\0" for name in everything()))
