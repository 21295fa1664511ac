#!/usr/bin/env python3
"""Bench's measurements of PyTorch: moves of a ShardedTensor or a DTensor.

Ranks and method are those of torch_ranks.py, over Gloo.

Works: sharded:reshard:DIM, sharded:gather, sharded:shard, and the same with
dtensor; dtensor:grid. Tensors begin cut along dim 0.
"""

import sys

from torch_ranks import argument_parser, measure
from torch_words import box_of, check, cut_along, dims, filled


class Work:
    """A move; each subclass has the result of a call in self.result."""

    def __init__(self, torch, size, rank, world):
        self.torch, self.size, self.rank, self.world = torch, size, rank, world
        self.result = None
        self.own = box_of(size, cut_along(size, 0, world), rank)

    def filled(self, box):
        return filled(self.torch, box, self.size)

    def whole_on_rank_0(self):
        whole = ([0] * len(self.size), self.size)
        # PyTorch wants a tensor of that size on the other ranks too.
        if self.rank == 0:
            return self.filled(whole)
        return self.torch.empty(self.size, dtype=self.torch.float32)

    def check(self, tensor, box):
        check(self.torch, tensor, box, self.size)

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
        cuts = cut_along(self.size, self.dim, self.world)
        box = box_of(self.size, cuts, self.rank)
        self.check(self.result.local_tensor(), box)


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
        self.cuts = cut_along(self.size, dim, self.world)

    def run(self):
        self.result = self.source.redistribute(placements=self.target)

    def check_result(self):
        box = box_of(self.size, self.cuts, self.rank)
        self.check(self.result.to_local(), box)


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


def make_work(torch, args, rank):
    parts = args.work.split(":")
    kinds = {
        ("sharded", "reshard"): ShardedReshard,
        ("sharded", "gather"): ShardedGather,
        ("sharded", "shard"): ShardedShard,
        ("dtensor", "reshard"): DTensorReshard,
        ("dtensor", "grid"): DTensorGrid,
        ("dtensor", "gather"): DTensorGather,
        ("dtensor", "shard"): DTensorShard,
    }
    kind = kinds[tuple(parts[:2])]
    return kind(*map(int, parts[2:]), torch, args.size, rank, args.world)


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--work", required=True)
    parser.add_argument("--size", required=True, type=dims)
    return measure(parser.parse_args(), make_work)


if __name__ == "__main__":
    sys.exit(main())
