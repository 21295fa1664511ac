#!/usr/bin/env python3
"""Checks safetensors files that Sherd wrote, with the safetensors package.

    read_back.py FILE... [--against OTHER]

Reads every tensor of every FILE. With --against, also compares names, dtypes,
shapes and bytes with those of OTHER, as read by this package too. Prints one
line per file and exits 1 at the first difference. Where the package is not
installed, exits 77: skipped.
"""

import argparse
import sys

try:
    import safetensors
except ImportError as error:
    print(f"skipped: the Python package safetensors is missing ({error})")
    sys.exit(77)


def contents(path):
    """Name -> (dtype, shape, bytes), after the checks of the package."""
    with open(path, "rb") as file:
        tensors = safetensors.deserialize(file.read())
    return {
        name: (t["dtype"], tuple(t["shape"]), bytes(t["data"]))
        for name, t in tensors
    }


def difference(ours, theirs):
    if ours.keys() != theirs.keys():
        return f"other names: {sorted(ours.keys() ^ theirs.keys())[:5]}"
    for name, (dtype, shape, data) in sorted(ours.items()):
        expected = theirs[name]
        if (dtype, shape) != expected[:2]:
            return f"tensor {name!r} is {dtype} {shape}, expected {expected[:2]}"
        if data != expected[2]:
            return f"tensor {name!r} has other bytes"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--against")
    arguments = parser.parse_args()
    expected = contents(arguments.against) if arguments.against else None
    for path in arguments.files:
        try:
            found = contents(path)
        except Exception as error:  # Of whatever type the package raises.
            print(f"FAILED: {path}: {error}")
            return 1
        problem = difference(found, expected) if expected is not None else None
        if problem:
            print(f"FAILED: {path}: {problem}")
            return 1
        print(f"{path}: {len(found)} tensors, read by safetensors "
              f"{safetensors.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
