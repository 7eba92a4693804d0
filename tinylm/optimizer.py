"""Muon for the layers' matrices, RMSprop by rows for n-grams, AdamW for the rest; rates by step.

Muon (Jordan et al., 2024): momentum, then the nearest orthogonal matrix by five Newton-Schulz steps, in
float32, over all matrices of one shape at once. AdamW: Loshchilov and Hutter, 2019. RMSprop (Tieleman and
Hinton, 2012) with one mean square for a row of the table, which moves only in steps that read the row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from tinylm.config import TrainConfig
from tinylm.distributed.ranks import ALONE, Ranks
from tinylm.distributed.sharding import is_cut, local, owners, put, with_whole_matrices
from tinylm.errors import CheckpointError, ShapeError
from tinylm.shapes import check_shape, state_problems

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration: singular values go to about 1 in five steps."""

SHARE_OF_NEWEST = 0.05
"""Of the newest gradient in the mean square of a row of n-grams."""


class Optimizer:
    """One optimizer step over a model's parameters; its state is tensors under the parameters' names."""

    def __init__(self, model: nn.Module, config: TrainConfig, ranks: Ranks = ALONE) -> None:
        self.config, self.ranks = config, ranks
        self.steps_done = 0
        self.matrices: dict[str, nn.Parameter] = {}
        self.others: dict[str, nn.Parameter] = {}
        self.tables: dict[str, nn.Parameter] = {}
        for name, parameter in model.named_parameters():
            if name.endswith("ngrams.weight"):
                self.tables[name] = parameter
                continue
            in_layers = config.muon and parameter.ndim == 2 and ".layers." in name
            (self.matrices if in_layers else self.others)[name] = parameter
        self.momenta = {name: torch.zeros_like(p) for name, p in self.matrices.items()}
        self.first = {name: torch.zeros_like(p) for name, p in self.others.items()}
        self.second = {name: torch.zeros_like(p) for name, p in self.others.items()}
        self.squares = {name: p.new_zeros(len(p)) for name, p in self.tables.items()}
        groups: dict[tuple[int, int], list[str]] = defaultdict(list)
        for name, parameter in self.matrices.items():
            short, long = sorted(parameter.shape)
            groups[short, long].append(name)
        self.groups = list(groups.values())
        self.cut = any(is_cut(parameter) for parameter in self.matrices.values())
        self.owner = owners({name: p.shape for name, p in self.matrices.items()}, ranks.size)

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Update every parameter by its gradient; `scale` in 0..1 multiplies the peak rates."""
        self.steps_done += 1
        for names in self.groups:
            self._muon(names, self.config.muon_rate * scale)
        self._adamw(self.config.adam_rate * scale)
        self._rmsprop(self.config.ngram_rate * scale)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters():
            parameter.grad = None

    def parameters(self) -> Iterable[nn.Parameter]:
        """All parameters, matrices first."""
        yield from self.matrices.values()
        yield from self.others.values()
        yield from self.tables.values()

    def state(self) -> dict[str, Tensor]:
        """The state as tensors by name, `steps_done` among them."""
        tensors = {f"muon.{name}": tensor for name, tensor in self.momenta.items()}
        tensors |= {f"adam.first.{name}": tensor for name, tensor in self.first.items()}
        tensors |= {f"adam.second.{name}": tensor for name, tensor in self.second.items()}
        tensors |= {f"rms.{name}": tensor for name, tensor in self.squares.items()}
        tensors["steps_done"] = torch.tensor(self.steps_done, dtype=torch.int64)
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor], where: str) -> None:
        """Copy a saved state in, strictly by name, shape and dtype; nothing falls back to a default."""
        wanted = self.state()
        problems = state_problems(tensors, wanted)
        if problems:
            raise CheckpointError(f"{where}: {'; '.join(problems)}")
        for name, tensor in wanted.items():
            put(tensor, tensors[name], self.ranks)
        self.steps_done = int(tensors["steps_done"])

    def _muon(self, names: list[str], rate: float) -> None:
        momentum, decay = self.config.muon_momentum, self.config.weight_decay
        updates = []
        for name in names:
            gradient = gradient_of(name, self.matrices[name])
            buffer = local(self.momenta[name]).lerp_(gradient, 1 - momentum)
            updates.append(gradient.lerp(buffer, momentum))
        if self.cut:  # each matrix whole on one rank for a moment, and its rows back to where they belong
            counts, owner = [len(self.matrices[name]) for name in names], [self.owner[name] for name in names]
            updates = with_whole_matrices(updates, counts, owner, self.ranks, orthogonal)
        else:
            updates = orthogonal(updates)
        for name, update in zip(names, updates, strict=True):
            rows, columns = self.matrices[name].shape
            matrix = local(self.matrices[name])
            if decay:
                matrix.mul_(1 - rate * decay)
            matrix.add_(update, alpha=-rate * max(1.0, rows / columns) ** 0.5)

    def _adamw(self, rate: float) -> None:
        beta1, beta2 = self.config.adam_beta1, self.config.adam_beta2
        correction1, correction2 = 1 - beta1**self.steps_done, 1 - beta2**self.steps_done
        for name, parameter in self.others.items():
            gradient = gradient_of(name, parameter)
            first = local(self.first[name]).lerp_(gradient, 1 - beta1)
            second = local(self.second[name]).mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            scale = (second / correction2).sqrt_().add_(1e-10)
            local(parameter).addcdiv_(first, scale, value=-rate / correction1)

    def _rmsprop(self, rate: float) -> None:
        """Rows that the step did not read stay as they are, and so does their mean square.

        It starts at zero and is not corrected for that: the first steps of a row are longer.
        """
        for name, parameter in self.tables.items():
            if parameter.grad is None:
                raise RuntimeError(f"{name} has no gradient")
            gradient = parameter.grad.coalesce()
            rows_R, gradient_RD = gradient.indices()[0], gradient.values()
            squares_R = self.squares[name][rows_R].lerp_(gradient_RD.square().mean(dim=1), SHARE_OF_NEWEST)
            self.squares[name][rows_R] = squares_R
            step_RD = gradient_RD / squares_R.sqrt_().add_(1e-10)[:, None]
            parameter.index_add_(0, rows_R, step_RD, alpha=-rate)


def clip_gradients(parameters: Iterable[nn.Parameter], most: float) -> Tensor:
    """Scale all gradients so that their common norm is at most `most`; gives the norm they had."""
    held: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            # A row that was read twice has one gradient. Norms are not defined for sparse tensors, but these
            # values are the gradient's own memory.
            parameter.grad = parameter.grad.coalesce()
            values = parameter.grad.values()
            held.append(torch.empty_like(values))
            held[-1].grad = values
        else:
            held.append(parameter)
    return nn.utils.clip_grad_norm_(held, most)


def gradient_of(name: str, parameter: nn.Parameter) -> Tensor:
    """The gradient of a parameter: of one that is cut over ranks, the rows that are here."""
    if parameter.grad is None:
        raise RuntimeError(f"{name} has no gradient")
    return local(parameter.grad)


def orthogonal(updates: list[Tensor]) -> list[Tensor]:
    """`orthogonalize` for matrices [M, K] and [K, M], all at once."""
    turned = [update.T if update.shape[0] > update.shape[1] else update for update in updates]
    found = orthogonalize(torch.stack(turned))
    return [each.T if old.shape[0] > old.shape[1] else each for old, each in zip(updates, found, strict=True)]


def orthogonalize(matrices_NMK: Tensor) -> Tensor:
    """The nearest orthogonal matrices [N, M, K], roughly: singular values end between 0.7 and 1.2.

    M is at most K: other matrices are turned first, as `orthogonal` does. Raises ShapeError.
    """
    _, M, K = check_shape(matrices_NMK, "N M K", name="matrices_NMK", kind="float").values()
    if M > K:
        raise ShapeError(
            f"matrices_NMK: axis 1 (M) is {M}, expected at most the {K} of axis 2; turn them first"
        )
    a, b, c = NEWTON_SCHULZ
    norms: Tensor = matrices_NMK.norm(dim=(1, 2), keepdim=True)
    x = matrices_NMK / (norms + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def rate_scale(step: int, steps: int, warmup: float, decay: float) -> float:
    """The learning rate of a step (counted from 0) as a share of its peak.

    It rises linearly over the first `warmup` share of the steps, stays, and falls linearly to zero
    (which the step after the last would have) over the last `decay` share.
    """
    rising = (step + 1) / max(1.0, warmup * steps)
    falling = (steps - step) / max(1.0, decay * steps)
    return max(0.0, min(1.0, rising, falling))
