"""The ranks of bench's measurements of PyTorch, as forks of this process.

Method as in measure.h, but that each call makes a new result: there is no call
that fills one. Writes what program_report.h reads.
"""

import argparse
import ctypes
import importlib
import mmap
import os
import signal
import struct
import sys
import time
import traceback


class WrongResult(Exception):
    pass


class Board:
    """Memory that the ranks share: places to meet, and times."""

    def __init__(self, world):
        self.world = world
        self.memory = mmap.mmap(-1, 4096 + 64 * world)

    def set_times(self, rank, entered, left, cpu):
        at = 4096 + 64 * rank + 8
        struct.pack_into("ddd", self.memory, at, entered, left, cpu)

    def times(self):
        return [
            struct.unpack_from("ddd", self.memory, 4096 + 64 * rank + 8)
            for rank in range(self.world)
        ]

    def call_seconds(self):
        times = self.times()
        return max(t[1] for t in times) - min(t[0] for t in times)

    def cpu_seconds(self):
        return sum(t[2] for t in self.times())

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


def run_rank(torch, board, args, rank, make_work):
    """Makes the calls; rank 0 returns their lines of the report."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{args.report}.store",
        rank=rank,
        world_size=args.world,
    )
    # Of tables, what stays: libraries and temporary memory come and go.
    empty = status_bytes("RssAnon")
    work = make_work(torch, args, rank)
    lines = []
    for call in range(args.calls):
        work.prepare()
        before = status_bytes("VmRSS")
        if call == 0:
            forget_peak()
        board.meet(rank)
        cpu = time.process_time()
        entered = time.monotonic()
        work.run()
        left = time.monotonic()
        board.set_times(rank, entered, left, time.process_time() - cpu)
        board.meet(rank)
        lines.append(f"call {board.call_seconds()!r}")
        lines.append(f"cpu {board.cpu_seconds()!r}")
        if call == 0:
            extra = status_bytes("VmHWM") - before
            if args.measures_tables:
                extra = status_bytes("RssAnon") - empty
            board.set_extra(rank, extra)
        work.check_result()
        board.meet(rank)
    return lines + [f"extra {board.extra(r)}" for r in range(args.world)]


def write_lines(path, lines):
    # A reader finds all of it or none, also where several ranks fail.
    part = f"{path}.{os.getpid()}"
    with open(part, "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in lines))
    os.rename(part, path)


def rank_process(args, rank, parent, lines_of_rank):
    die_with_parent(parent)
    code = 1
    try:
        lines = lines_of_rank(rank)
        if rank == 0:
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


def run_ranks(args, lines_of_rank):
    """Runs lines_of_rank(rank) in a process per rank; returns the exit code.

    The report is what rank 0 returns, or why a rank failed.
    """
    parent = os.getpid()
    ranks = {}
    for rank in range(args.world):
        pid = os.fork()
        if pid == 0:
            rank_process(args, rank, parent, lines_of_rank)
        ranks[pid] = rank
    good, end = True, ""
    while ranks:
        pid, status = os.wait()
        rank = ranks.pop(pid)
        if status != 0 and good:
            good = False
            code = os.waitstatus_to_exitcode(status)
            how = f"exited with code {code}"
            if code < 0:
                how = f"was killed by signal {-code}"
            end = f"rank {rank} {how}"
            # The others wait for it.
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    outcome = f"{args.report}.good" if good else f"{args.report}.bad"
    if not os.path.exists(outcome):
        write_lines(outcome, [f"failed {end}"])
    os.rename(outcome, args.report)
    return 0 if good else 1


def measure(args, make_work, modules=()):
    """Starts the ranks, which make the calls; returns the exit code.

    Modules are imported before: their memory is not that of tables.
    """
    for module in ("torch", "torch.distributed", *modules):
        try:
            importlib.import_module(module)
        except Exception as error:
            text = " ".join(str(error).split())[:300]
            write_lines(args.report, [f"failed import {module}: {text}"])
            return 1
    torch = sys.modules["torch"]
    board = Board(args.world)
    return run_ranks(
        args, lambda rank: run_rank(torch, board, args, rank, make_work)
    )


def argument_parser(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--world", required=True, type=int)
    parser.add_argument("--calls", required=True, type=int)
    parser.add_argument("--report", required=True)
    # See BenchCase; otherwise memory is that of the first call.
    parser.add_argument("--measures-tables", action="store_true")
    return parser
