#!/usr/bin/env python3
"""Compares the program embedding_collection with PyTorch.

    embedding_peer.py SHERD PROGRAM FOLDER

Runs PROGRAM on four ranks by `SHERD run` for every mode, option and rule, and
compares its results with torch.nn.functional.embedding_bag of the whole batch,
and its tables with those after a step of torch.optim's SGD or Adagrad with
sparse gradients. Needs PyTorch alone. Exit code 1: they differ.
"""

import json
import os
import struct
import subprocess
import sys

import torch

RANKS = 4
LEARNING_RATE = 0.1
EPS = 1e-10
# Name, rows, columns.
TABLES = (("user", 50, 16), ("item", 23, 6))
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.int32: "I32",
}


def write_safetensors(path, tensors):
    header, data, end = {}, [], 0
    for name, tensor in tensors.items():
        # PyTorch alone: there need be no NumPy.
        raw = bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [end, end + len(raw)],
        }
        data.append(raw)
        end += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def read_safetensors(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    dtypes = {name: dtype for dtype, name in DTYPES.items()}
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        dtype = dtypes[entry["dtype"]]
        tensor = torch.empty(0, dtype=dtype)
        if begin < end:
            tensor = torch.frombuffer(bytearray(data[begin:end]), dtype=dtype)
        tensors[name] = tensor.reshape(entry["shape"])
    return tensors


def inputs_of(case, generator):
    """Tables and batches: uneven bags, some without ids, and equal ids."""
    dtype, id_dtype = case["dtype"], case["id_dtype"]
    tensors = {}
    for name, rows, columns in TABLES:
        tensors[f"table.{name}"] = torch.randn(
            rows, columns, dtype=dtype, generator=generator
        )
        for rank in range(RANKS):
            lengths = torch.randint(0, 6, (5 + rank,), generator=generator)
            ends = torch.cumsum(lengths, 0)
            count = int(ends[-1])
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
            if not case.get("include_last_offset"):
                offsets = offsets[:-1]
            here = f"{rank}.{name}."
            ids = torch.randint(0, rows, (count,), generator=generator)
            tensors[here + "ids"] = ids.to(id_dtype)
            tensors[here + "offsets"] = offsets.to(id_dtype)
            if case.get("weights"):
                tensors[here + "weights"] = torch.randn(
                    count, dtype=dtype, generator=generator
                )
            if case.get("rule"):
                tensors[here + "gradient"] = torch.randn(
                    len(lengths), columns, dtype=dtype, generator=generator
                )
    return tensors


def expected_of(case, inputs):
    """The same by PyTorch, without ranks."""
    results = {}
    for name, _, _ in TABLES:
        table = torch.nn.Parameter(inputs[f"table.{name}"].clone())
        max_norm = case.get("max_norm")
        if max_norm is not None:
            # As one batch: rows are scaled before any rank reads them.
            ids = [inputs[f"{r}.{name}.ids"] for r in range(RANKS)]
            with torch.no_grad():
                torch.nn.functional.embedding(
                    torch.cat(ids).long(),
                    table,
                    max_norm=max_norm,
                    norm_type=case.get("norm_type", 2.0),
                )
        loss = torch.zeros((), dtype=table.dtype)
        for rank in range(RANKS):
            here = f"{rank}.{name}."
            result = torch.nn.functional.embedding_bag(
                inputs[here + "ids"],
                table,
                inputs[here + "offsets"],
                mode=case["mode"],
                sparse=case["mode"] != "max",
                per_sample_weights=inputs.get(here + "weights"),
                include_last_offset=case.get("include_last_offset", False),
                padding_idx=case.get("padding_idx"),
            )
            results[here[:-1]] = result.detach()
            if case.get("rule"):
                loss = loss + (result * inputs[here + "gradient"]).sum()
        step(case.get("rule"), table, loss)
        results[f"table.{name}"] = table.detach()
    return results


def step(rule, table, loss):
    if rule is None:
        return
    loss.backward()
    if rule == "sgd":
        torch.optim.SGD([table], lr=LEARNING_RATE).step()
    elif rule == "adagrad":
        torch.optim.Adagrad([table], lr=LEARNING_RATE, eps=EPS).step()
    else:
        # PyTorch has no row-wise Adagrad. As FBGEMM's: one sum per row, of the
        # mean of the squares of its gradient.
        gradient = table.grad.to_dense()
        mean = gradient.square().mean(dim=1, keepdim=True)
        with torch.no_grad():
            table -= LEARNING_RATE * gradient / (mean.sqrt() + EPS)


def cases():
    float32 = {"dtype": torch.float32, "id_dtype": torch.int64}
    float64 = {"dtype": torch.float64, "id_dtype": torch.int32}
    yield {"mode": "sum", **float32}
    yield {"mode": "mean", "include_last_offset": True, **float64}
    yield {"mode": "max", "padding_idx": 3, **float32}
    yield {"mode": "mean", "padding_idx": 0, **float32}
    yield {"mode": "sum", "weights": True, "max_norm": 1.5, **float64}
    yield {"mode": "sum", "max_norm": 2.0, "norm_type": 1.0, **float32}
    for rule in ("sgd", "adagrad", "rowwise_adagrad"):
        yield {"mode": "sum", "rule": rule, "weights": True, **float32}
        yield {"mode": "mean", "rule": rule, "padding_idx": 1, **float64}


def options_of(case):
    options = [f"--mode={case['mode']}"]
    for key in ("padding_idx", "max_norm", "norm_type"):
        if key in case:
            options.append(f"--{key.replace('_', '-')}={case[key]}")
    if case.get("include_last_offset"):
        options.append("--include-last-offset")
    if case.get("rule"):
        options += [
            f"--rule={case['rule']}",
            f"--lr={LEARNING_RATE}",
            f"--eps={EPS}",
        ]
    return options


LAYOUTS = (
    ("shm", "chunk(0) over 4"),
    ("gloo", "chunk(1) over 3,1,0,2"),
    ("shm", "user=grid(2x2);item=whole over 2-2"),
)


def difference(expected, found, tolerance):
    """What is wrong, or None."""
    if sorted(expected) != sorted(found):
        return f"names {sorted(found)} instead of {sorted(expected)}"
    for name, tensor in expected.items():
        if found[name].shape != tensor.shape:
            return f"{name} is of {list(found[name].shape)}"
        if not torch.allclose(found[name], tensor, rtol=tolerance, atol=tolerance):
            far = (found[name] - tensor).abs().max().item()
            return f"{name} differs by {far}"
    return None


def main():
    sherd, program, folder = sys.argv[1:]
    in_path, out_path = (os.path.join(folder, n) for n in ("in", "out"))
    generator = torch.Generator().manual_seed(17)
    runs = 0
    for number, case in enumerate(cases()):
        inputs = inputs_of(case, generator)
        write_safetensors(in_path, inputs)
        expected = expected_of(case, inputs)
        backend, layout = LAYOUTS[number % len(LAYOUTS)]
        if os.path.exists(out_path):
            os.remove(out_path)
        command = [sherd, "run", "-n", str(RANKS), "--", program]
        command += [f"--in={in_path}", f"--out={out_path}"]
        command += [f"--backend={backend}", f"--layout={layout}"]
        command += options_of(case)
        print(" ".join(command[5:]), flush=True)
        # A test: a rank that waits for ever is an error too.
        subprocess.run(command, check=True, timeout=120)
        tolerance = 1e-5 if case["dtype"] == torch.float32 else 1e-12
        wrong = difference(expected, read_safetensors(out_path), tolerance)
        if wrong is not None:
            print(f"differs from PyTorch {torch.__version__}: {wrong}")
            return 1
        runs += 1
    print(f"{runs} cases as PyTorch {torch.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
