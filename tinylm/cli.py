"""The command line: finds a command, parses its arguments, runs it. Errors are one line, and exit with 2."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence

from tinylm.commands import COMMANDS
from tinylm.commands.command import Arguments
from tinylm.distributed.launch import speaks
from tinylm.errors import ConfigError, TinylmError
from tinylm.files import told
from tinylm.flags import one_line
from tinylm.interrupts import silence
from tinylm.walkthrough import utf8_output


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 2 after an error, 128 + its number after a signal."""
    utf8_output()
    atexit.register(gc.freeze)  # or Python searches all of torch for garbage before it ends: a second
    # Threads that wait spin by default; where another program wants a core, a step then takes twice as
    # long (LAB.md). Read once, when torch is loaded; the numbers do not depend on it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with warnings.catch_warnings(), ended_by_signals():
            warnings.showwarning = lambda message, *rest: print(
                f"tinylm: warning: {message}", file=sys.stderr
            )
            return dispatch(words)
    except TinylmError as error:
        return complain(str(error), error)
    except BrokenPipeError:
        silence(sys.stdout)  # the reader has gone; Python must not flush into the closed pipe at exit
        return 141
    except OSError as error:
        if error.errno is None:
            raise
        return complain(told(error))
    except KeyboardInterrupt:
        complain("interrupted")
        return 130


def dispatch(words: list[str]) -> int:
    """Find the command, parse its arguments, run it."""
    name = " ".join(words[:2]) if words[:1] == ["corpus"] else " ".join(words[:1])
    if not words or words[0] in ("-h", "--help") or words in (["corpus"], ["corpus", "--help"]):
        print(overview())
        return 0
    if words[0] == "--version":
        from tinylm import __version__

        print(f"tinylm {__version__}")
        return 0
    if name not in COMMANDS:
        raise ConfigError(
            f"{name!r} is not a command, expected one of {', '.join(COMMANDS)}; see tinylm --help"
        )
    command = COMMANDS[name]
    import tyro

    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints):
            given: Arguments = tyro.cli(
                command.arguments(words),
                args=words[len(name.split()) :],
                prog=f"tinylm {name}",
                description=command.help,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands, tyro.conf.UseAppendAction),
            )
    except SystemExit as refused:
        if not refused.code:
            return 0
        raise ConfigError(one_line(complaints.getvalue())) from None
    return command.run(given)


def overview() -> str:
    """The text of `tinylm --help`."""
    width = max(map(len, COMMANDS))
    lines = [
        f"  tinylm {name:<{width}}  {command.help.partition('.')[0]}" for name, command in COMMANDS.items()
    ]
    return (
        "tinylm trains small language models straight on UTF-8 bytes.\n\n"
        + "\n".join(lines)
        + "\n\nEach command explains its flags with --help. Start with: tinylm quickstart"
    )


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command as an exception does: what is half-written is removed."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def complain(message: str, error: Exception | None = None) -> int:
    """Print an error as one line on standard error, unless it is another rank that has to tell it."""
    if speaks(error):
        try:
            print(f"tinylm: {' '.join(message.split())}", file=sys.stderr, flush=True)
        except OSError:
            silence(sys.stderr)
    return 2
