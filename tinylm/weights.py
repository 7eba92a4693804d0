"""Where the weights of a run come from: drawn from its seed, those of another model, or its newest step.

A process that holds the whole model gets it whole. Where weights are cut over ranks, no rank has the memory
for that: the model has shapes only, and `fill`, called once each rank has memory for its rows, makes or
reads one whole tensor at a time and keeps the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch import Tensor

from tinylm import checkpoint
from tinylm.config import ModelConfig, TrainConfig
from tinylm.distributed.sharding import put
from tinylm.errors import CheckpointError, ConfigError
from tinylm.model import Transformer
from tinylm.resumption import Recalled
from tinylm.tensor_files import Put
from tinylm.training_step import Run

Fill = Callable[[Run], None]
"""What is left to do once a run is prepared."""


def first_weights(config: TrainConfig, shard: bool) -> tuple[Transformer, Fill]:
    """Random weights from the seed, or those of `init`, whose shape must be the configuration's."""
    if config.init is None:
        shape = config.resolved_model()
        if shard:
            return Transformer(shape, None), lambda run: run.model.initialize(config.seed, rows_of(run))
        return Transformer(shape, config.seed), nothing
    if shard:
        found = checkpoint.find(config.init)
        shape = checkpoint.model_config(found)
        model = Transformer(same_shape(shape, config), None)
        return model, lambda run: checkpoint.fill_model(found, shape, weights(run), rows_of(run))
    loaded = checkpoint.load_model(config.init)
    model = Transformer(same_shape(loaded.config, config), config.seed).to(next(loaded.parameters()).dtype)
    model.load_state(dict(loaded.named_parameters()), config.init)
    return model, nothing


def saved_weights(recalled: Recalled) -> tuple[Transformer, Fill]:
    """The model of a run's newest step; filled, the optimizer is as it was at that step, too."""
    if recalled.machine.shard:
        found = recalled.found
        shape = checkpoint.model_config(found)
        model = Transformer(shape, None)
    else:
        found, model, training = checkpoint.load_step(recalled.found.folder)

    def fill(run: Run) -> None:
        optimizer = run.optimizer
        if run.machine.shard:
            checkpoint.fill_model(found, shape, weights(run), rows_of(run))
            state = optimizer.state()
            checkpoint.fill_training(found, state, rows_of(run))
            optimizer.steps_done = int(state["steps_done"])
        else:
            optimizer.load_state(training, str(found.folder))
            training.clear()
        if optimizer.steps_done != recalled.step:
            raise CheckpointError(
                f"{found.folder}: its optimizer has done {optimizer.steps_done} steps, expected "
                f"{recalled.step}; use an earlier step"
            )

    return model, fill


def same_shape(found: ModelConfig, config: TrainConfig) -> ModelConfig:
    """The shape that a run from the weights of `init` has; ConfigError where those have another."""
    wanted = config.model if config.model is not None else found
    free = ("window", "policy")
    has, expected = dataclasses.asdict(found), dataclasses.asdict(wanted)
    differ = [
        f"{key} is {has[key]}, expected {expected[key]}"
        for key in has
        if key not in free and has[key] != expected[key]
    ]
    if differ:
        raise ConfigError(
            f"init {config.init}: has another shape ({'; '.join(differ)}); leave those flags out"
        )
    return wanted


def nothing(run: Run) -> None:
    """What is left to do where the weights are whole already."""


def weights(run: Run) -> dict[str, Tensor]:
    """The parameters by name, without a graph: places to copy into."""
    return {name: parameter.detach() for name, parameter in run.model.named_parameters()}


def rows_of(run: Run) -> Put:
    """Copies of a whole tensor the rows that this rank holds."""
    return lambda place, whole: put(place, whole, run.ranks)
