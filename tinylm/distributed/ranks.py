"""Ranks that agree: what one does alone and all learn, what all do and each may spoil, who asked to stop.

Nothing here is a pickle: ranks tell each other JSON and numbers, over gloo on the CPU. Numbers that belong
to a step are waited for as long as gradients are; what rank 0 does alone (a corpus may take hours to build)
in a group of its own with more patience. A rank that ends closes its connections, so the others notice at
once. Sums are taken in the order of the ranks: the same ranks, the same bits.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tinylm.distributed.launch import Launch, launched
from tinylm.errors import RankError, TinylmError, TrainingError

T = TypeVar("T")

LONGEST_WORK = timedelta(hours=12)
"""How long the others wait for what rank 0 does alone, as long as it lives."""


@dataclass(frozen=True)
class Ranks:
    """Which of `size` processes this is. `control`: the group that waits for rank 0; None for one alone."""

    rank: int = 0
    size: int = 1
    restarted: bool = False
    """Whether torchrun started all of them again after a failure."""
    control: Any = None

    @property
    def alone(self) -> bool:
        """Whether there is nobody to agree with; then every call here is its plain work."""
        return self.size == 1

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which alone prints and writes."""
        return self.rank == 0

    def share(self, rows: int) -> slice:
        """The rows of a batch of `rows` that this rank takes."""
        each = rows // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def exchange(self, value: Any) -> list[Any]:
        """What every rank says (JSON), in the order of the ranks."""
        if self.alone:
            return [value]
        said = torch.frombuffer(bytearray(json.dumps(value).encode("ascii")), dtype=torch.uint8)
        sizes = [int(size) for size in self._gather(torch.tensor(len(said)), self.control)]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(said)] = said
        heard = zip(self._gather(padded, self.control), sizes, strict=True)
        return [json.loads(bytes(text[:size].tolist())) for text, size in heard]

    def total(self, number: float) -> float:
        """The sum of a number over the ranks, in float64 and in their order."""
        if self.alone:
            return number
        return float(torch.stack(self._gather(torch.tensor(number, dtype=torch.float64))).sum())

    def most(self, number: int) -> int:
        """The largest of the ranks' numbers."""
        return number if self.alone else max(int(one) for one in self._gather(torch.tensor(number)))

    def add_up(self, values: Tensor) -> None:
        """Replace a CPU tensor by its sum over the ranks, in their order."""
        if not self.alone:
            values.copy_(torch.stack(self._gather(values)).sum(0))

    def first(self, work: Callable[[], T]) -> T:
        """Rank 0 does the work, the others wait and get its result (JSON).

        If it fails, rank 0 raises its error and the others RankError.
        """
        if self.alone:
            return work()
        if not self.leads:
            outcome = self.exchange(None)[0]
            if "error" in outcome:
                raise RankError(f"rank 0: {outcome['error']}")
            result: T = outcome["value"]
            return result
        try:
            value = work()
        except BaseException as error:
            with contextlib.suppress(RuntimeError):  # another rank may be gone, too
                self.exchange({"error": str(error)})
            raise
        self.exchange({"value": value})
        return value

    def each(self, work: Callable[[], T]) -> T:
        """Every rank does the work; where one fails, all do.

        Rank 0 is the one who tells: it raises its own error, or TrainingError with that of another rank.
        """
        if self.alone:
            return work()
        failed: BaseException | None = None
        try:
            value = work()
        except Exception as error:
            failed = error
        said = self.exchange(None if failed is None else f"{type(failed).__name__}: {failed}")
        if isinstance(failed, TinylmError | OSError):
            said[self.rank] = str(failed)
        elif failed is not None:
            raise failed  # a bug: its own traceback tells more than a line of rank 0
        problems = [(rank, text) for rank, text in enumerate(said) if text is not None]
        if not problems:
            return value
        rank, text = problems[0]
        if not self.leads:
            raise RankError(f"rank {rank}: {text}") from failed
        if failed is not None:
            raise failed
        raise TrainingError(f"rank {rank}: {text}")

    def commit(self, write: Callable[[Callable[[], None]], T]) -> T:
        """Rank 0 runs write(agree), and agree() returns once every rank is known to have come so far.

        `write` calls it when everything is written but for the rename; where another rank is gone, or the
        writing failed, nothing is renamed.
        """
        if self.alone:
            return write(lambda: None)
        if not self.leads:
            if (problem := self.exchange(None)[0]) is not None:
                raise RankError(f"rank 0: {problem}")
            return self.first(lambda: write(lambda: None))  # of which only the waiting is done here
        asked = False

        def agree() -> None:
            nonlocal asked
            asked = True
            self.exchange(None)

        try:
            value = write(agree)
        except BaseException as error:
            with contextlib.suppress(RuntimeError):
                self.exchange({"error": str(error)} if asked else str(error))
            raise
        return self.first(lambda: value)

    def _gather(self, value: Tensor, group: Any = None) -> list[Tensor]:
        heard = [torch.empty_like(value) for _ in range(self.size)]
        dist.all_gather(heard, value.contiguous(), group=group)
        return heard


ALONE = Ranks()


def join(patience: float) -> Ranks:
    """Meet the other ranks that torchrun started; a process alone meets nobody.

    `patience`: seconds that a rank waits for the others, here and in a step, before it gives up. A process
    group that exists already (a script's own) is used as it is. NCCL between GPUs, of which a rank takes the
    one of its local number; gloo between CPUs.
    """
    launch = launched()
    if launch.alone:
        return ALONE
    wait = timedelta(seconds=patience)
    try:
        if not dist.is_initialized():
            meet(launch, wait)
        # Made with little patience, for a rank may die just now; what it is used for may take hours.
        control = dist.new_group(backend="gloo", timeout=wait)
    except (RuntimeError, ValueError) as error:
        raise TrainingError(
            f"rank {launch.rank} of {launch.size} cannot meet the others: {first_line(error)}"
        ) from error
    dist.distributed_c10d._set_pg_timeout(max(LONGEST_WORK, wait), control)
    return Ranks(dist.get_rank(), dist.get_world_size(), launch.restarts > 0, control)


def meet(launch: Launch, wait: timedelta) -> None:
    """Make the group of all ranks; rank 0 keeps the store where they find each other."""
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(launch.local_rank % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    # Without a timeout of its own this would wait half an hour for a rank 0 that has died.
    store, rank, size = next(dist.rendezvous("env://", timeout=wait))  # type: ignore[attr-defined]
    # torchrun keeps its store when it starts all ranks again, old addresses and all.
    store = dist.PrefixStore(f"start {launch.restarts}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)


def leave() -> None:
    """Close the connections to the other ranks, if there are any."""
    if dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def company(ranks: Ranks, way_out: Callable[[], str]) -> Iterator[None]:
    """Turn the error of a collective whose partner is gone into TrainingError, with the `way_out`."""
    try:
        yield
    except RuntimeError as error:
        if ranks.alone or not is_loss_of_a_rank(error):
            raise
        said = f"rank {ranks.rank} lost another rank ({first_line(error)})"
        raise TrainingError(f"{said}; {way_out()}") from error


def is_loss_of_a_rank(error: RuntimeError) -> bool:
    """Whether an error comes from a collective: a rank that has ended, hangs, or cannot be reached."""
    words = ("gloo", "nccl", "process group", "processgroup", "connection closed", "socket")
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in words)


def first_line(error: BaseException) -> str:
    """What an error of torch says, without the place in its source and the stack that follow."""
    line = (str(error).splitlines() or [type(error).__name__])[0].rpartition("] ")[2]
    return line.partition(". ")[0][:200]
