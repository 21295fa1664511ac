#!/usr/bin/env python3
"""Writes the files interop_*.safetensors with the safetensors package.

    python3 -m venv /tmp/venv
    /tmp/venv/bin/pip install safetensors ml_dtypes numpy
    /tmp/venv/bin/python make_interop.py .

The files are committed; run this again only to add to them. Values follow from
names and positions, so that the tests can compute them: element i of a tensor
is pattern(i), converted to the dtype.
"""

import os
import sys

import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import save_file

DTYPES = {
    "bool": np.bool_,
    "uint8": np.uint8,
    "int8": np.int8,
    "uint16": np.uint16,
    "int16": np.int16,
    "uint32": np.uint32,
    "int32": np.int32,
    "uint64": np.uint64,
    "int64": np.int64,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
    "complex64": np.complex64,
}


# Sherd carries these and does not compute with them.
CARRIED = {
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
}


def pattern(shape, dtype):
    """Small numbers that every dtype but bool holds exactly: 0 .. 7."""
    n = int(np.prod(shape, dtype=np.int64))
    values = np.arange(n) * 5 % 8
    if dtype == np.bool_:
        values = values % 2
    array = values.astype(np.float32).astype(dtype)
    if dtype == np.complex64:
        array = array + 1j * ((np.arange(n) * 3) % 8).astype(np.complex64)
        array = array.astype(np.complex64)
    return array.reshape(shape)


def main():
    out = sys.argv[1]
    save_file(
        {name: pattern((3, 5), dtype) for name, dtype in DTYPES.items()},
        os.path.join(out, "interop_dtypes.safetensors"),
    )
    save_file(
        {
            "scalar": np.full((), 2.5, np.float32),
            "empty": pattern((0,), np.float32),
            "empty_middle": pattern((2, 0, 3), np.int64),
            "one": pattern((1, 1, 1, 1), np.int16),
            "deep": pattern((1,) * 32, np.uint8),
            "naïve/名前 \"quoted\"\\": pattern((4,), np.float64),
        },
        os.path.join(out, "interop_shapes.safetensors"),
        metadata={"format": "np", "note": "ä \u2028 \"x\"\n"},
    )
    special = np.array(
        [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 448.0, 57344.0, 2.0**-9]
    )
    save_file(
        {
            name: special.astype(dtype)
            for name, dtype in DTYPES.items()
            if "float" in name
        },
        os.path.join(out, "interop_special.safetensors"),
    )
    save_file(
        {
            name: np.arange(256, dtype=np.uint8).view(dtype)
            for name, dtype in CARRIED.items()
        },
        os.path.join(out, "interop_carried.safetensors"),
    )
    print("written with safetensors", safetensors.__version__)


if __name__ == "__main__":
    main()
