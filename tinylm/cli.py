"""The command line: finds a command, parses its arguments, runs it. Errors are one line, and exit with 2."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence

from tinylm.commands import COMMANDS
from tinylm.commands.command import Arguments
from tinylm.errors import ConfigError, TinylmError
from tinylm.flags import one_line
from tinylm.walkthrough import utf8_output


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 2 after an error, 130 or 143 after an interrupt."""
    utf8_output()
    # Threads that wait spin by default; where another program wants a core, a step then takes twice as
    # long (LAB.md). Read once, when torch is loaded; the numbers do not depend on it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with warnings.catch_warnings(), ended_by_sigterm():
            warnings.showwarning = lambda message, *rest: print(
                f"tinylm: warning: {message}", file=sys.stderr
            )
            return dispatch(words)
    except TinylmError as error:
        return complain(str(error))
    except BrokenPipeError:
        # The reader has gone; Python must not try to flush into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno is None:
            raise
        return complain(f"{error.filename or 'a file'}: {error.strerror}; {way_out(error)}")
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
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end a command as an exception does, so that what is half-written is removed."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def complain(message: str) -> int:
    """Print an error as one line on standard error."""
    print(f"tinylm: {' '.join(message.split())}", file=sys.stderr)
    return 2


def way_out(error: OSError) -> str:
    """What a user can do about an error of the operating system."""
    import errno

    return {
        errno.ENOSPC: "free some space, or choose a place on another disk; nothing half-written was left",
        errno.EDQUOT: "free some space, or choose a place on another disk; nothing half-written was left",
        errno.EACCES: "change its permissions, or choose another place",
        errno.ENOENT: "check the path",
        errno.EEXIST: "choose another place",
        errno.EROFS: "choose a place that can be written",
        errno.ENOTDIR: "choose a folder",
        errno.ENOTEMPTY: "choose another place",
    }.get(error.errno or 0, "check the place and try again")
