#!/usr/bin/env python3
"""Bench's measurements of PyTorch and TorchRec: lookups in embedding tables.

Ranks and method are those of torch_ranks.py; work and check those of
embedding_work.h: sums of bags in every table and, with --step, an update by
row-wise Adagrad.

Peers: torch-local, embedding_bag in tables that every rank has; torch-sharded,
embedding_bag of ShardedTensors; torchrec, a sharded EmbeddingBagCollection.
"""

import math
import sys

from torch_ranks import WrongResult, argument_parser, measure

WIDTH = 64
BAGS = 512
IDS_PER_BAG = 20
LEARNING_RATE = 0.0625
EPS = 1e-10


def make_ids(torch, args, table, rank):
    rows = args.rows[table]
    generator = torch.Generator().manual_seed(1000 * table + rank)
    size = (BAGS, IDS_PER_BAG)
    if not args.zipf:
        return torch.randint(0, rows, size, generator=generator)
    part = torch.rand(size, dtype=torch.float64, generator=generator)
    ids = torch.expm1(part * math.log(rows + 1)).long().clamp_(max=rows - 1)
    return ids * 2654435761 % rows


def make_gradient(torch, table, rank):
    bags = torch.arange(BAGS).unsqueeze(1)
    number = 31 * rank + 7 * bags + 3 * torch.arange(WIDTH) + table
    return (number % 17 - 8).to(torch.float32) / 16


def elements(torch, table, rows, columns):
    """The elements at the beginning, of tensors of rows and columns."""
    number = (131 * table + 7 * rows.unsqueeze(-1) + columns) % 1000
    return number.to(torch.float32) / 1024


def fill(torch, tensor, table, offsets):
    columns = offsets[1] + torch.arange(tensor.shape[1])
    step = 1 << 16
    for first in range(0, tensor.shape[0], step):
        part = tensor[first : first + step]
        rows = offsets[0] + first + torch.arange(part.shape[0])
        part.copy_(elements(torch, table, rows, columns))


class Work:
    """Ids, and the check of self.results: a tensor per table."""

    # Columns over which Adagrad takes its mean.
    mean_columns = WIDTH

    def __init__(self, torch, args, rank):
        self.torch, self.args, self.rank = torch, args, rank
        self.tables = range(len(args.rows))
        self.ids = [make_ids(torch, args, t, rank) for t in self.tables]
        self.results = None
        self.updates = 0

    def prepare(self):
        self.results = None

    def run(self):
        self.look_up()
        if self.args.step:
            self.update()

    def update(self):
        raise NotImplementedError

    def check_result(self):
        self.compare()
        if not self.args.step:
            return
        # What the update has changed.
        self.updates += 1
        self.look_up()
        self.compare()

    def compare(self):
        torch = self.torch
        factor = sum(1 / math.sqrt(n) for n in range(1, self.updates + 1))
        for t in self.tables:
            rows = elements(torch, t, self.ids[t], torch.arange(WIDTH))
            if self.updates > 0:
                rows = rows - factor * self.first_step(t)
            expected = rows.sum(dim=1)
            far = (self.results[t] - expected).abs().max().item()
            if not far <= (1e-3 if self.updates > 0 else 0):
                raise WrongResult(
                    f"table {t} differs by {far} after {self.updates} updates"
                )

    def first_step(self, table):
        """By which a first update lowers each id's row; see EmbeddingModel."""
        torch = self.torch
        rows, slots = torch.unique(self.ids[table], return_inverse=True)
        gradient = torch.zeros(len(rows), WIDTH)
        for rank in range(self.args.world):
            ids = make_ids(torch, self.args, table, rank).flatten()
            of_bags = make_gradient(torch, table, rank)
            of_ids = of_bags.repeat_interleave(IDS_PER_BAG, dim=0)
            place = torch.searchsorted(rows, ids).clamp_(max=len(rows) - 1)
            known = rows[place] == ids
            gradient.index_add_(0, place[known], of_ids[known])
        parts = gradient.reshape(len(rows), -1, self.mean_columns)
        root = parts.square().mean(dim=2, keepdim=True).sqrt()
        step = LEARNING_RATE * parts / torch.where(root > 0, root, 1)
        return step.reshape(len(rows), WIDTH)[slots]


class TorchLocal(Work):
    def __init__(self, torch, args, rank):
        super().__init__(torch, args, rank)
        self.weights = []
        for t in self.tables:
            self.weights.append(torch.empty(args.rows[t], WIDTH))
            fill(torch, self.weights[t], t, (0, 0))

    def look_up(self):
        bag = self.torch.nn.functional.embedding_bag
        with self.torch.no_grad():
            self.results = [
                bag(self.ids[t], self.weights[t], mode="sum")
                for t in self.tables
            ]


class TorchSharded(TorchLocal):
    def __init__(self, torch, args, rank):
        Work.__init__(self, torch, args, rank)
        from torch.distributed._shard import sharded_tensor

        self.weights = []
        cut = {"rows": 0, "columns": 1}[args.cut]
        for t in self.tables:
            size = [args.rows[t], WIDTH]
            length = -(-size[cut] // args.world)
            offsets, sizes = [0, 0], list(size)
            offsets[cut] = min(rank * length, size[cut])
            sizes[cut] = min(length, size[cut] - offsets[cut])
            local = torch.empty(sizes)
            fill(torch, local, t, offsets)
            shard = sharded_tensor.Shard.from_tensor_and_offsets(
                local, offsets, rank
            )
            self.weights.append(
                sharded_tensor.init_from_local_shards([shard], *size)
            )


class TorchRec(Work):
    def __init__(self, torch, args, rank):
        super().__init__(torch, args, rank)
        import torchrec
        from torchrec.distributed import comm_ops

        # The sum over the ranks, as of one batch.
        comm_ops.set_gradient_division(False)
        if args.cut == "columns":
            self.mean_columns = WIDTH // args.world
        self.model = self.make_model(torchrec)
        self.features = torchrec.KeyedJaggedTensor.from_lengths_sync(
            keys=[f"f{t}" for t in self.tables],
            values=torch.cat([ids.flatten() for ids in self.ids]),
            lengths=torch.full(
                (len(args.rows) * BAGS,), IDS_PER_BAG, dtype=torch.int64
            ),
        )
        self.found = None
        self.gradient = None

    def make_model(self, torchrec):
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from torchrec.distributed import embeddingbag, sharding_plan
        from torchrec.distributed.embedding_types import EmbeddingComputeKernel
        from torchrec.distributed.types import ShardingEnv, ShardingPlan

        torch, world = self.torch, self.args.world
        collection = torchrec.EmbeddingBagCollection(
            device=torch.device("meta"),
            tables=[
                torchrec.EmbeddingBagConfig(
                    name=f"t{t}",
                    embedding_dim=WIDTH,
                    num_embeddings=self.args.rows[t],
                    feature_names=[f"f{t}"],
                    pooling=torchrec.PoolingType.SUM,
                )
                for t in self.tables
            ],
        )
        sharder = embeddingbag.EmbeddingBagCollectionSharder(
            fused_params={
                "optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
                "learning_rate": LEARNING_RATE,
                "eps": EPS,
            }
        )
        fused = {"compute_kernel": EmbeddingComputeKernel.FUSED.value}
        ranks = list(range(world))
        ways = {
            "rows": lambda t: sharding_plan.row_wise(**fused),
            "columns": lambda t: sharding_plan.column_wise(ranks, **fused),
            "tables": lambda t: sharding_plan.table_wise(t % world, **fused),
        }
        plan = sharding_plan.construct_module_sharding_plan(
            collection,
            {f"t{t}": ways[self.args.cut](t) for t in self.tables},
            sharder=sharder,
            local_size=world,
            world_size=world,
            device_type="cpu",
        )
        model = torchrec.distributed.DistributedModelParallel(
            collection,
            env=ShardingEnv.from_process_group(torch.distributed.group.WORLD),
            device=torch.device("cpu"),
            plan=ShardingPlan({"": plan}),
            sharders=[sharder],
        )
        for name, weight in model.state_dict().items():
            table = int(name.split(".")[-2][1:])
            for shard in weight.local_shards():
                offsets = shard.metadata.shard_offsets
                fill(torch, shard.tensor.detach(), table, offsets)
        return model

    def look_up(self):
        with self.torch.set_grad_enabled(self.args.step):
            self.found = self.model(self.features).wait()

    def update(self):
        torch = self.torch
        if self.gradient is None:
            # Features of one rank are side by side.
            tables = [int(key[1:]) for key in self.found.keys()]
            gradients = [make_gradient(torch, t, self.rank) for t in tables]
            self.gradient = torch.cat(gradients, dim=1)
        self.found.values().backward(self.gradient)

    def compare(self):
        self.results = [self.found[f"f{t}"].detach() for t in self.tables]
        super().compare()


# What makes the work, and the modules that it needs beside PyTorch.
PEERS = {
    "torch-local": (TorchLocal,),
    "torch-sharded": (TorchSharded,),
    "torchrec": (
        TorchRec,
        ("fbgemm_gpu", "torchrec", "torchrec.distributed.embeddingbag"),
    ),
}


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--peer", required=True, choices=PEERS)
    parser.add_argument(
        "--cut", required=True, choices=("rows", "columns", "tables")
    )
    parser.add_argument(
        "--rows",
        required=True,
        type=lambda text: [int(n) for n in text.split(",")],
    )
    parser.add_argument("--zipf", action="store_true")
    parser.add_argument("--step", action="store_true")
    args = parser.parse_args()
    return measure(args, *PEERS[args.peer])


if __name__ == "__main__":
    sys.exit(main())
