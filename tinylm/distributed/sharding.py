"""Gradients and weights over ranks: torch's DDP and FSDP2, and matrices that have to be whole for a moment.

Both sum the gradients: the loss of a rank is already divided by the targets of the whole batch. FSDP2 cuts
every tensor along its first axis as torch.chunk does: rank r holds rows r * c to (r + 1) * c, with
c = ceil(rows / ranks), so the last ranks may hold fewer, or none.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tinylm.distributed.ranks import Ranks


def spread(
    model: nn.Module, layers: Iterable[nn.Module], device: str, ranks: Ranks, shard: bool
) -> nn.Module:
    """The module to train: the model itself, in DDP, or (`shard`) cut by FSDP2, `layers` and what is left.

    The names of the parameters stay those of the model.
    """
    if ranks.alone:
        return model
    if not shard:
        from torch.nn.parallel import DistributedDataParallel

        with warnings.catch_warnings():  # the name of an option that later versions of torch change
            warnings.simplefilter("ignore", FutureWarning)
            wrapped = DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
        wrapped.register_comm_hook(None, lambda state, bucket: summed(bucket))
        return wrapped
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(device, (ranks.size,))
    for part in (*layers, model):
        fully_shard(part, mesh=mesh)
        assert isinstance(part, FSDPModule)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    if any(parameter.is_meta for parameter in model.parameters()):
        allocate_rows(model, device)
    return model


def allocate_rows(model: nn.Module, device: str) -> None:
    """Memory for the rows that this rank holds of a model on the meta device; their content is undefined."""
    tables = [
        (part, name, table) for part in model.modules() for name, table in part.named_buffers("", False)
    ]
    model.to_empty(device=device)
    for part, name, table in tables:
        setattr(part, name, table.to(device))


def summed(bucket: Any) -> torch.futures.Future[Tensor]:
    """A hook of DDP that adds up gradients, where its own takes the mean over ranks."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    future: torch.futures.Future[list[Tensor]] = work.get_future()
    return future.then(lambda done: done.value()[0])


@contextlib.contextmanager
def gradients_sent(module: Any, last: bool) -> Iterator[None]:
    """Around forward and backward of a micro-batch: gradients go to the other ranks after the `last` only."""
    if hasattr(module, "set_requires_gradient_sync"):
        module.set_requires_gradient_sync(last)
        yield
    elif hasattr(module, "no_sync") and not last:
        with module.no_sync():
            yield
    else:
        yield


class Together:
    """A model that is cut over ranks, read by all of them at once: all see the logits of rank 0.

    So they go on with the same tokens, whatever the last bits of their own logits are.
    """

    def __init__(self, model: Any, ranks: Ranks) -> None:
        self.model, self.ranks = model, ranks
        self.config, self.device = model.config, model.device
        self.new_cache, self.new_slots = model.new_cache, model.new_slots

    def __call__(self, ids_BT: Tensor, cache: Any = None) -> Tensor:
        # FSDP2 keeps its buffers from one pass to the next, and training cannot use those of inference mode.
        with torch.inference_mode(False), torch.no_grad():
            logits_BTV: Tensor = self.model(ids_BT.clone(), cache)
            self.model.reshard()  # which only a backward pass would do for what is in no layer
            if cache is not None:
                dist.broadcast(logits_BTV, 0)
        return logits_BTV


def is_cut(tensor: Tensor) -> bool:
    """Whether a rank holds only some rows of a tensor."""
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """The rows of a tensor that this rank holds (a view): all of them where it is not cut."""
    cut: Any = tensor
    held: Tensor = cut.to_local() if is_cut(tensor) else tensor
    return held


def whole(tensor: Tensor) -> Tensor:
    """All rows of a tensor, from all ranks; every rank has to ask."""
    cut: Any = tensor
    found: Tensor = cut.full_tensor() if is_cut(tensor) else tensor
    return found


def put(tensor: Tensor, rows: Tensor, ranks: Ranks) -> None:
    """Copy a whole tensor in: of one that is cut, the rows that this rank holds."""
    if not is_cut(tensor):
        tensor.copy_(rows)
        return
    begin, end = row_shards(len(rows), ranks.size)[ranks.rank]
    local(tensor).copy_(rows[begin:end])


@contextlib.contextmanager
def one_by_one(tensors: Sequence[Tensor], ranks: Ranks) -> Iterator[Callable[[Tensor], Tensor]]:
    """Give `whole`, for a rank that uses each of `tensors` in turn while the others `make_whole` all.

    Where it fails between two tensors, the rest is made all the same, so that nobody waits for this rank;
    then the others can be told. Where another rank is gone, nothing more can be made.
    """
    left = list(reversed(tensors))

    def next_whole(tensor: Tensor) -> Tensor:
        if not left or tensor is not left.pop():
            raise AssertionError("tensors are made whole in the order that all ranks know")
        try:
            return _whole_in_turn(tensor, ranks)
        except BaseException:
            left.clear()
            raise

    try:
        yield next_whole
    finally:
        make_whole(reversed(left), ranks)


def make_whole(tensors: Iterable[Tensor], ranks: Ranks) -> None:
    """Take part in making tensors whole for another rank, one at a time; nothing is kept."""
    for tensor in tensors:
        _whole_in_turn(tensor, ranks)


def _whole_in_turn(tensor: Tensor, ranks: Ranks) -> Tensor:
    if is_cut(tensor):
        ranks.exchange(None)  # a disk may take longer than ranks wait for each other in a step
    return whole(tensor.detach())


def row_shards(rows: int, size: int) -> list[tuple[int, int]]:
    """Which rows [begin, end) each of `size` ranks holds."""
    each = -(-rows // size)
    return [(min(rank * each, rows), min((rank + 1) * each, rows)) for rank in range(size)]


def owners(shapes: Mapping[str, torch.Size], size: int) -> dict[str, int]:
    """A rank for every matrix, so that the ranks have about equal work: the costliest first, to the idlest.

    The work of a Newton-Schulz step on M x K, M <= K, grows as M^2 K.
    """
    busy = [0] * size
    found = {}
    for name in sorted(shapes, key=lambda name: (-_work(shapes[name]), name)):
        rank = busy.index(min(busy))
        found[name] = rank
        busy[rank] += _work(shapes[name])
    return found


def _work(shape: torch.Size) -> int:
    short, long = sorted(shape)
    return short * short * long


def with_whole_matrices(
    shards: Sequence[Tensor],
    rows: Sequence[int],
    owner: Sequence[int],
    ranks: Ranks,
    work: Callable[[list[Tensor]], Sequence[Tensor]],
    exchange: Callable[..., object] | None = None,
) -> list[Tensor]:
    """Work on whole matrices of which each rank holds row shards; returns this rank's rows of the results.

    Matrix i has rows[i] rows, of which `shards[i]` [rows held, K] are this rank's, and is put together on
    rank owner[i] only. `work` gets the matrices that this rank owns, in order, and gives as many of the
    same shapes. Two exchanges (`exchange` instead of torch's): shards to the owners, results back.
    """
    exchange = exchange or dist.all_to_all_single
    columns = [shard.shape[1] for shard in shards]
    cuts = [row_shards(count, ranks.size) for count in rows]
    order = [[i for i in range(len(shards)) if owner[i] == rank] for rank in range(ranks.size)]
    mine = order[ranks.rank]

    def held(i: int, rank: int) -> int:
        return (cuts[i][rank][1] - cuts[i][rank][0]) * columns[i]

    sent = [sum(held(i, ranks.rank) for i in order[rank]) for rank in range(ranks.size)]
    taken = [sum(held(i, rank) for i in mine) for rank in range(ranks.size)]
    outgoing = torch.cat([shards[i].reshape(-1) for group in order for i in group])
    incoming = outgoing.new_empty(sum(taken))
    exchange(incoming, outgoing, taken, sent)
    pieces = iter(torch.split(incoming, [held(i, rank) for rank in range(ranks.size) for i in mine]))
    parts: dict[int, list[Tensor]] = {i: [] for i in mine}
    for _ in range(ranks.size):
        for i in mine:
            parts[i].append(next(pieces).view(-1, columns[i]))
    results = dict(zip(mine, work([torch.cat(parts[i]) for i in mine]) if mine else [], strict=True))
    answer = [results[i][slice(*cuts[i][rank])].reshape(-1) for rank in range(ranks.size) for i in mine]
    back = torch.cat(answer) if answer else incoming
    exchange(outgoing, back, sent, taken)
    found: list[Any] = [None] * len(shards)
    sizes = [held(i, ranks.rank) for group in order for i in group]
    for i, piece in zip([i for group in order for i in group], torch.split(outgoing, sizes), strict=True):
        found[i] = piece.view(-1, columns[i])
    return found
