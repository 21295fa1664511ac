#!/usr/bin/env python3
"""Bench's measurements of PyTorch's RPC over TensorPipe.

Brings its own workers, as forks of this process. Writes what program_report.h
reads. Works, as rpc_work.h has them: round_trip, round_trip_one_core, calls,
fetch, busy. A fetch makes a new tensor: there is no call that fills one.
"""

import argparse
import collections
import ctypes
import multiprocessing
import os
import signal
import statistics
import sys
import time
import traceback

ROUND_TRIPS = 200
CALLS = 1000
OUTSTANDING = 64
FETCHED_BYTES = 16 << 20
BUSY_REPEATS = 200
COMPUTE_SECONDS = 500e-6

# What other workers fetch from this one.
served = None


class WrongResult(Exception):
    pass


def die_with_parent(parent):
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def write_lines(path, lines):
    # A reader finds all of it or none.
    with open(path + ".part", "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in lines))
    os.rename(path + ".part", path)


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
    """Makes the calls; rank 0 returns their seconds."""
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
    return seconds


def rank_process(args, barrier, times, rank, parent):
    die_with_parent(parent)
    code = 1
    try:
        seconds = run_rank(args, barrier, times, rank)
        if rank == 0:
            lines = [f"call {s!r}" for s in seconds]
            write_lines(f"{args.report}.good", lines + ["extra 0"] * args.world)
        code = 0
    except WrongResult as error:
        write_lines(f"{args.report}.bad", [f"wrong rank {rank}: {error}"])
    except Exception as error:
        traceback.print_exc()
        text = " ".join(str(error).split())[:300]
        text = f"failed rank {rank}: {type(error).__name__}: {text}"
        write_lines(f"{args.report}.bad", [text])
    sys.stderr.flush()
    # Not the end of the interpreter: it waits for PyTorch's threads.
    os._exit(code)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", required=True, choices=WORKS)
    parser.add_argument("--bytes", required=True, type=int)
    parser.add_argument("--world", required=True, type=int)
    parser.add_argument("--calls", required=True, type=int)
    parser.add_argument("--report", required=True)
    return parser.parse_args()


def main():
    args = parse_arguments()
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(args.world)
    times = context.Array("d", args.world, lock=False)
    parent = os.getpid()
    ranks = set()
    for rank in range(args.world):
        pid = os.fork()
        if pid == 0:
            rank_process(args, barrier, times, rank, parent)
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
