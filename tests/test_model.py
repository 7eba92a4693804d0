"""The Transformer: against a plain re-implementation, its cache, its counts."""

import dataclasses
import math
import unittest

import torch
import torch.nn.functional as F

from tinylm.config import PRESETS, ModelConfig
from tinylm.errors import ContractError, ShapeError
from tinylm.model import Transformer, flops_per_token, parameter_count

TINY = ModelConfig(layers=2, width=32, mlp_width=64, heads=4, kv_heads=2, head_size=16, window=24)


def awake(config: ModelConfig, seed: int = 0) -> Transformer:
    """A float64 model with no zero matrices, so that every part of it matters."""
    model = Transformer(config, seed).double()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.2)
    return model


def by_hand(model: Transformer, ids: list[int]) -> torch.Tensor:
    """Logits [T, V] of one row, written out position by position and head by head from the formulas."""
    config, weights = model.config, {name: p.detach() for name, p in model.named_parameters()}

    def norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return x / math.sqrt(float((x * x).mean()) + config.norm_eps) * gain

    def turn(x: torch.Tensor, position: int) -> torch.Tensor:
        half, out = config.head_size // 2, x.clone()
        for i in range(half):
            angle = position * config.rope_theta ** (-2 * i / config.head_size)
            a, b = float(x[i]), float(x[i + half])
            out[i] = a * math.cos(angle) - b * math.sin(angle)
            out[i + half] = b * math.cos(angle) + a * math.sin(angle)
        return out

    rows = [weights["model.embed_tokens.weight"][token].clone() for token in ids]
    size, share = config.head_size, config.heads // config.kv_heads
    for index in range(config.layers):
        w = {
            k.removeprefix(f"model.layers.{index}."): v for k, v in weights.items() if f"layers.{index}." in k
        }
        normed = [norm(x, w["input_layernorm.weight"]) for x in rows]
        mixed = [torch.zeros(config.heads * size, dtype=torch.float64) for _ in rows]
        for head in range(config.heads):
            mine, shared = slice(head * size, (head + 1) * size), head // share
            theirs = slice(shared * size, (shared + 1) * size)
            q = [
                turn(norm(w["self_attn.q_proj.weight"][mine] @ x, w["self_attn.q_norm.weight"]), t)
                for t, x in enumerate(normed)
            ]
            k = [
                turn(norm(w["self_attn.k_proj.weight"][theirs] @ x, w["self_attn.k_norm.weight"]), t)
                for t, x in enumerate(normed)
            ]
            v = [w["self_attn.v_proj.weight"][theirs] @ x for x in normed]
            for t in range(len(rows)):
                scores = torch.stack([q[t] @ k[s] / math.sqrt(size) for s in range(t + 1)])
                shares = torch.exp(scores - scores.max()) / torch.exp(scores - scores.max()).sum()
                mixed[t][mine] = sum(shares[s] * v[s] for s in range(t + 1))
        rows = [x + w["self_attn.o_proj.weight"] @ m for x, m in zip(rows, mixed, strict=True)]
        for t, x in enumerate(rows):
            n = norm(x, w["post_attention_layernorm.weight"])
            gate = w["mlp.gate_proj.weight"] @ n
            rows[t] = x + w["mlp.down_proj.weight"] @ (
                gate / (1 + torch.exp(-gate)) * (w["mlp.up_proj.weight"] @ n)
            )
    head = weights["model.embed_tokens.weight"] if config.tied else weights["lm_head.weight"]
    return torch.stack([head @ norm(x, weights["model.norm.weight"]) for x in rows])


class TestForward(unittest.TestCase):
    def test_logits_are_those_of_the_formulas(self):
        ids = [256, 72, 101, 255, 0, 256, 13]
        for tied in (False, True):
            model = awake(dataclasses.replace(TINY, tied=tied))
            found = model(torch.tensor([ids]))[0]
            # The tables of RoPE are float32, as everywhere.
            self.assertLess(float((found.detach() - by_hand(model, ids)).abs().max()), 2e-6)

    def test_no_position_reads_its_future(self):
        model = awake(TINY)
        ids = torch.randint(0, 257, (1, 24), generator=torch.Generator().manual_seed(3))
        before = model(ids)
        for changed in (1, 11, 23):
            other = ids.clone()
            other[0, changed] = (int(other[0, changed]) + 1) % 257
            after = model(other)
            torch.testing.assert_close(after[:, :changed], before[:, :changed], rtol=0, atol=0)
            self.assertGreater(float((after[:, changed] - before[:, changed]).abs().max()), 1e-6)

    def test_the_first_loss_is_that_of_a_uniform_guess(self):
        ids = torch.randint(0, 257, (4, 65), generator=torch.Generator().manual_seed(0))
        for name in ("nano", "micro", "mini"):
            for tied in (False, True):
                model = Transformer(dataclasses.replace(PRESETS[name], tied=tied))
                loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
                self.assertAlmostEqual(float(loss), math.log(257), delta=0.05, msg=f"{name} tied={tied}")

    def test_weights_depend_on_the_seed_alone(self):
        torch.manual_seed(1)
        one = Transformer(TINY, seed=5)
        state = torch.random.get_rng_state()
        torch.manual_seed(2)
        two = Transformer(TINY, seed=5)
        other = Transformer(TINY, seed=6)
        self.assertTrue(
            all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
        )
        self.assertFalse(
            all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
        )
        torch.manual_seed(1)
        self.assertTrue(
            torch.equal(state, torch.random.get_rng_state()), "building drew from the global generator"
        )


class TestCache(unittest.TestCase):
    def test_cached_equals_uncached_however_the_tokens_are_fed(self):
        ids = torch.randint(0, 257, (2, 24), generator=torch.Generator().manual_seed(1))
        for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
            model = awake(TINY).to(dtype)
            whole = model(ids)
            for pieces in ([1] * 24, [24], [5, 1, 1, 10, 7], [23, 1]):
                cache, found, at = model.new_cache(2), [], 0
                for size in pieces:
                    found.append(model(ids[:, at : at + size], cache))
                    at += size
                self.assertEqual(cache.position, 24)
                self.assertLess(float((torch.cat(found, 1) - whole).abs().max()), tolerance, pieces)

    def test_a_cache_can_be_used_again_after_reset(self):
        model, ids = awake(TINY), torch.arange(10)[None]
        cache = model.new_cache()
        model(torch.full((1, 24), 200), cache)
        cache.reset()
        self.assertLess(float((model(ids, cache) - model(ids)).abs().max()), 1e-10)


class TestSlots(unittest.TestCase):
    def test_rows_at_positions_of_their_own_equal_the_uncached_model(self):
        ids = torch.randint(0, 257, (3, 24), generator=torch.Generator().manual_seed(1))
        model = awake(TINY)
        whole = model(ids)
        slots = model.new_slots(4)
        reads = ([(1, [0], 5)], [(2, [0], 9)], [(3, [0], 1)], [(1, [5, 9, 1], 2), (1, [7, 11, 3], 13)])
        for first, positions, size in (read for one in reads for read in one):
            rows = range(first - 1, first - 1 + len(positions))
            pieces = [ids[row, start : start + size] for row, start in zip(rows, positions, strict=True)]
            found = model(torch.stack(pieces), slots.at(first, positions))
            for row, start, logits in zip(rows, positions, found, strict=True):
                self.assertLess(float((logits - whole[row, start : start + size]).abs().max()), 1e-10)
        self.assertEqual(float(slots.keys_LBHSK[:, 0].abs().max()), 0.0)
        # An idle row between others changes nothing before the last place of its window.
        before = slots.keys_LBHSK[:, 2, :, :23].clone()
        found = model(ids[:, 20:21], slots.at(1, [20, None, 14]))
        self.assertTrue(torch.equal(slots.keys_LBHSK[:, 2, :, :23], before))
        self.assertLess(float((found[0, 0] - whole[0, 20]).abs().max()), 1e-10)

    def test_what_is_copied_is_read_on_from_and_what_is_cleared_is_gone(self):
        model, ids = awake(TINY), torch.arange(20)[None]
        slots = model.new_slots(2)
        model(ids[:, :16], slots.at(1, [0]))
        slots.copy(1, 0, 12)
        found = model(ids[:, 12:], slots.at(0, [12]))
        self.assertLess(float((found - model(ids)[:, 12:]).abs().max()), 1e-10)
        slots.clear(1)
        self.assertEqual(float(slots.values_LBHSK[:, 1].abs().max()), 0.0)

    def test_other_rows_and_what_does_not_fit_are_refused(self):
        model = Transformer(TINY)
        slots = model.new_slots(4)
        with self.assertRaises(ShapeError):
            model(torch.zeros(1, 3, dtype=torch.int64), slots.at(0, [0, 0]))
        with self.assertRaisesRegex(ShapeError, "20 \\+ 5"):
            model(torch.zeros(2, 5, dtype=torch.int64), slots.at(0, [3, 20]))


class TestBorders(unittest.TestCase):
    def test_wrong_ids_are_refused(self):
        model = Transformer(TINY)
        cases = (
            (torch.zeros(3, dtype=torch.int64), ShapeError, "2 axes"),
            (torch.zeros(1, 3), ShapeError, "integer"),
            (torch.zeros(1, 25, dtype=torch.int64), ShapeError, "window of 24"),
            (torch.tensor([[257]]), ContractError, "0..256"),
            (torch.tensor([[-1]]), ContractError, "0..256"),
        )
        for ids, kind, message in cases:
            with self.assertRaisesRegex(kind, message):
                model(ids)

    def test_a_cache_of_other_rows_or_without_room_is_refused(self):
        model = Transformer(TINY)
        cache = model.new_cache(2)
        with self.assertRaises(ShapeError):
            model(torch.zeros(1, 3, dtype=torch.int64), cache)
        model(torch.zeros(2, 20, dtype=torch.int64), cache)
        with self.assertRaisesRegex(ShapeError, "20 \\+ 5"):
            model(torch.zeros(2, 5, dtype=torch.int64), cache)

    def test_state_is_loaded_by_name_and_shape(self):
        model = Transformer(TINY)
        good = {name: p.detach().clone() for name, p in model.named_parameters()}
        for change, message in (
            (lambda t: t.pop("lm_head.weight"), "lm_head.weight is missing"),
            (lambda t: t.update(extra=torch.zeros(1)), "extra is not"),
            (lambda t: t.update({"model.norm.weight": torch.zeros(31)}), r"\[31\]"),
            (lambda t: t.update({"model.norm.weight": torch.zeros(32, dtype=torch.int64)}), "int64"),
        ):
            tensors = dict(good)
            change(tensors)
            with self.assertRaisesRegex(ShapeError, message):
                model.load_state(tensors, "here")


class TestCounts(unittest.TestCase):
    def test_parameters_by_formula_equal_a_count(self):
        grouped = dataclasses.replace(TINY, tied=True)
        for config in (TINY, grouped, *(PRESETS[name] for name in ("nano", "micro", "mini"))):
            counted = sum(parameter.numel() for parameter in Transformer(config).parameters())
            self.assertEqual(parameter_count(config), counted)

    def test_presets_have_the_sizes_that_they_promise(self):
        sizes = {"nano": 0.87e6, "micro": 3.2e6, "mini": 10.8e6, "small": 25.6e6, "base": 85.4e6}
        for name, size in sizes.items():
            self.assertAlmostEqual(parameter_count(PRESETS[name]) / size, 1, delta=0.02)

    def test_flops_by_formula_equal_torch_s_own_count(self):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode

        for config in (TINY, PRESETS["nano"]):
            with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                Transformer(config)(torch.zeros(1, config.window, dtype=torch.int64))
            attention = 4 * config.layers * config.heads * config.head_size
            # torch counts attention over all pairs; half of them are masked.
            counted = counter.get_total_flops() - attention * config.window * (
                config.window - (config.window + 1) / 2
            )
            self.assertAlmostEqual(
                flops_per_token(config, config.window) * config.window / counted, 1, delta=0.01
            )


if __name__ == "__main__":
    unittest.main()
