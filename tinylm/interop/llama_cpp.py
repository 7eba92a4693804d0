"""Models in llama.cpp, through node-llama-cpp: how it tokenizes, what it predicts.

Needs node (20 or newer) and the npm package node-llama-cpp, which brings a built llama.cpp. Nothing is
downloaded or built here.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from tinylm import files
from tinylm.errors import CheckpointError
from tinylm.interop.by_hand import Floats, log_softmax

SCRIPT = Path(__file__).with_name("llama_cpp.mjs")
INSTALL = "npm install --ignore-scripts node-llama-cpp@3"
PATIENCE = 300.0
"""Seconds that one answer may take before the other program counts as stuck."""


class LlamaCppMissing(Exception):
    """llama.cpp cannot run here; the message says what is missing. Not an error of the model."""


class LlamaCpp:
    """llama.cpp in a process of its own, and the GGUF file that it holds. Use as a context manager.

    `node_modules`: the folder that holds node-llama-cpp; without it, where node looks from the current
    folder: `node_modules` there and above, then its global places, NODE_PATH among them.
    Raises LlamaCppMissing where node or the package is not there or does not run on this machine; every
    method raises CheckpointError where llama.cpp refuses the file, or dies.
    """

    def __init__(self, node_modules: Path | None = None) -> None:
        node = shutil.which("node")
        if node is None:
            raise LlamaCppMissing("node was not found")
        self._path = Path("no file")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close())
        self._process = subprocess.Popen(
            [node, str(SCRIPT), *([] if node_modules is None else [str(node_modules)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
        )
        try:
            found = self._read()
            if "missing" in found:
                raise LlamaCppMissing(" ".join(str(found["missing"]).split()))
        except CheckpointError as error:
            self.close()
            raise LlamaCppMissing(f"node does not run {SCRIPT.name}: {error}") from None
        except BaseException:
            self.close()
            raise
        self.name = f"llama.cpp {found['release']} (node-llama-cpp {found['version']})"

    def load(self, path: Path, tokens: int = 256, threads: int = 1) -> dict[str, Any]:
        """Load a GGUF file in place of the one before; a request may hold `tokens` with its answer.

        Returns the number of `tokens` in the vocabulary, the ids that are `ends` of a generation, and the
        `window` that the model was trained with.
        """
        self._path = path
        loaded: dict[str, Any] = self._ask(
            do="load", path=str(path.absolute()), tokens=tokens, threads=threads
        )
        return loaded

    def tokenize(self, text: str, special: bool = False) -> list[int]:
        """The ids of a text, without the boundary that a prompt gets; `special` as a chat template would."""
        ids: list[int] = self._ask(do="tokenize", text=text, special=special)
        return ids

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids; ill-formed bytes are U+FFFD, the boundary is nothing."""
        text: str = self._ask(do="detokenize", ids=list(ids))
        return text

    def log_probabilities(self, ids: Sequence[int]) -> Floats:
        """Log-probabilities (natural, float64 [T, 257]) of the token after each of `ids`."""
        return log_softmax(np.array(self._ask(do="logits", ids=list(ids)), dtype=np.float64))

    def greedy(self, ids: Sequence[int], limit: int) -> list[int]:
        """At most `limit` ids, each the best one; ends before the boundary, of which it says nothing."""
        found: list[int] = self._ask(do="greedy", ids=list(ids), limit=limit)
        return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._died() from None
        reply = self._read()
        if "error" in reply:
            told = " ".join(str(reply["error"]).split())
            raise CheckpointError(f"{self._path}: llama.cpp does not {request['do']} it: {told}")
        return reply["answer"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        watch = threading.Timer(PATIENCE, self._process.kill)
        watch.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            raise self._died()
        reply: dict[str, Any] = files.parse_json(line, "what llama.cpp answered")
        return reply

    def _died(self) -> CheckpointError:
        code = self._process.wait()
        self._errors.seek(0)
        text = self._errors.read().decode("utf-8", "replace")
        told = [line.strip() for line in text.splitlines() if "rror" in line or "failed" in line]
        reason = "; ".join(told[:3]) or f"it ended with code {code} and said nothing"
        return CheckpointError(f"{self._path}: llama.cpp died ({reason})")
