#!/usr/bin/env python3
"""Bench's measurements of PyTorch: checkpoints of a matrix cut by rows.

Ranks and method are those of torch_ranks.py.

Works: dcp:save, dcp:load:DIM:RANKS (by the first RANKS ranks, cut along DIM),
both torch.distributed.checkpoint of a DTensor; torch:save, torch.save by each
rank. A save is durable when it returns, and what it wrote is loaded and
compared.
"""

import os
import shutil
import sys

from torch_ranks import argument_parser, measure
from torch_words import box_of, check, cut_along, dims, filled

NAME = "weight"


class Work:
    def __init__(self, torch, args, rank):
        self.torch, self.size, self.world = torch, args.size, args.world
        self.rank = rank
        self.path = os.path.join(args.directory, "torch")
        self.box = self.box_along(0, self.world)

    def box_along(self, dim, ranks):
        return box_of(self.size, cut_along(self.size, dim, ranks), self.rank)

    def rows(self):
        return filled(self.torch, self.box, self.size)

    def check(self, tensor, box):
        check(self.torch, tensor, box, self.size)


class Save(Work):
    """Into an empty directory, on a disk that has nothing else to write."""

    def prepare(self):
        if self.rank == 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.mkdir(self.path)
            os.sync()


class TorchSave(Save):
    def __init__(self, *args):
        super().__init__(*args)
        self.tensor = self.rows()
        self.file = os.path.join(self.path, f"{self.rank}.pt")

    def run(self):
        with open(self.file, "wb") as file:
            self.torch.save({NAME: self.tensor}, file)
            file.flush()
            os.fsync(file.fileno())
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(directory)
        os.close(directory)

    def check_result(self):
        self.check(self.torch.load(self.file)[NAME], self.box)


class Dcp:
    """torch.distributed.checkpoint with its own defaults."""

    def __init__(self, torch, size, path):
        from torch.distributed import checkpoint, device_mesh, tensor

        self.torch, self.size, self.path = torch, size, path
        self.checkpoint, self.tensor = checkpoint, tensor
        self.mesh_type = device_mesh.DeviceMesh

    def dtensor(self, local, dim, ranks):
        """Collective over all ranks of the job."""
        return self.tensor.DTensor.from_local(
            local,
            self.mesh_type("cpu", list(range(ranks))),
            [self.tensor.Shard(dim)],
            run_check=False,
            shape=self.torch.Size(self.size),
            stride=(self.size[1], 1),
        )

    def save(self, dtensor):
        self.checkpoint.save({NAME: dtensor}, checkpoint_id=self.path)

    def load(self, dtensor, group=None):
        self.checkpoint.load(
            {NAME: dtensor}, checkpoint_id=self.path, process_group=group
        )


class DcpSave(Save):
    def __init__(self, torch, args, rank):
        super().__init__(torch, args, rank)
        self.dcp = Dcp(torch, args.size, self.path)
        self.source = self.dcp.dtensor(self.rows(), 0, self.world)
        self.loaded = self.dcp.dtensor(
            torch.zeros(self.box[1]), 0, self.world
        )

    def run(self):
        self.dcp.save(self.source)

    def check_result(self):
        self.loaded.to_local().fill_(-1)
        self.dcp.load(self.loaded)
        self.check(self.loaded.to_local(), self.box)


class DcpLoad(Work):
    """Into a tensor that there is, from files that the page cache has."""

    def __init__(self, dim, ranks, torch, args, rank):
        super().__init__(torch, args, rank)
        self.dcp = Dcp(torch, args.size, self.path)
        self.dcp.save(self.dcp.dtensor(self.rows(), 0, self.world))
        self.group = torch.distributed.new_group(list(range(ranks)))
        self.loads = rank < ranks
        self.loaded_box = self.box_along(dim, ranks)
        self.loaded = self.dcp.dtensor(
            torch.zeros(self.loaded_box[1]), dim, ranks
        )

    def prepare(self):
        if self.loads:
            self.loaded.to_local().fill_(-1)

    def run(self):
        if self.loads:
            self.dcp.load(self.loaded, self.group)

    def check_result(self):
        if self.loads:
            self.check(self.loaded.to_local(), self.loaded_box)


def make_work(torch, args, rank):
    kinds = {
        ("torch", "save"): TorchSave,
        ("dcp", "save"): DcpSave,
        ("dcp", "load"): DcpLoad,
    }
    parts = args.work.split(":")
    kind = kinds[tuple(parts[:2])]
    return kind(*map(int, parts[2:]), torch, args, rank)


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--work", required=True)
    parser.add_argument("--size", required=True, type=dims)
    parser.add_argument("--directory", required=True)
    return measure(parser.parse_args(), make_work)


if __name__ == "__main__":
    sys.exit(main())
