"""One thread that owns the engine, and the side of it that lives on the event loop.

The loop submits, cancels and reads; the thread starts, steps and frees. They meet in a queue of waiting
jobs under a lock, and in one call back to the loop per step.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinylm.errors import ConflictError, TinylmError
from tinylm.events import End
from tinylm.generate import Engine, Generation, Sampled, Task
from tinylm.serve.answers import Answer
from tinylm.serve.refusals import Refusal

BACKLOG = 64
"""Events that may wait for a client before its slot is paused; it goes on at half of that."""


@dataclass(frozen=True)
class Begun:
    """A job has its slot. `reused`: tokens of its prompt whose keys were there already."""

    slot: int
    reused: int
    at: float


@dataclass(frozen=True)
class Token:
    """A job has sampled a token. `drafted`, `accepted`: guesses of its generation until the step of it."""

    sampled: Sampled
    at: float
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Read:
    """So many tokens of a job's prompt have been read, and the prompt is longer."""

    tokens: int
    at: float


Message = Begun | Read | Token | Refusal | None
"""What the thread tells of a job; None: it was cancelled and its slot is free."""


class Job:
    """One generation of a request."""

    def __init__(self, task: Task, answer: Answer, exchange: Exchange) -> None:
        self.task = task
        self.answer = answer
        self.exchange = exchange
        self.begun = self.over = False
        self.generation: Generation | None = None
        self.read = 0


class Exchange:
    """The jobs of one request and what has arrived of them; lives on the event loop.

    `paced`: the client reads as it likes, and its jobs pause while BACKLOG events wait for it. `watched`:
    it is told how far prompts have been read.
    """

    def __init__(self, paced: bool, watched: bool = False) -> None:
        self.jobs: list[Job] = []
        self.paced, self.watched = paced, watched
        self.paused = False
        self._news: deque[tuple[Job, Message]] = deque()
        self._ready = asyncio.Event()

    @property
    def begun(self) -> bool:
        """Whether no job waits for a slot."""
        return all(job.begun or job.over for job in self.jobs)

    def put(self, job: Job, message: Message) -> None:
        self._news.append((job, message))
        self._ready.set()

    @property
    def waiting(self) -> int:
        return len(self._news)

    async def take(self, seconds: float | None) -> list[tuple[Job, Message]]:
        """What has arrived, in order; empty if nothing came in time."""
        if not self._news:
            self._ready.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._ready.wait()
            except TimeoutError:
                return []
        found = list(self._news)
        self._news.clear()
        return found


class Scheduler:
    """Admits jobs, in the order in which they came, to an engine with `slots` slots; `queue` may wait.

    `report` is told the traceback of what must not happen.
    """

    def __init__(
        self, engine: Engine, slots: int, queue: int, report: Callable[[str], None] = lambda text: None
    ) -> None:
        self.slots, self.queue = slots, queue
        self.active: dict[int, Job] = {}
        self.stopping = False
        self.sampled = self.prompted = self.finished = self.drafted = self.accepted = 0
        self._engine = engine
        self.report = report
        self._loop = asyncio.get_running_loop()
        self._open: set[Job] = set()
        self._mean_seconds = 1.0
        self._wake = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._cancelled: list[Job] = []
        self._closed = False
        self._running: dict[Generation, Job] = {}
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    # On the event loop.

    @property
    def waiting(self) -> int:
        """Jobs that have no slot yet."""
        return sum(not job.begun for job in self._open)

    def submit(
        self, tasks: Sequence[Task], answers: Sequence[Answer], *, paced: bool, watched: bool = False
    ) -> Exchange:
        """Take all generations of a request, or none. Raises Refusal 429 where the queue has no room.

        What asks for no tokens is over at once.
        """
        if self.stopping:
            raise stopping()
        room = self.slots + self.queue - len(self._open)
        if len(tasks) > room:
            seconds = max(1, min(60, round(self._mean_seconds * len(self._open) / self.slots)))
            raise Refusal(
                429,
                f"all {self.slots} slots are taken and {self.waiting} of at most {self.queue} generations "
                f"wait, this request has {len(tasks)}; try again in {seconds} seconds",
                headers={"retry-after": str(seconds)},
            )
        exchange = Exchange(paced, watched)
        for task, answer in zip(tasks, answers, strict=True):
            job = Job(task, answer, exchange)
            exchange.jobs.append(job)
            if task.config.max_tokens == 0:
                job.over = True
                answer.end = End("limit", "", 0)
            else:
                self._open.add(job)
        with self._wake:
            self._waiting.extend(job for job in exchange.jobs if not job.over)
            self._wake.notify()
        return exchange

    def cancel(self, exchange: Exchange) -> None:
        """Free what a request holds, at the latest after the step that is under way."""
        open_jobs = [job for job in exchange.jobs if not job.over]
        if not open_jobs:
            return
        with self._wake:
            for job in open_jobs:
                if job in self._waiting:
                    self._waiting.remove(job)
                    gone: list[tuple[Job, Message]] = [(job, None)]
                    self._loop.call_soon(self._deliver, gone)
                else:
                    self._cancelled.append(job)
            self._wake.notify()

    def taken(self, exchange: Exchange) -> None:
        """The client of a paced exchange has read on: let its jobs go on where they were paused."""
        if exchange.paused and exchange.waiting <= BACKLOG // 2:
            with self._wake:
                exchange.paused = False
                self._wake.notify()

    def _deliver(self, news: list[tuple[Job, Message]]) -> None:
        for job, message in news:
            if job.over:
                continue
            answer = job.answer
            if isinstance(message, Begun):
                job.begun = True
                answer.begin(message.slot, message.reused, message.at)
                self.active[message.slot] = job
            elif isinstance(message, Token):
                self.sampled += 1
                if message.sampled.end is not None:
                    self._finish(job)
                    self.finished += 1
                    self.drafted += message.drafted
                    self.accepted += message.accepted
                    self.prompted += answer.prompt_tokens
                    seconds = message.at - answer.started
                    self._mean_seconds += 0.1 * (seconds - self._mean_seconds)
            elif not isinstance(message, Read):
                self._finish(job)
            exchange = job.exchange
            exchange.put(job, message)
            if exchange.paced and exchange.waiting >= BACKLOG:
                exchange.paused = True

    def _finish(self, job: Job) -> None:
        job.over = True
        self._open.discard(job)
        if self.active.get(job.answer.slot) is job:
            del self.active[job.answer.slot]

    async def close(self, grace: float) -> None:
        """Take nothing more, end what waits, give the others `grace` seconds, then end them too."""
        self.stopping = True
        with self._wake:
            unbegun = list(self._waiting)
            self._waiting.clear()
        self._deliver([(job, stopping()) for job in unbegun])
        end = time.monotonic() + grace
        while self._open and time.monotonic() < end:
            await asyncio.sleep(0.02)
        left = list(self._open)
        self._deliver([(job, stopping()) for job in left])
        with self._wake:
            self._closed = True
            self._wake.notify()
        # A step may be long; the thread is a daemon and nobody waits for it at exit.
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, 1.0)

    # In the thread.

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._has_work():
                    self._wake.wait()
                if self._closed:
                    return
                cancelled, self._cancelled = self._cancelled, []
            news: list[tuple[Job, Message]] = []
            for job in cancelled:
                if job.generation is not None and self._running.pop(job.generation, None) is not None:
                    self._engine.cancel(job.generation)
                    news.append((job, None))
            self._start(news)
            if news:
                self._tell(news)
                news = []
            try:
                self._step(news)
            except Exception:
                self.report(traceback.format_exc())
                for generation, job in self._running.items():
                    self._engine.cancel(generation)
                    news.append((job, internal()))
                self._running.clear()
            if news:
                self._tell(news)

    def _tell(self, news: list[tuple[Job, Message]]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
            self._loop.call_soon_threadsafe(self._deliver, news)

    def _has_work(self) -> bool:
        for generation, job in self._running.items():
            generation.paused = job.exchange.paused
        startable = bool(self._waiting) and self._engine.free > 0
        moving = any(not generation.paused for generation in self._running)
        return self._closed or bool(self._cancelled) or startable or moving

    def _start(self, news: list[tuple[Job, Message]]) -> None:
        while self._engine.free:
            with self._wake:
                if not self._waiting:
                    return
                job = self._waiting.popleft()
            try:
                job.generation = self._engine.start(job.task)
            except TinylmError as error:
                news.append((job, failed(error)))
                continue
            except Exception:
                self.report(traceback.format_exc())
                news.append((job, internal()))
                continue
            self._running[job.generation] = job
            generation = job.generation
            news.append((job, Begun(generation.slot, generation.reused, time.perf_counter())))

    def _step(self, news: list[tuple[Job, Message]]) -> None:
        if not any(not generation.paused for generation in self._running):
            return
        for generation, outcome in self._engine.step():
            job = self._running[generation]
            if isinstance(outcome, Sampled):
                counts = (generation.drafted, generation.accepted)
                news.append((job, Token(outcome, time.perf_counter(), *counts)))
                if outcome.end is not None:
                    del self._running[generation]
            else:
                del self._running[generation]
                news.append((job, failed(outcome)))
        for generation, job in self._running.items():
            window = generation.window
            if job.exchange.watched and not generation.stream.tokens and window.read > job.read:
                job.read = window.read
                # Under the policies mask and reset a prompt counts from its last boundary.
                skipped = len(job.task.prompt) - len(window.tokens)
                news.append((job, Read(skipped + window.read, time.perf_counter())))


def failed(error: TinylmError) -> Refusal:
    """What a client is told of an error in the engine."""
    if isinstance(error, Refusal):
        return error
    return Refusal(400 if isinstance(error, ConflictError) else 500, str(error))


def internal() -> Refusal:
    return Refusal(500, "internal error; the server's log has the traceback")


def stopping() -> Refusal:
    return Refusal(503, "the server is stopping; send the request to it again when it is back")
