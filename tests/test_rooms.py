"""The house: a room imports only from rooms above it, stays small, and never reads a pickle."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import unittest
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.stage_support import ROOT, STAGES, load_stage, stage_path

PACKAGE = ROOT / "tinylm"

# The order of the house, top to bottom. A room may be a file or a folder; it imports from those before it.
HOUSE = """
    errors contract files locks config tokenizer shapes distributed devices sources corpus data batches
    baselines attention cache ngrams model optimizer sampling constraints events generate evaluate coder
    tensor_files checkpoint
    language_model interrupts metrics plots bit_pictures reports training_step progress milestones
    resumption weights trainer plan interop serve walkthrough quickstart flags commands cli __main__
"""
ORDER = HOUSE.split()

LAZY = ("tyro", "rich", "matplotlib", "filelock", "llguidance")


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(module: str) -> str:
    """`tinylm.sources.reading` is in the room `sources`."""
    return module.split(".")[1] if "." in module else ""


def is_module(name: str) -> bool:
    place = ROOT.joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").exists()


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Every module of tinylm that is imported anywhere in a file, with its line."""
    for node in ast.walk(tree):
        found: list[str] = []
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ["." * node.level + (node.module or "")]
            if node.level:
                package = module.split(".") if is_package else module.split(".")[:-1]
                above = package[: len(package) - node.level + 1]
                base = [".".join([*above, *([node.module] if node.module else [])])]
            names = [f"{base[0]}.{alias.name}" for alias in node.names]
            found = [name if is_module(name) else base[0] for name in names]
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            found = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        for name in found:
            if name.split(".")[0] == "tinylm":
                yield getattr(node, "lineno", 0), name


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


PICKLES = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "torch.load", "torch.save"}


def forbidden(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Ways to read or write a pickle, and ways to lose bytes without a word."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [dotted(node)]
        elif isinstance(node, ast.Call):
            values = {keyword.arg: getattr(keyword.value, "value", "?") for keyword in node.keywords}
            positional = [getattr(argument, "value", None) for argument in node.args]
            if values.get("allow_pickle", False) is not False:
                yield node.lineno, "allow_pickle"
            if "ignore" in [
                values.get("errors"),
                *(positional if called(node) not in ("simplefilter", "filterwarnings") else []),
            ]:
                yield node.lineno, 'errors="ignore"'
        for name in names:
            if PICKLES & {name, name.split(".")[0]} or name.startswith("torch.distributed.checkpoint"):
                yield node.lineno, name


def python(code: str, **environment: str) -> str:
    """What a fresh interpreter prints; its environment is this one's and `environment`."""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    if ran.returncode:
        raise AssertionError(ran.stderr)
    return ran.stdout.strip()


class Rooms(unittest.TestCase):
    def test_every_room_is_in_the_order(self) -> None:
        rooms = {room(module_name(path)) for path in modules()} - {""}
        self.assertEqual(rooms - set(ORDER), set(), "give the room its place in ORDER")
        self.assertEqual(len(ORDER), len(set(ORDER)))

    def test_a_room_imports_only_from_rooms_above_it(self) -> None:
        problems = []
        for path in modules():
            name = module_name(path)
            here = room(name)
            if here not in ORDER:
                continue
            above = {here, *ORDER[: ORDER.index(here)]}
            for line, imported in imports(ast.parse(path.read_text("utf-8")), name, path.stem == "__init__"):
                if room(imported) not in above and imported != "tinylm":
                    problems.append(
                        f"{path.relative_to(ROOT)}:{line} imports {imported}, which is not above {here}"
                    )
        self.assertEqual(problems, [])

    def test_the_finder_of_imports_finds_every_form(self) -> None:
        source = """
import tinylm.cli
from tinylm import trainer as t, TinylmError
from tinylm.model import Transformer
from . import checkpoint
from .sources import reading
from ..tinylm import plots
def f():
    from tinylm import evaluate
    importlib.import_module("tinylm.generate")
"""
        found = {name for _, name in imports(ast.parse(source), "tinylm.x", False)}
        expected = "cli trainer model checkpoint sources.reading evaluate generate"
        self.assertTrue({f"tinylm.{name}" for name in expected.split()} <= found, found)
        self.assertIn("tinylm", found)  # the name TinylmError comes from the package itself

    def test_files_stay_small_enough_to_read(self) -> None:
        sizes = {
            path: len(path.read_text("utf-8").splitlines()) for path in (*modules(), *STAGES.rglob("*.py"))
        }
        self.assertEqual(
            {p.name: n for p, n in sizes.items() if n >= (170 if p.parent == STAGES else 420)}, {}
        )

    def test_no_pickle_is_read_or_written_and_no_byte_is_ignored(self) -> None:
        for path in (*modules(), *STAGES.glob("*.py")):
            with self.subTest(path.name):
                self.assertEqual(list(forbidden(ast.parse(path.read_text("utf-8")))), [])

    def test_the_finder_of_pickles_finds_every_form(self) -> None:
        for line in (
            "import pickle",
            "from pickle import loads",
            "torch.load(path)",
            "from torch import load",
            "from torch import save as s",
            "import torch.distributed.checkpoint as dcp",
            "np.load(path, allow_pickle=True)",
            "np.load(path, allow_pickle=flag)",
            'open(path, errors="ignore")',
            'raw.decode("utf-8", "ignore")',
            'codecs.getincrementaldecoder("utf-8")("ignore")',
        ):
            self.assertEqual(len(list(forbidden(ast.parse(line)))), 1, line)
        for line in ("np.load(path)", "np.load(path, allow_pickle=False)", 'raw.decode("utf-8", "replace")'):
            self.assertEqual(list(forbidden(ast.parse(line))), [], line)

    def test_no_environment_variable_is_used_but_for_the_compiler_waiting_threads_cublas_and_ranks(
        self,
    ) -> None:
        for path in modules():
            text = path.read_text("utf-8")
            named = re.findall(r'os\.(?:environ\.\w+\(|environ\[|getenv\()"(\w+)"', text)
            self.assertEqual(len(named), text.count("os.environ") + text.count("os.getenv"), path)
            allowed = {"CXX", "OMP_WAIT_POLICY", "CUBLAS_WORKSPACE_CONFIG"}
            if path == PACKAGE / "distributed" / "launch.py":  # what torchrun says, and nothing else
                allowed = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT"}
            if path == PACKAGE / "walkthrough" / "__init__.py":  # and what it would say to ranks of a stage
                allowed = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
            self.assertLessEqual(set(named), allowed, path)


class Imports(unittest.TestCase):
    def test_importing_tinylm_loads_nothing_that_only_the_command_needs(self) -> None:
        loaded = python(f"import sys, tinylm; print([name for name in {LAZY} if name in sys.modules])")
        self.assertEqual(loaded, "[]")

    def test_the_compiler_of_torch_is_loaded_only_by_those_who_compile(self) -> None:
        # It takes as long to load as the rest of torch.
        code = "import sys, tinylm\nfor name in tinylm.__all__: getattr(tinylm, name)\n"
        code += "from tinylm import config, model, optimizer\n"
        code += "one = model.Transformer(config.ModelConfig(layers=1, ngrams=2, ngram_rows=64))\n"
        code += "optimizer.Optimizer(one, config.TrainConfig(data='x'))\n"
        self.assertEqual(python(code + "print('torch._dynamo' in sys.modules)"), "False")

    def test_using_every_public_name_needs_torch_numpy_and_safetensors_only(self) -> None:
        code = (
            f"import sys\nfor name in {LAZY}: sys.modules[name] = None\n"
            "import tinylm\nfor name in tinylm.__all__: getattr(tinylm, name)\nprint('all')"
        )
        self.assertEqual(python(code), "all")

    def test_public_names_are_listed_and_a_wrong_one_is_an_attribute_error(self) -> None:
        code = (
            "import tinylm\nassert set(tinylm.__all__) <= set(dir(tinylm))\n"
            "try: tinylm.nothing\nexcept AttributeError as error: print(error)"
        )
        self.assertIn("nothing", python(code))

    def test_options_contract_and_sources_need_no_torch(self) -> None:
        for name in ("config", "contract", "sources", "tokenizer", "files"):
            self.assertEqual(
                python(f"import sys, tinylm.{name}; print('torch' in sys.modules)"), "False", name
            )

    def test_help_does_not_load_torch(self) -> None:
        if importlib.util.find_spec("tyro") is None:
            self.skipTest("tyro is not installed")
        code = (
            "import sys\nfrom tinylm.cli import main\n"
            "try: code = main(['--help'])\nexcept SystemExit as end: code = end.code\n"
            "assert not code, code\nassert 'torch' not in sys.modules, 'torch was imported'"
        )
        self.assertIn("train", python(code))


class Stages(unittest.TestCase):
    def scripts(self) -> list[Path]:
        found = sorted(STAGES.glob("stage_*.py"))
        self.assertTrue(found, "no stage was found")
        return found

    def test_every_stage_has_its_page_and_its_tests(self) -> None:
        for script in self.scripts():
            with self.subTest(script.name):
                page = script.with_suffix(".md").read_text("utf-8")
                self.assertTrue((ROOT / "tests" / f"test_{script.name}").exists())
                self.assertIn(f"python stages/{script.name}", page)
                self.assertIn(f"python -m unittest tests.test_{script.stem} -v", page)
                self.assertIn("<!--=", page)
                for part in (
                    "## The idea",
                    "Before you read on:",
                    "## Break it",
                    "## Your turn",
                    "## Run it",
                ):
                    self.assertTrue(part in page, f"the page has no part {part!r}")
        pages = {page.stem for page in STAGES.glob("stage_*.md")}
        self.assertEqual(pages, {script.stem for script in self.scripts()})

    def test_every_stage_has_the_number_and_the_title_of_its_file(self) -> None:
        for script in self.scripts():
            stage = load_stage(int(script.stem.split("_")[1])).STAGE
            self.assertEqual(script.stem, f"stage_{stage.number:02d}_{stage.title.replace(' ', '_')}")

    def test_stages_run_where_the_console_knows_no_unicode(self) -> None:
        """Three of them, which print Hangul and emoji; `stages/run_all.py` runs every stage so."""

        def run(script: Path) -> subprocess.CompletedProcess[bytes]:
            return subprocess.run(
                [sys.executable, script, "--quick"],
                cwd=ROOT,
                env={**os.environ, "PYTHONIOENCODING": "cp1252", "OMP_NUM_THREADS": "1"},
                capture_output=True,
                timeout=120,
            )

        scripts = [stage_path(number) for number in (4, 13)]
        with ThreadPoolExecutor(2) as pool:
            for script, ran in zip(scripts, pool.map(run, scripts), strict=True):
                with self.subTest(script.name):
                    self.assertEqual(ran.returncode, 0, ran.stderr.decode("utf-8", "replace")[-2000:])
                    self.assertEqual(ran.stdout.decode("utf-8").splitlines()[-1], "sanity check: PASS")


class Readme(unittest.TestCase):
    def setUp(self) -> None:
        path = ROOT / ".ci" / "readme_command.py"
        specification = importlib.util.spec_from_file_location("readme_command", path)
        self.module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(self.module)

    def test_a_command_is_the_block_that_follows_its_comment(self) -> None:
        text = (
            "a\n<!-- command: main -->\n\n```bash\none\ntwo\n```\n<!-- command: test -->\n```sh\nthree\n```\n"
        )
        self.assertEqual(self.module.readme_command(text, "main"), "one\ntwo\n")
        self.assertEqual(self.module.readme_command(text, "test"), "three\n")
        for wrong in ("", text.replace("test", "tests"), text + text, text.replace("```sh", "\ntext\n```sh")):
            with self.assertRaises(LookupError):
                self.module.readme_command(wrong, "test")

    def test_the_readme_holds_the_two_commands(self) -> None:
        text = self.module.README.read_text("utf-8")
        self.assertIn("tinylm quickstart", self.module.readme_command(text, "main"))
        self.assertIn("pytest", self.module.readme_command(text, "test"))
