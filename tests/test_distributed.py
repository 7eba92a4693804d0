"""Ranks: the same run whatever their number, shares of memory, one that fails, and resumes by any number."""

from __future__ import annotations

import dataclasses
import itertools
import json
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import safetensors.torch
import torch

from tests.ranks_support import POSIX, Started, config, do
from tinylm import checkpoint, metrics
from tinylm.config import TrainConfig
from tinylm.corpus import build_corpus
from tinylm.distributed import sharding
from tinylm.distributed.launch import Launch, launched, speaks
from tinylm.distributed.ranks import ALONE, Ranks, join
from tinylm.errors import CheckpointError, ConfigError, RankError, TrainingError
from tinylm.optimizer import orthogonal

TEXTS = [f"document {n}: {n * n} times. é\n" * (1 + n % 3) for n in range(40)]

FEW = {"steps": 5, "evaluate_every": 5}

RUNS = {
    "cross": {"sample_tokens": 4},
    "mask": {"model": {"policy": "mask"}, "shard": True, **FEW},
    "reset": {"model": {"policy": "reset"}, "micro_rows": 2, "dropout": 0.1, "clip": 0.5, **FEW},
    "shard": {"shard": True, "micro_rows": 2, "dropout": 0.1, "clip": 0.5, "sample_tokens": 4},
    "adam": {"muon": False, "shard": True, "model": {"tied": True}, **FEW},
    "single": {"shard": True, "precision": "float32"},
}
"""Runs, of 20 steps or a few, that must not depend on the number of ranks; in float64 but for the last."""


def steps_of(name: str) -> int:
    return RUNS[name].get("steps", 20)


BY_RANKS = {2: ("cross", "mask", "reset", "shard", "adam", "single"), 3: ("cross", "shard")}


@POSIX
class AsOne(unittest.TestCase):
    """Two and three ranks against one process; each launch does all its jobs before anything is looked at."""

    @classmethod
    def setUpClass(cls) -> None:
        import torch.distributed.fsdp
        import torch.nn.parallel  # noqa: F401  # loaded once, before the ranks are forked

        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.place = place = Path(holder.name)
        build_corpus(TEXTS, place / "corpus")
        cls.said = {
            1: {
                name: [do({"do": "train", "config": config(place, f"{name}-1", **cls.alone(options))})]
                for name, options in RUNS.items()
            }
        }
        jobs = {
            ranks: [
                {"name": name, "do": "train", "config": config(place, f"{name}-{ranks}", **RUNS[name])}
                for name in names
            ]
            for ranks, names in BY_RANKS.items()
        }
        part = {"stop_after": 7, "sample_tokens": 0}
        for name in ("cross", "shard"):
            stopped = config(place, f"{name}-part", **{**RUNS[name], **part})
            jobs[2] += [
                {"name": f"{name}-part", "do": "train", "config": stopped},
                {"name": f"{name}-resumed", "do": "resume", "run": str(place / f"{name}-part")},
            ]
        stopped = {**RUNS["shard"], **part}
        jobs[2] += [{"name": "to-3", "do": "train", "config": config(place, "to-3", **stopped)}]
        jobs[2] += [{"name": "to-1", "do": "train", "config": config(place, "to-1", **stopped)}]
        from_weights = {"steps": 2, "init": str(place / "reset-1"), "model": {"policy": "cross"}}
        jobs[2] += [
            {"name": "init", "do": "train", "config": config(place, "init-2", shard=True, **from_weights)}
        ]
        cls.said[1]["init"] = [do({"do": "train", "config": config(place, "init-1", **from_weights)})]
        bad = {"batch_rows": 9, "steps": 2}
        jobs[2] += [
            {"name": "rows", "do": "train", "config": config(place, "rows", **bad)},
            {"name": "micro", "do": "train", "config": config(place, "micro", micro_rows=4)},
            {"name": "taken", "do": "train", "config": config(place, "cross-2")},
            {
                "name": "minutes",
                "do": "train",
                "config": config(place, "minutes", steps=None, minutes=0.003),
            },
        ]
        launches = {ranks: Started(place, ranks, jobs[ranks]) for ranks in (2,)}
        cls.said[2] = launches[2].results()
        cls.said[3] = Started(
            place, 3, [*jobs[3], {"name": "to-3", "do": "resume", "run": str(place / "to-3")}]
        ).results()
        cls.said[1]["to-1"] = [do({"do": "resume", "run": str(place / "to-1")})]

    @staticmethod
    def alone(options: dict) -> dict:
        """What one process is told: nothing of shards."""
        return {name: value for name, value in options.items() if name != "shard"}

    def tensors(self, run: str, step: int) -> dict[str, torch.Tensor]:
        folder = checkpoint.step_folder(self.place / run, step)
        checkpoint.verify_step(folder)
        return {
            f"{name} {key}": tensor
            for name in (checkpoint.MODEL, checkpoint.TRAINING)
            for key, tensor in safetensors.torch.load_file(folder / name).items()
        }

    def pairs(self):
        for ranks, names in BY_RANKS.items():
            for name in names:
                yield name, ranks, f"{name}-{ranks}"

    def test_at_the_end_weights_and_optimizer_are_those_of_one_process(self) -> None:
        for name, _, run in self.pairs():
            with self.subTest(run):
                one, many = (self.tensors(each, steps_of(name)) for each in (f"{name}-1", run))
                self.assertEqual(one.keys(), many.keys())
                # Sums over ranks are rounded in another order; Muon's iteration amplifies that in float32.
                tolerance = 1e-10 if name != "single" else 2e-4
                for key in one:
                    self.assertEqual(one[key].dtype, many[key].dtype)
                    torch.testing.assert_close(
                        many[key], one[key], rtol=0, atol=tolerance, msg=f"{run} {key}"
                    )

    def test_from_the_weights_of_another_run_too(self) -> None:
        one, many = self.tensors("init-1", 2), self.tensors("init-2", 2)
        self.assertEqual(one.keys(), many.keys())
        for key in one:
            torch.testing.assert_close(many[key], one[key], rtol=0, atol=1e-10, msg=key)

    def test_losses_and_held_out_text_too_and_nothing_else_is_logged(self) -> None:
        for name, _, run in self.pairs():
            rows = [metrics.read_metrics(self.place / place) for place in (f"{name}-1", run)]
            self.assertEqual(len(rows[0]), len(rows[1]))
            tolerance = 9 if name != "single" else 3
            for one, many in zip(*rows, strict=True):
                self.assertEqual(one.keys(), many.keys())
                for key in one:
                    if key == "validation":
                        got, wanted = many[key]["bits_per_byte"], one[key]["bits_per_byte"]
                        self.assertAlmostEqual(got, wanted, places=tolerance)
                        self.assertEqual(many[key]["bytes"], one[key]["bytes"])
                    else:
                        self.assertAlmostEqual(many[key], one[key], places=tolerance, msg=f"{run} {key}")

    def test_the_ranks_read_slices_of_the_batch_that_one_process_reads(self) -> None:
        for name, ranks, run in self.pairs():
            with self.subTest(run):
                rows = self.rows_by_step(self.said[1][name], 1, name)
                self.assertEqual(rows, self.rows_by_step(self.said[ranks][name], ranks, name))
                self.assertEqual(len(rows), steps_of(name))
                self.assertTrue(all(len(step) == 12 for step in rows))

    def rows_by_step(self, said: list[dict], ranks: int, name: str) -> list[list[list[int]]]:
        """The rows of ids that went into the model at each step, rank after rank."""
        pieces = 12 // ranks // (RUNS[name].get("micro_rows") or 12 // ranks)
        number = steps_of(name)
        tried = (
            len(said[0]["ids"]) - number * pieces
        )  # before the first step ranks try whether memory is enough
        steps = [
            itertools.chain.from_iterable(one["ids"][tried + step * pieces : tried + (step + 1) * pieces])
            for step in range(number)
            for one in said
        ]
        return [
            list(itertools.chain.from_iterable(steps[step * ranks : (step + 1) * ranks]))
            for step in range(number)
        ]

    def test_each_rank_holds_its_share_of_weights_and_optimizer(self) -> None:
        whole = {name: said[0] for name, said in self.said[1].items()}
        for ranks, name in ((2, "shard"), (3, "shard"), (2, "adam")):
            for kind in ("parameters", "optimizer"):
                for one in self.said[ranks][name]:
                    # Of 32 rows three ranks hold 11, 11 and 10: 3 % more than a third.
                    self.assertLess(one[kind], 1.04 * whole[name][kind] / ranks, f"{name} {ranks} {kind}")
                total = sum(one[kind] for one in self.said[ranks][name])
                self.assertEqual(total, whole[name][kind])

    def test_without_shard_each_rank_holds_everything(self) -> None:
        for one in self.said[2]["cross"]:
            self.assertEqual(one["parameters"], self.said[1]["cross"][0]["parameters"])

    def test_the_same_number_of_ranks_goes_on_bit_for_bit(self) -> None:
        for name in ("cross", "shard"):
            whole, part = self.place / f"{name}-2", self.place / f"{name}-part"
            for file in (checkpoint.MODEL, checkpoint.TRAINING):
                files = [(checkpoint.step_folder(run, 20) / file).read_bytes() for run in (whole, part)]
                self.assertEqual(*files, f"{name} {file}")
            self.assertEqual(*((run / "metrics.jsonl").read_bytes() for run in (whole, part)))
            self.assertEqual(checkpoint.find(part).manifest["deviations"], [])

    def test_another_number_of_ranks_goes_on_as_well_and_says_that_bits_differ(self) -> None:
        one = self.tensors("shard-1", 20)
        for run, ranks in (("to-3", 3), ("to-1", 1)):
            with self.subTest(run):
                for key, tensor in self.tensors(run, 20).items():
                    torch.testing.assert_close(tensor, one[key], rtol=0, atol=1e-10, msg=key)
                found = checkpoint.find(self.place / run).manifest
                changed = {(each["name"], each["was"], each["is"]) for each in found["deviations"]}
                self.assertIn(("ranks", 2, ranks), changed)
                self.assertEqual(found["machine"]["ranks"], ranks)
                self.assertEqual(found["machine"]["shard"], ranks > 1)

    def test_what_cannot_be_shared_out_is_refused_before_anything_starts(self) -> None:
        for name, words in (
            ("rows", "batch_rows is 9, expected a multiple of the 2 ranks"),
            ("micro", "micro_rows is 4, expected a divisor of the 6 rows that each of 2 ranks takes"),
        ):
            for one in self.said[2][name]:
                self.assertEqual(one["error"][0], "ConfigError")
                self.assertIn(words, one["error"][1])
            self.assertFalse((self.place / name).exists())

    def test_an_error_of_rank_0_ends_all_and_only_rank_0_tells(self) -> None:
        first, second = self.said[2]["taken"]
        self.assertEqual([first["error"][0], second["error"][0]], ["ConfigError", "RankError"])
        self.assertIn("which exists", first["error"][1])

    def test_ranks_go_by_the_clock_of_rank_0(self) -> None:
        steps = {one["step"] for one in self.said[2]["minutes"]}
        self.assertEqual(steps, {checkpoint.find(self.place / "minutes").manifest["config"]["steps"]})


@POSIX
class Faults(unittest.TestCase):
    """Two ranks, one of which fails in the fourth step: both end soon, and nothing is torn."""

    @classmethod
    def setUpClass(cls) -> None:
        import torch.nn.parallel  # noqa: F401

        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.place = Path(holder.name)
        build_corpus(TEXTS, cls.place / "corpus")

    def outcome_of(self, fault: str, rank: int, **changes) -> list[dict | None]:
        """What each rank says of a run in which one has a fault; None where it can say nothing any more."""
        place = Path(tempfile.mkdtemp(dir=self.place))
        (place / "corpus").symlink_to(self.place / "corpus")
        options = {"steps": 6, "save_every": 1, "sample_tokens": 0, "precision": "float32"}
        values = config(place, "run", **{**options, "evaluate_every": 6, **changes})
        job = {"name": "run", "do": "train", "config": values, "fault": fault, "rank": rank}
        began = time.monotonic()
        said = Started(place, 2, [job]).outcomes()
        self.assertLess(time.monotonic() - began, 120)
        self.run_folder = place / "run"
        for _, folder in checkpoint.list_steps(self.run_folder) if self.run_folder.exists() else []:
            checkpoint.verify_step(folder)
        self.assertEqual([path.name for path in self.run_folder.glob(".*")], [])
        return [one and one["run"] for one in said]

    def newest(self) -> int:
        return checkpoint.list_steps(self.run_folder)[0][0]

    def test_a_killed_rank_ends_the_other_one_which_says_where_it_goes_on(self) -> None:
        first, second = self.outcome_of("kill", 1)
        self.assertIsNone(second)
        self.assertEqual(first["error"][0], "TrainingError")
        self.assertIn("lost another rank", first["error"][1])
        self.assertIn(
            "step 3 is saved; go on with: torchrun --nproc-per-node 2 -m tinylm train --resume",
            first["error"][1],
        )
        self.assertEqual(self.newest(), 3)

    def test_ranks_do_not_wait_long_for_one_that_dies_before_they_have_met(self) -> None:
        for fault, rank in (("kill before the store", 0), ("kill before the second group", 1)):
            outcomes = self.outcome_of(fault, rank, rank_timeout=2.0)
            self.assertIsNone(outcomes[rank])
            kind, message = outcomes[1 - rank]["error"]
            self.assertEqual(kind, "TrainingError")
            self.assertIn(f"rank {1 - rank} of 2 cannot meet the others: ", message)

    def test_an_exception_of_one_rank_is_its_own_to_tell(self) -> None:
        for fault, words in (("memory", "memory ran out"), ("bug", "a bug of this rank")):
            first, second = self.outcome_of(fault, 1, shard=fault == "bug")
            self.assertIn("lost another rank", first["error"][1])
            self.assertIn(words, second["error"][1])
            self.assertEqual(self.newest(), 3)

    def test_a_loss_that_is_not_finite_on_one_rank_stops_all_before_a_weight_changes(self) -> None:
        first, second = self.outcome_of("nan", 1)
        self.assertEqual([first["error"][0], second["error"][0]], ["TrainingError", "RankError"])
        self.assertIn("step 4: the loss is nan", first["error"][1])
        self.assertEqual(self.newest(), 3)

    def test_a_full_disk_of_the_rank_that_writes_stops_all(self) -> None:
        first, second = self.outcome_of("disk", 0)
        self.assertEqual([first["error"][0], second["error"][0]], ["TrainingError", "RankError"])
        self.assertIn("No space left on device", first["error"][1])
        self.assertEqual(self.newest(), 3)

    def test_a_disk_that_is_full_in_the_middle_of_a_tensor_stops_all_whose_weights_are_cut(self) -> None:
        for shard in (True, False):
            first, second = self.outcome_of("disk in a tensor", 0, shard=shard)
            self.assertEqual([first["error"][0], second["error"][0]], ["TrainingError", "RankError"])
            self.assertIn("training.safetensors: No space left on device", first["error"][1])
            self.assertIn(
                "step 3 is saved; go on with: torchrun --nproc-per-node 2 -m tinylm train --resume",
                first["error"][1],
            )
            self.assertIn("training.safetensors", second["error"][1])
            self.assertEqual(len(second["error"][1].splitlines()), 1)
            self.assertEqual(self.newest(), 3)

    def test_a_byte_that_changes_after_the_step_was_verified_is_refused_by_all(self) -> None:
        place = Path(tempfile.mkdtemp(dir=self.place))
        (place / "corpus").symlink_to(self.place / "corpus")
        options = {"steps": 6, "sample_tokens": 0, "shard": True, "stop_after": 2}
        values = config(place, "run", **{**options, "evaluate_every": 6})
        resumed = {"do": "resume", "run": str(place / "run")}
        jobs = [
            {"name": "run", "do": "train", "config": values},
            {"name": "flip", "fault": "flip", "rank": 0, **resumed},
            {"name": "later", **resumed},
        ]
        said = Started(place, 2, jobs).results()
        first, second = said["flip"]
        self.assertEqual([first["error"][0], second["error"][0]], ["CheckpointError", "RankError"])
        self.assertIn("training.safetensors: its SHA-256 is not that of the manifest", first["error"][1])
        self.assertTrue(all(len(one["error"][1].splitlines()) == 1 for one in said["flip"]))
        self.assertIn("no step verifies", said["later"][0]["error"][1])

    def test_nothing_takes_its_name_where_a_rank_was_lost_before_the_rename(self) -> None:
        first, second = self.outcome_of("kill before the rename", 1)
        self.assertIsNone(second)
        self.assertIn("lost another rank", first["error"][1])
        self.assertEqual(self.newest(), 3)

    def test_a_signal_to_one_rank_stops_all_after_the_same_step(self) -> None:
        for one in self.outcome_of("signal", 1, shard=True):
            self.assertEqual((one["signal"], one["step"]), (signal.SIGTERM, 4))
        self.assertEqual(self.newest(), 4)

    def test_a_rank_that_hangs_is_given_up_after_the_time_out(self) -> None:
        first, _ = self.outcome_of("hang", 1, rank_timeout=3.0)
        self.assertIn("lost another rank", first["error"][1])
        self.assertEqual(self.newest(), 3)


@unittest.skipUnless(sys.platform == "linux", "reads the memory of a process under /proc")
class MemoryOfARank(unittest.TestCase):
    """A new run, a save and a resume hold a rank's rows and one tensor, never all that one process holds."""

    def test_no_rank_ever_holds_the_whole_model_or_the_whole_state(self) -> None:
        import torch.distributed.fsdp  # noqa: F401

        with tempfile.TemporaryDirectory() as holder:
            place = Path(holder)
            build_corpus(TEXTS, place / "corpus")
            warm = config(place, "warm", shard=True, muon=False, steps=1, evaluate_every=1)
            shape = {"layers": 6, "width": 256, "mlp_width": 1024, "heads": 4, "kv_heads": 4, "head_size": 64}
            options = {"shard": True, "muon": False, "batch_rows": 2, "precision": "float32", "model": shape}
            values = config(place, "run", **{**options, "steps": 2, "evaluate_every": 2, "stop_after": 1})
            other = config(place, "other", **{**options, "steps": 1, "evaluate_every": 1})
            other["init"] = str(place / "run")
            jobs = [
                {"name": "warm", "do": "train", "config": warm},  # loads what torch loads when it is needed
                {"name": "new", "do": "train", "config": values, "measured": True},
                {"name": "resumed", "do": "resume", "run": str(place / "run"), "measured": True},
                {"name": "init", "do": "train", "config": other, "measured": True},
            ]
            said = Started(place, 2, jobs).results()
        del said["warm"]
        largest, slack = 4 * 256 * 1024, 6 << 20
        for name, ranks in said.items():
            for one in ranks:
                weights, state = one["parameters"], one["optimizer"]  # of this rank: half of all
                self.assertGreater(weights, 10 * largest)
                with self.subTest(name, said=one):
                    self.assertLess(one["built"], weights + 2 * largest + slack)
                    self.assertLess(one["loaded"], weights + state + 2 * largest + slack)
                    self.assertLess(one["saved"], 2 * largest + slack)


class Shares(unittest.TestCase):
    def test_rows_are_cut_as_torch_cuts_them(self) -> None:
        for rows, size in itertools.product((1, 2, 3, 5, 7, 8, 257), (1, 2, 3, 4, 8)):
            pieces = torch.arange(rows).chunk(size)
            found = sharding.row_shards(rows, size)
            self.assertEqual(
                [list(range(*cut)) for cut in found][: len(pieces)], [p.tolist() for p in pieces]
            )
            self.assertTrue(all(begin == end for begin, end in found[len(pieces) :]))

    def test_owners_have_about_equal_work(self) -> None:
        shapes = {
            f"{layer}.{n}": torch.Size(s) for layer in range(6) for n, s in enumerate(((8, 8), (8, 24)))
        }
        owner = sharding.owners(shapes, 4)
        busy = [sum(8 * 8 * max(shapes[n]) for n in shapes if owner[n] == rank) for rank in range(4)]
        self.assertEqual(sum(busy), 6 * (512 + 1536))
        self.assertLess(max(busy), 1.34 * sum(busy) / 4)
        self.assertEqual(owner, sharding.owners(dict(reversed(shapes.items())), 4))

    def test_matrices_are_whole_on_their_owner_and_come_back_whatever_the_shards(self) -> None:
        """Uneven and empty shards; the exchange is played by hand, rank after rank, against the whole."""
        generator = torch.Generator().manual_seed(0)
        wide = [torch.randn(5, 9, generator=generator, dtype=torch.float64) for _ in range(3)]
        whole = [*wide, torch.randn(9, 5, generator=generator, dtype=torch.float64)]
        size, owner = 4, [0, 2, 2, 1]
        cuts = [sharding.row_shards(len(matrix), size) for matrix in whole]
        expected = orthogonal(whole)
        steps = [self.steps(whole, cuts, owner, rank, size) for rank in range(size)]
        sent = [next(step) for step in steps]
        for _ in range(2):
            sent = [
                step.send([sent[other][0][other_cut(sent[other][1], rank)] for other in range(size)])
                for rank, step in enumerate(steps)
            ]
        for rank, found in enumerate(sent):
            for matrix, cut, rows in zip(expected, cuts, found, strict=True):
                torch.testing.assert_close(rows, matrix[slice(*cut[rank])], rtol=0, atol=1e-12)

    def steps(self, whole, cuts, owner, rank, size):
        """One rank in a thread of its own; yields what it sends, is sent what it gets."""
        import queue
        import threading

        out: queue.Queue = queue.Queue()
        back: queue.Queue = queue.Queue()

        def exchange(incoming, outgoing, taken, given):
            out.put((outgoing.clone(), list(given)))
            parts = back.get()
            assert [len(part) for part in parts] == list(taken)
            incoming.copy_(torch.cat(parts))

        def run() -> None:
            shards = [matrix[slice(*cut[rank])] for matrix, cut in zip(whole, cuts, strict=True)]
            rows = [len(matrix) for matrix in whole]
            out.put(
                sharding.with_whole_matrices(shards, rows, owner, Ranks(rank, size), orthogonal, exchange)
            )

        threading.Thread(target=run, daemon=True).start()
        while True:
            parts = yield out.get(timeout=30)
            back.put(parts)


def other_cut(sizes: list[int], rank: int) -> slice:
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


class Alone(unittest.TestCase):
    def test_one_process_agrees_with_itself(self) -> None:
        self.assertEqual(ALONE.exchange({"a": 1}), [{"a": 1}])
        self.assertEqual((ALONE.total(0.1), ALONE.most(3), ALONE.share(8)), (0.1, 3, slice(0, 8)))
        self.assertEqual(ALONE.first(lambda: 5), 5)
        self.assertEqual(ALONE.commit(lambda agree: agree() or 7), 7)
        self.assertIs(join(1.0), ALONE)

    def test_what_torchrun_says(self) -> None:
        said = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "2"}
        with mock.patch.dict("os.environ", said):
            self.assertEqual(launched(), Launch(3, 4, 1, 2))
        for wrong in ({"RANK": "4"}, {"WORLD_SIZE": "x"}, {"RANK": "-1"}):
            with mock.patch.dict("os.environ", {**said, **wrong}), self.assertRaises(ConfigError):
                launched()
        self.assertEqual(launched(), Launch())

    def test_a_rank_tells_only_what_rank_0_cannot_know(self) -> None:
        errors = (ConfigError("x"), CheckpointError("x"), RankError("x"), TrainingError("x"), None)
        self.assertTrue(all(map(speaks, errors)))
        with mock.patch.dict("os.environ", {"RANK": "1", "WORLD_SIZE": "2"}):
            self.assertEqual([speaks(error) for error in errors], [False, False, False, True, False])
            with mock.patch("torch.distributed.is_initialized", return_value=True):
                self.assertEqual([speaks(error) for error in errors], [False, True, False, True, True])

    def test_runs_that_are_older_than_the_options_are_one_process(self) -> None:
        values = json.loads(json.dumps(dataclasses.asdict(TrainConfig(data="x"))))
        del values["shard"], values["rank_timeout"]
        found = TrainConfig.from_dict(values, "run.json")
        self.assertEqual((found.shard, found.rank_timeout), (False, 300.0))


if __name__ == "__main__":
    unittest.main()
