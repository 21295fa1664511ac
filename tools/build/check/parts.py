"""Parts of a check, whose results are kept while the tree is the same.

Only what passed is kept.
"""

import collections
import datetime
import hashlib
import os

import memory
import results
import tree

# `run` takes nothing and adds to the check's tally; `deep`: only with --deep.
Part = collections.namedtuple("Part", "name what run deep")

_NAME = "check_parts"
# A result also depends on the installed packages.
_PACKAGES = "/var/lib/dpkg/status"


def fingerprint():
    """Of all files that a check looks at, and of what is installed here."""
    digest = hashlib.sha256(os.environ.get("SHERD_WITHOUT", "").encode())
    for name in tree.everything() + [_PACKAGES]:
        path = os.path.join(tree.ROOT, name)
        if not os.path.isfile(path):
            continue
        with open(path, "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()
        digest.update(("%s %d %s\n" % (name, os.access(path, os.X_OK), content)).encode())
    return digest.hexdigest()


class Memory:
    """The results of parts that passed on this tree."""

    def __init__(self):
        self._tree = fingerprint()

    def _all(self):
        found = memory.read(_NAME)
        return found.get("parts", {}) if found.get("tree") == self._tree else {}

    def find(self, name):
        """(Tally, seconds, when) of a part that passed, or None."""
        kept = self._all().get(name)
        if kept is None:
            return None
        return results.Tally.from_json(kept["tally"]), kept["seconds"], kept["when"]

    def forget(self, names):
        """Those named; None: all."""
        self._write({n: kept for n, kept in self._all().items()
                     if names is not None and n not in names})

    def keep(self, name, tally, seconds):
        """Unless the tree has changed since the part began."""
        if tally.failures or fingerprint() != self._tree:
            return
        everything = self._all()
        everything[name] = {
            "tally": tally.to_json(), "seconds": round(seconds),
            "when": datetime.datetime.now().strftime("%Y-%m-%d %H:%M")}
        self._write(everything)

    def _write(self, everything):
        memory.write(_NAME, {"tree": self._tree, "parts": everything})


def describe(part, known):
    """A line of tools/check --parts."""
    kept = known.find(part.name) if known else None
    state = "%s in %d s (%s)" % (kept[0].counts(), kept[1], kept[2]) if kept else ""
    return "%-12s %s%s" % (part.name, part.what, "\n%13s%s" % ("", state) if state else "")
