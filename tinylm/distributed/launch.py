"""What torchrun tells a process in its environment: read here and nowhere else. Loads no torch."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from tinylm.errors import ConfigError, RankError, TrainingError


@dataclass(frozen=True)
class Launch:
    """Which of how many processes this is, which of those on its host, and how often all were restarted."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    restarts: int = 0

    @property
    def alone(self) -> bool:
        """Whether there is nobody to agree with."""
        return self.size == 1


def launched() -> Launch:
    """What torchrun, or another launcher with RANK and WORLD_SIZE, says; without one, a process alone."""
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or size is None:
        return Launch()
    local, restarts = os.environ.get("LOCAL_RANK", "0"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        found = Launch(int(rank), int(size), int(local), int(restarts))
    except ValueError:
        found = Launch(-1)
    if not 0 <= found.rank < found.size or found.local_rank < 0:
        raise ConfigError(
            f"RANK is {rank!r}, WORLD_SIZE {size!r}, LOCAL_RANK {local!r} in the environment, expected "
            "what torchrun sets; unset them, or start with: torchrun --nproc-per-node N -m tinylm train"
        )
    return found


def going_on(folder: str) -> str:
    """The command that goes on with a run as it is: with as many processes as it has now."""
    try:
        size = launched().size
    except ConfigError:
        size = 1
    start = "tinylm" if size == 1 else f"torchrun --nproc-per-node {size} -m tinylm"
    return f"{start} train --resume {folder}"


def met() -> bool:
    """Whether this process has met the other ranks yet."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and bool(distributed.is_initialized())


def speaks(error: Exception | None) -> bool:
    """Whether this rank has to tell an error: rank 0 always, another one what rank 0 cannot know.

    Before they have met all ranks find the same (but for one that cannot meet, a TrainingError).
    """
    try:
        if launched().rank == 0:
            return True
    except ConfigError:
        return True  # told by every process: none knows which one it is
    return not isinstance(error, RankError | ConfigError) and (met() or isinstance(error, TrainingError))
