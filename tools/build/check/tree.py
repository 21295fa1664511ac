"""The files of this repository, and their text without comments."""

import os
import re

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
            if name.endswith(endings):
                found.append(os.path.relpath(os.path.join(folder, name), ROOT))
    return sorted(found)


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
