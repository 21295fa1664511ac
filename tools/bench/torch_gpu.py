#!/usr/bin/env python3
"""Bench's measurements of PyTorch on one GPU: moves of boxes, and calls.

Writes what program_report.h reads. Works, as gpu_move_cases.cc and
gpu_call_cases.cc have them: pack:SHAPE:DIM, unpack:SHAPE:DIM, transpose:2:0,
reshard:2:1, and call, call_async at a quantile (call:50). SHAPE 2 is a matrix
that is about square, 3 three dims, otherwise the length of a row.
"""

import argparse
import os
import tempfile
import time

PARTS = 4
GROUPS = 200
CALLS_PER_GROUP = 10


def shape_of(shape, words):
    if shape == 2:
        cols = PARTS
        while cols * cols * 4 <= words:
            cols *= 2
        return [words // cols, cols]
    if shape == 3:
        middle = PARTS
        while middle * middle * 4 * 64 <= words:
            middle *= 2
        return [words // (middle * 64), middle, 64]
    return [words // shape, shape]


class Move:
    """Copies the parts of a tensor, or into them."""

    def __init__(self, torch, kind, shape, dim, words, repeats):
        self.torch, self.repeats = torch, repeats
        sizes = shape_of(shape, words)
        self.source = torch.arange(words, dtype=torch.int32, device="cuda").reshape(sizes)
        if kind == "transpose":
            self.result = torch.empty(sizes[::-1], dtype=torch.int32, device="cuda")
            self.pairs = [(self.result, self.source.t())]
            return
        parts = list(self.source.chunk(PARTS, dim))
        if kind == "pack":
            self.result = torch.empty([words], dtype=torch.int32, device="cuda")
            self.pairs = [(to.view(part.shape), part)
                          for to, part in zip(self.result.chunk(PARTS), parts)]
        elif kind == "unpack":
            packed = torch.cat([part.reshape(-1) for part in parts])
            self.result = torch.empty(sizes, dtype=torch.int32, device="cuda")
            self.pairs = [(to, part.view(to.shape)) for to, part in
                          zip(self.result.chunk(PARTS, dim), packed.chunk(PARTS))]
        else:
            # Shards of rows to shards of columns, each of its own memory.
            rows = [part.clone() for part in self.source.chunk(PARTS, 0)]
            step = sizes[0] // PARTS
            columns = [torch.empty_like(part, memory_format=torch.contiguous_format)
                       for part in parts]
            self.result = columns
            self.pairs = [(column[i * step:(i + 1) * step], row.chunk(PARTS, 1)[j])
                          for j, column in enumerate(columns) for i, row in enumerate(rows)]

    def prepare(self):
        for to, _ in self.pairs:
            to.fill_(-1)
        self.torch.cuda.synchronize()

    def run(self):
        start = time.perf_counter()
        for _ in range(self.repeats):
            for to, source in self.pairs:
                to.copy_(source)
        self.torch.cuda.synchronize()
        return (time.perf_counter() - start) / self.repeats

    def is_right(self):
        return all(self.torch.equal(to, source) for to, source in self.pairs)


class Call:
    """One all_reduce of 8 bytes in a group of one rank over NCCL, as the host
    sees it."""

    def __init__(self, torch, kind, quantile):
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.is_async, self.quantile = kind == "call_async", quantile
        self.folder = tempfile.TemporaryDirectory()
        dist.init_process_group("nccl", rank=0, world_size=1,
                                store=dist.FileStore(os.path.join(self.folder.name, "store"), 1))
        self.tensor = torch.ones(2, device="cuda")

    def prepare(self):
        self.torch.cuda.synchronize()

    def call(self):
        if self.is_async:
            self.dist.all_reduce(self.tensor, async_op=True).wait()
        else:
            self.dist.all_reduce(self.tensor)

    def run(self):
        seconds = []
        for _ in range(GROUPS):
            start = time.perf_counter()
            for _ in range(CALLS_PER_GROUP):
                self.call()
            seconds.append((time.perf_counter() - start) / CALLS_PER_GROUP)
            self.torch.cuda.synchronize()
        return sorted(seconds)[self.quantile * (GROUPS - 1) // 100]

    def is_right(self):
        return self.tensor.tolist() == [1, 1]


def measure(arguments):
    import torch

    kind, *numbers = arguments.work.split(":")
    numbers = [int(n) for n in numbers]
    if kind.startswith("call"):
        work = Call(torch, kind, numbers[0])
    else:
        work = Move(torch, kind, numbers[0], numbers[1], arguments.bytes // 4,
                    arguments.repeats)
    lines = []
    for _ in range(arguments.calls):
        work.prepare()
        lines.append("call %.9f" % work.run())
        if not work.is_right():
            return ["wrong elements differ"]
    return lines + ["extra 0"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--report", required=True)
    arguments = parser.parse_args()
    try:
        lines = measure(arguments)
    except Exception as error:  # bench reports any of them.
        lines = ["failed %s: %s" % (type(error).__name__, " ".join(str(error).split()))]
    with open(arguments.report, "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    main()
