"""The tensors of bench's measurements of PyTorch: numbers by position.

As in box_layout.h, but of 32-bit floats, and cut along one dim or into a grid.
"""

from torch_ranks import WrongResult

# Whole numbers that a 32-bit float holds.
VALUES = 16777213
# Elements that are filled or compared at once.
SLAB = 1 << 20


def dims(text):
    """The type of an argument: "512,128"."""
    return [int(n) for n in text.split(",")]


def box_of(size, cuts, rank):
    """A rank's box of a grid of ranks: offsets and sizes."""
    offsets, sizes = [], []
    for dim in reversed(range(len(size))):
        rank, place = divmod(rank, cuts[dim])
        step = -(-size[dim] // cuts[dim])
        start = min(size[dim], place * step)
        offsets.insert(0, start)
        sizes.insert(0, min(size[dim], start + step) - start)
    return offsets, sizes


def cut_along(size, dim, ranks):
    """The grid that cuts one dim."""
    cuts = [1] * len(size)
    cuts[dim] = ranks
    return cuts


def _values(torch, offsets, sizes, size):
    """The expected contents of a box."""
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


def _slabs(tensor, offsets):
    """Parts of a tensor along dim 0, each with its place in the whole."""
    row = max(1, tensor[:1].numel())
    step = max(1, SLAB // row)
    for start in range(0, tensor.shape[0], step):
        yield (
            tensor[start : start + step],
            [offsets[0] + start] + list(offsets[1:]),
        )


def filled(torch, box, size):
    """A new tensor: the box of a tensor of that size."""
    offsets, sizes = box
    tensor = torch.empty(sizes, dtype=torch.float32)
    for slab, place in _slabs(tensor, offsets):
        slab.copy_(_values(torch, place, slab.shape, size))
    return tensor


def check(torch, tensor, box, size):
    offsets, sizes = box
    if list(tensor.shape) != list(sizes):
        raise WrongResult(f"a shard of {list(tensor.shape)}, not {list(sizes)}")
    for slab, place in _slabs(tensor, offsets):
        if not torch.equal(slab, _values(torch, place, slab.shape, size)):
            raise WrongResult(f"elements differ, somewhere from {place} on")
