"""A check's records of earlier runs: objects in .cache/, which git ignores."""

import json
import os

import tree


def _path(name):
    return os.path.join(tree.ROOT, ".cache", name + ".json")


def read(name):
    """Returns the object that write() stored; {} if it cannot be read."""
    try:
        with open(_path(name), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def write(name, content):
    """In one step: an interruption leaves the old content or the new."""
    path = _path(name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, sort_keys=True)
    os.replace(path + ".new", path)
