#!/usr/bin/env python3
"""Bench's measurements of PyTorch's RPC over TensorPipe.

Its workers are ranks of torch_ranks.py. Works, as rpc_work.h has them:
round_trip, round_trip_one_core, calls, fetch, busy. A fetch makes a new tensor:
there is no call that fills one.
"""

import collections
import multiprocessing
import os
import statistics
import sys
import time

from torch_ranks import WrongResult, argument_parser, run_ranks

ROUND_TRIPS = 200
CALLS = 1000
OUTSTANDING = 64
FETCHED_BYTES = 16 << 20
BUSY_REPEATS = 200
COMPUTE_SECONDS = 500e-6

# What other workers fetch from this one.
served = None


def echo(message):
    return message


def fetch():
    return served


def check_echo(answer, message):
    if answer != message:
        raise WrongResult("another answer than the message")


def round_trip(rpc, args, rank):
    if rank > 0:
        return 0
    message = bytes(i % 256 for i in range(args.bytes))
    seconds = []
    for _ in range(ROUND_TRIPS):
        begin = time.monotonic()
        answer = rpc.rpc_sync("worker1", echo, (message,))
        seconds.append(time.monotonic() - begin)
        check_echo(answer, message)
    return statistics.median(seconds)


def calls(rpc, args, rank):
    if rank > 0:
        return 0
    message = bytes(i % 256 for i in range(args.bytes))
    begin = time.monotonic()
    under_way = collections.deque()
    for _ in range(CALLS):
        if len(under_way) == OUTSTANDING:
            check_echo(under_way.popleft().wait(), message)
        under_way.append(rpc.rpc_async("worker1", echo, (message,)))
    while under_way:
        check_echo(under_way.popleft().wait(), message)
    return (time.monotonic() - begin) / CALLS


def words(torch, args, rank):
    return torch.arange(args.bytes // 4, dtype=torch.int32) + rank


def fetches(rpc, args, rank):
    import torch

    if rank > 0:
        return 0
    expected = words(torch, args, 1)
    seconds = []
    for _ in range(max(1, min(100, FETCHED_BYTES // args.bytes))):
        begin = time.monotonic()
        result = rpc.rpc_sync("worker1", fetch)
        seconds.append(time.monotonic() - begin)
    if not torch.equal(result, expected):
        raise WrongResult("elements differ")
    return statistics.median(seconds)


def busy(rpc, args, rank):
    message = bytes(i % 256 for i in range(args.bytes))
    to = f"worker{(rank + 1) % args.world}"
    begin = time.monotonic()
    for _ in range(BUSY_REPEATS):
        end = time.thread_time() + COMPUTE_SECONDS
        while time.thread_time() < end:
            pass
        check_echo(rpc.rpc_sync(to, echo, (message,)), message)
    return (time.monotonic() - begin) / BUSY_REPEATS


WORKS = {
    "round_trip": round_trip,
    "round_trip_one_core": round_trip,
    "calls": calls,
    "fetch": fetches,
    "busy": busy,
}


def run_rank(args, barrier, times, rank):
    """Makes the calls; rank 0 returns their lines of the report."""
    if args.work.startswith("round_trip"):
        cores = sorted(os.sched_getaffinity(0), reverse=True)
        place = 0 if args.work.endswith("_one_core") else rank % len(cores)
        os.sched_setaffinity(0, {cores[place]})
    import torch
    import torch.distributed.rpc as rpc

    global served
    served = words(torch, args, rank)
    rpc.init_rpc(
        f"worker{rank}",
        rank=rank,
        world_size=args.world,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            init_method=f"file://{args.report}.store", num_worker_threads=4
        ),
    )
    work = WORKS[args.work]
    seconds = []
    for _ in range(args.calls):
        # Sleeping, unlike a loop that looks.
        barrier.wait()
        times[rank] = work(rpc, args, rank)
        barrier.wait()
        seconds.append(max(times))
    barrier.wait()
    return [f"call {s!r}" for s in seconds] + ["extra 0"] * args.world


def main():
    parser = argument_parser(__doc__)
    parser.add_argument("--work", required=True, choices=WORKS)
    parser.add_argument("--bytes", required=True, type=int)
    args = parser.parse_args()
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(args.world)
    times = context.Array("d", args.world, lock=False)
    return run_ranks(args, lambda rank: run_rank(args, barrier, times, rank))


if __name__ == "__main__":
    sys.exit(main())
