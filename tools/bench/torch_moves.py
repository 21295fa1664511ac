#!/usr/bin/env python3
"""Bench's measurements of PyTorch: moves of a ShardedTensor or a DTensor.

Brings its own ranks, as forks of this process, over Gloo. Method as in
measure.h, but that each call makes a new result: there is no call that fills
one. Writes what program_report.h reads.

Works: sharded:reshard:DIM, sharded:gather, sharded:shard, and the same with
dtensor; dtensor:grid. Tensors begin cut along dim 0.
"""

import argparse
import ctypes
import mmap
import os
import signal
import struct
import sys
import time
import traceback

# Whole numbers that a 32-bit float holds.
VALUES = 16777213
# Elements that are filled or compared at once.
SLAB = 1 << 20


class WrongResult(Exception):
    pass


class Board:
    """Memory that the ranks share: places to meet, and times."""

    def __init__(self, world):
        self.world = world
        self.memory = mmap.mmap(-1, 4096 + 64 * world)

    def set_times(self, rank, entered, left):
        struct.pack_into("dd", self.memory, 4096 + 64 * rank + 8, entered, left)

    def call_seconds(self):
        times = [
            struct.unpack_from("dd", self.memory, 4096 + 64 * rank + 8)
            for rank in range(self.world)
        ]
        return max(t[1] for t in times) - min(t[0] for t in times)

    def set_extra(self, rank, extra):
        struct.pack_into("q", self.memory, 8 * rank, extra)

    def extra(self, rank):
        return struct.unpack_from("q", self.memory, 8 * rank)[0]

    def meet(self, rank):
        """Returns once all ranks called it as often as this one."""
        at = 4096 + 64 * rank
        turn = struct.unpack_from("q", self.memory, at)[0] + 1
        struct.pack_into("q", self.memory, at, turn)
        while any(
            struct.unpack_from("q", self.memory, 4096 + 64 * r)[0] < turn
            for r in range(self.world)
        ):
            time.sleep(20e-6)


def die_with_parent(parent):
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def status_bytes(field):
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


def forget_peak():
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def values(torch, offsets, sizes, size):
    """The expected contents of a box: numbers by position."""
    index = torch.zeros([1] * len(size), dtype=torch.int32)
    stride = 1
    for dim in reversed(range(len(size))):
        shape = [1] * len(size)
        shape[dim] = sizes[dim]
        steps = torch.arange(
            offsets[dim], offsets[dim] + sizes[dim], dtype=torch.int32
        )
        index = index + steps.mul_(stride).reshape(shape)
        stride *= size[dim]
    return index.remainder_(VALUES).to(torch.float32)


def slabs(tensor, offsets):
    """Parts of a tensor along dim 0, each with its place in the whole."""
    row = max(1, tensor[:1].numel())
    step = max(1, SLAB // row)
    for start in range(0, tensor.shape[0], step):
        yield (
            tensor[start : start + step],
            [offsets[0] + start] + list(offsets[1:]),
        )


def fill(torch, tensor, offsets, size):
    for slab, place in slabs(tensor, offsets):
        slab.copy_(values(torch, place, slab.shape, size))


def check(torch, tensor, offsets, sizes, size):
    if list(tensor.shape) != list(sizes):
        raise WrongResult(f"a shard of {list(tensor.shape)}, not {list(sizes)}")
    for slab, place in slabs(tensor, offsets):
        if not torch.equal(slab, values(torch, place, slab.shape, size)):
            raise WrongResult(f"elements differ, somewhere from {place} on")


class Work:
    """A move; each subclass has the result of a call in self.result."""

    def __init__(self, torch, size, rank, world):
        self.torch, self.size, self.rank, self.world = torch, size, rank, world
        self.result = None
        self.own = self.box_of([world] + [1] * (len(size) - 1))

    def box_of(self, cuts):
        """This rank's box of a grid of ranks: offsets and sizes."""
        offsets, sizes = [], []
        rank = self.rank
        for dim in reversed(range(len(self.size))):
            rank, place = divmod(rank, cuts[dim])
            step = -(-self.size[dim] // cuts[dim])
            start = min(self.size[dim], place * step)
            offsets.insert(0, start)
            sizes.insert(0, min(self.size[dim], start + step) - start)
        return offsets, sizes

    def cut_along(self, dim):
        cuts = [1] * len(self.size)
        cuts[dim] = self.world
        return cuts

    def filled(self, box):
        offsets, sizes = box
        tensor = self.torch.empty(sizes, dtype=self.torch.float32)
        fill(self.torch, tensor, offsets, self.size)
        return tensor

    def whole_on_rank_0(self):
        whole = ([0] * len(self.size), self.size)
        # PyTorch wants a tensor of that size on the other ranks too.
        if self.rank == 0:
            return self.filled(whole)
        return self.torch.empty(self.size, dtype=self.torch.float32)

    def check(self, tensor, box):
        check(self.torch, tensor, box[0], box[1], self.size)

    def check_whole(self, tensor):
        self.check(tensor, ([0] * len(self.size), self.size))

    def prepare(self):
        self.result = None


class Sharded(Work):
    def __init__(self, *args):
        super().__init__(*args)
        from torch.distributed._shard import sharded_tensor, sharding_spec

        self.api = sharded_tensor
        self.spec_type = sharding_spec.ChunkShardingSpec
        self.local = None
        self.source = None

    def spec(self, dim):
        ranks = [f"rank:{r}/cpu" for r in range(self.world)]
        return self.spec_type(dim=dim, placements=ranks)

    def make_source(self):
        if self.local is None:
            self.local = self.filled(self.own)
        shard = self.api.Shard.from_tensor_and_offsets(
            self.local, self.own[0], self.rank
        )
        self.source = self.api.init_from_local_shards([shard], *self.size)


class ShardedReshard(Sharded):
    def __init__(self, dim, *args):
        super().__init__(*args)
        self.dim = dim

    def prepare(self):
        super().prepare()
        # The call changes it.
        self.make_source()

    def run(self):
        self.result = self.source.reshard(self.spec(self.dim))

    def check_result(self):
        self.check(
            self.result.local_tensor(), self.box_of(self.cut_along(self.dim))
        )


class ShardedGather(Sharded):
    def prepare(self):
        super().prepare()
        if self.source is None:
            self.make_source()

    def run(self):
        out = None
        if self.rank == 0:
            out = self.torch.empty(self.size, dtype=self.torch.float32)
        self.source.gather(dst=0, out=out)
        self.result = out

    def check_result(self):
        if self.rank == 0:
            self.check_whole(self.result)


class ShardedShard(Sharded):
    def __init__(self, *args):
        super().__init__(*args)
        from torch.distributed._shard import _shard_tensor

        self.shard = _shard_tensor
        self.whole = self.whole_on_rank_0()

    def run(self):
        self.result = self.shard(self.whole, self.spec(0), src_rank=0)

    def check_result(self):
        self.check(self.result.local_tensor(), self.own)


class DTensorWork(Work):
    def __init__(self, *args):
        super().__init__(*args)
        from torch.distributed import tensor
        from torch.distributed.device_mesh import init_device_mesh

        self.api = tensor
        self.mesh_of = lambda shape: init_device_mesh("cpu", shape)
        self.mesh = self.mesh_of((self.world,))

    def make_source(self, mesh, placements):
        self.source = self.api.DTensor.from_local(
            self.filled(self.own), mesh, placements, run_check=False
        )


class DTensorReshard(DTensorWork):
    def __init__(self, dim, *args):
        super().__init__(*args)
        self.make_source(self.mesh, [self.api.Shard(0)])
        self.target = [self.api.Shard(dim)]
        self.cuts = self.cut_along(dim)

    def run(self):
        self.result = self.source.redistribute(placements=self.target)

    def check_result(self):
        self.check(self.result.to_local(), self.box_of(self.cuts))


class DTensorGrid(DTensorReshard):
    def __init__(self, *args):
        super().__init__(1, *args)
        if self.world == 2:
            return
        shard = self.api.Shard
        self.mesh = self.mesh_of((2, self.world // 2))
        self.make_source(self.mesh, [shard(0), shard(0)])
        self.target = [shard(0), shard(1)]
        self.cuts = [2, self.world // 2]


class DTensorGather(DTensorWork):
    def __init__(self, *args):
        super().__init__(*args)
        self.make_source(self.mesh, [self.api.Shard(0)])

    def run(self):
        # There is no gather to one rank.
        self.result = self.source.full_tensor()

    def check_result(self):
        self.check_whole(self.result)


class DTensorShard(DTensorWork):
    def __init__(self, *args):
        super().__init__(*args)
        self.whole = self.whole_on_rank_0()

    def run(self):
        self.result = self.api.distribute_tensor(
            self.whole, self.mesh, [self.api.Shard(0)]
        )

    def check_result(self):
        self.check(self.result.to_local(), self.own)


def make_work(name, *args):
    parts = name.split(":")
    kinds = {
        ("sharded", "reshard"): ShardedReshard,
        ("sharded", "gather"): ShardedGather,
        ("sharded", "shard"): ShardedShard,
        ("dtensor", "reshard"): DTensorReshard,
        ("dtensor", "grid"): DTensorGrid,
        ("dtensor", "gather"): DTensorGather,
        ("dtensor", "shard"): DTensorShard,
    }
    return kinds[tuple(parts[:2])](*map(int, parts[2:]), *args)


def run_rank(torch, board, args, rank):
    """Makes the calls; rank 0 returns their seconds."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{args.report}.store",
        rank=rank,
        world_size=args.world,
    )
    work = make_work(args.work, torch, args.size, rank, args.world)
    seconds = []
    for call in range(args.calls):
        work.prepare()
        before = status_bytes("VmRSS")
        if call == 0:
            forget_peak()
        board.meet(rank)
        entered = time.monotonic()
        work.run()
        board.set_times(rank, entered, time.monotonic())
        board.meet(rank)
        seconds.append(board.call_seconds())
        if call == 0:
            board.set_extra(rank, status_bytes("VmHWM") - before)
        work.check_result()
        board.meet(rank)
    return seconds


def write_lines(path, lines):
    # A reader finds all of it or none.
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in lines))
    os.rename(path + ".part", path)


def rank_process(torch, board, args, rank, parent):
    die_with_parent(parent)
    code = 1
    try:
        seconds = run_rank(torch, board, args, rank)
        if rank == 0:
            lines = [f"call {s!r}" for s in seconds]
            lines += [f"extra {board.extra(r)}" for r in range(args.world)]
            write_lines(f"{args.report}.good", lines)
        code = 0
    except WrongResult as error:
        write_lines(f"{args.report}.bad", [f"wrong rank {rank}: {error}"])
    except Exception as error:
        traceback.print_exc()
        text = " ".join(str(error).split())[:300]
        text = f"failed rank {rank}: {type(error).__name__}: {text}"
        write_lines(f"{args.report}.bad", [text])
    # Not the end of the interpreter: it waits for PyTorch's threads.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", required=True)
    parser.add_argument(
        "--size",
        required=True,
        type=lambda text: [int(n) for n in text.split(",")],
    )
    parser.add_argument("--world", required=True, type=int)
    parser.add_argument("--calls", required=True, type=int)
    parser.add_argument("--report", required=True)
    return parser.parse_args()


def main():
    args = parse_arguments()
    try:
        import torch
        import torch.distributed
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        write_lines(args.report, [f"failed import torch: {text}"])
        return 1
    board = Board(args.world)
    parent = os.getpid()
    ranks = set()
    for rank in range(args.world):
        pid = os.fork()
        if pid == 0:
            rank_process(torch, board, args, rank, parent)
        ranks.add(pid)
    good = True
    while ranks:
        pid, status = os.wait()
        ranks.discard(pid)
        if status != 0 and good:
            good = False
            # The others wait for it.
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    outcome = f"{args.report}.good" if good else f"{args.report}.bad"
    if not os.path.exists(outcome):
        write_lines(outcome, ["failed a rank ended without a word"])
    os.rename(outcome, args.report)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
