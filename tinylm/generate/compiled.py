"""The compiled form of step.cpp: built once by the user's C++ compiler, kept in the user's cache folder.

Its name holds what it was built from and with, and the SHA-256 of its bytes, so that what was damaged or
belongs to another compiler or processor is never loaded. It is built under a temporary name and renamed:
two processes may build at once.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("step.cpp")
# Nothing that lets the compiler round otherwise than is written: no fusing by itself, no -ffast-math.
FLAGS = (
    *("-std=c++17", "-O3", "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-pthread"),
)
PATIENCE = 120.0
"""Seconds after which a compiler counts as stuck."""


class NotCompiled(Exception):
    """There is no compiled step on this machine; the message says why, on one line."""


def load() -> ctypes.CDLL:
    """The compiled step. Raises NotCompiled. Tried once in a process, whatever comes of it."""
    found = _tried()
    if isinstance(found, str):
        raise NotCompiled(found)
    return found


def why_not() -> str | None:
    """Why there is no compiled step, if it was asked for and could not be had."""
    found = _tried() if _tried.cache_info().currsize else None
    return found if isinstance(found, str) else None


@functools.cache
def _tried() -> ctypes.CDLL | str:
    try:
        return open_or_build(Path.home() / ".cache" / "tinylm")
    except NotCompiled as reason:
        return str(reason)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: no home folder
        return one_line(error)


def open_or_build(folder: Path) -> ctypes.CDLL:
    """The step from a cache folder; built there if it is not, or in a temporary folder if that cannot be."""
    if os.name == "nt":
        raise NotCompiled("on Windows it is not built")
    compiler = _compiler()
    key = _key(compiler)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        usable = _is_private(folder) and os.access(folder, os.W_OK)
    except OSError:
        usable = False
    if not usable:
        with tempfile.TemporaryDirectory(prefix="tinylm-") as private:
            return ctypes.CDLL(str(_build(compiler, key, Path(private))))
    for path in sorted(folder.glob(f"step-{key}-*.so")):
        # Whole before it is opened: a library that was cut off can end the process.
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest()[:32] == path.stem[-32:]:
            try:
                return ctypes.CDLL(str(path))
            except OSError:
                continue
    return ctypes.CDLL(str(_build(compiler, key, folder)))


def _compiler() -> list[str]:
    given = shlex.split(os.environ.get("CXX", ""))
    if given:
        if shutil.which(given[0]) is None:
            raise NotCompiled(f"CXX is {given[0]!r}, which was not found")
        return given
    found = next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
    if found is None:
        raise NotCompiled("no C++ compiler was found (g++, clang++ or what CXX names)")
    return [found]


def _key(compiler: list[str]) -> str:
    """32 hexadecimal digits of what a build depends on: source, compiler, flags, processor."""
    version = _run([*compiler, "--version"]).stdout
    processor = f"{sys.platform} {platform.machine()} {platform.processor()}"
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        processor += "".join(line for line in lines if line.startswith(("flags", "Features", "model name")))
    except OSError:
        pass  # only Linux has it
    parts = (SOURCE.read_text("utf-8"), *compiler, version, *FLAGS, processor)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _build(compiler: list[str], key: str, folder: Path) -> Path:
    temporary = folder / f".building-{secrets.token_hex(8)}.so"
    try:
        _run([*compiler, *FLAGS, "-o", str(temporary), str(SOURCE)])
        if not temporary.is_file():
            raise NotCompiled(f"{shlex.join(compiler)} wrote nothing")
        temporary.chmod(0o700)
        digest = hashlib.sha256(temporary.read_bytes()).hexdigest()[:32]
        path = folder / f"step-{key}-{digest}.so"
        os.replace(temporary, path)
        return path
    finally:
        temporary.unlink(missing_ok=True)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run(
        command, capture_output=True, stdin=subprocess.DEVNULL, encoding="utf-8", errors="replace",
        timeout=PATIENCE,
    )  # fmt: skip
    if ran.returncode:
        told = one_line(next((line for line in ran.stderr.splitlines() if "error" in line), ran.stderr))
        why = f"{command[0]} ended with exit code {ran.returncode}"
        raise NotCompiled(f"{why}: {told}" if told else why)
    return ran


def _is_private(folder: Path) -> bool:
    """Whether nobody else can write there; what is loaded from it runs as this user."""
    told = folder.stat()
    return told.st_uid == os.getuid() and not told.st_mode & 0o022


def one_line(told: object) -> str:
    """A message without line breaks, not endless."""
    return " ".join(str(told).split())[:300]
