"""The audit: which requests are sent, in which order, and what becomes of their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tinylm.config import AuditConfig
from tinylm.errors import RequestError
from tinylm.serve.audit.answers import Answer, Answers, Refusal, ask
from tinylm.serve.audit.cases import CASES, FACES, NO_SYMBOLS, PROMPTS, Case, ids_grammar, literal
from tinylm.serve.audit.checks import Request, check, compare, counted
from tinylm.serve.audit.client import Lost, Server
from tinylm.serve.audit.sse import Finding

Group = Literal["forced", "free", "constrained", "chain"]

GIVE_UP = 3
"""Requests in a row without any answer after which the server is taken to be gone."""


@dataclass
class Run:
    """One request, with stream and without (a link of the chain: with stream only), and what was found."""

    group: Group
    name: str
    body: dict[str, Any]
    stream: Answer | None = None
    whole: Answer | None = None
    findings: list[Finding] = field(default_factory=list)
    refused: str | None = None

    @property
    def broken(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.broken]

    @property
    def sampled(self) -> int | None:
        """How many ids the server says that it sampled; the larger where its two answers differ."""
        counts = [a.predicted for a in (self.stream, self.whole) if a is not None and a.predicted is not None]
        if self.whole is not None:
            counts.append(len(self.whole.ids))
        return max(counts, default=None)

    @property
    def lost(self) -> int:
        """Ids that were sampled and did not come with the stream."""
        return max(0, (self.sampled or 0) - len(self.stream.ids)) if self.stream is not None else 0

    @property
    def counted(self) -> bool:
        """Whether all counts agree; a run whose counts do not stays in the record, outside averages."""
        return self.stream is not None and counted(self.stream, self.whole or self.stream)

    def to_dict(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "case": self.name,
            "request": self.body,
            "refused": self.refused,
            "sampled": self.sampled,
            "received": None if self.stream is None else len(self.stream.ids),
            "counted": self.counted,
            "stream": None if self.stream is None else self.stream.to_dict(),
            "whole": None if self.whole is None else self.whole.to_dict(),
            "findings": [vars(finding) for finding in self.findings],
        }


@dataclass
class Audit:
    """Everything an audit has seen. `notes` says what could not be asked, and why."""

    url: str
    facts: dict[str, Any]
    runs: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def broken(self) -> list[Run]:
        return [run for run in self.runs if run.broken]

    @property
    def lost(self) -> int:
        return sum(run.lost for run in self.runs)

    @property
    def exit_code(self) -> int:
        return 1 if self.broken else 0

    def averages(self) -> dict[str, dict[str, Any]]:
        """Per group, over the runs whose counts agree; forced, free and constrained runs never mix."""
        found: dict[str, dict[str, Any]] = {}
        for group in dict.fromkeys(run.group for run in self.runs):
            runs = [run for run in self.runs if run.group == group]
            answers = [run.stream for run in runs if run.counted and run.stream is not None]
            ids = sum(len(answer.ids) for answer in answers)
            characters = sum(len(answer.text) for answer in answers)
            seconds = sum(answer.total_ms or 0.0 for answer in answers) / 1000
            firsts = [answer.first_ms for answer in answers if answer.first_ms is not None]
            found[group] = {
                "runs": len(runs),
                "refused": sum(run.refused is not None for run in runs),
                "counted": len(answers),
                "ids": ids,
                "ids_per_run": ids / len(answers) if answers else None,
                "ids_per_character": ids / characters if characters else None,
                "ids_per_second": ids / seconds if seconds else None,
                "first_id_ms": sum(firsts) / len(firsts) if firsts else None,
            }
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": 1,
            "url": self.url,
            "server": self.facts,
            "notes": self.notes,
            "runs": [run.to_dict() for run in self.runs],
            "averages": self.averages(),
            "verdict": {
                "exact": not self.broken,
                "runs": len(self.runs),
                "broken_runs": len(self.broken),
                "refused_runs": sum(run.refused is not None for run in self.runs),
                "ids_lost": self.lost,
            },
        }


def audit(url: str, config: AuditConfig, progress: Callable[[Run], None] = lambda run: None) -> Audit:
    """Audit a server; `progress` is called with each run. RequestError: an unusable URL or answer."""
    auditor = Auditor(Server(url, config.api_key, config.timeout), config)
    for run in auditor.runs():
        auditor.audit.runs.append(run)
        progress(run)
    return auditor.audit


class Auditor:
    """Sends the requests; knows what the server can do once `probe` has asked."""

    def __init__(self, server: Server, config: AuditConfig) -> None:
        self.server = server
        self.config = config
        self.prompts = config.prompts or PROMPTS
        self.grammar = False
        self.names_ids = False
        self.bytes_vocabulary = False
        self.context: int | None = None
        self.unanswered = 0
        self.audit = Audit(server.url, {})

    def body(self, prompt: Any, n_predict: int, **more: Any) -> dict[str, Any]:
        """A request, greedy unless `more` says otherwise; no prompt cache, which may change results."""
        settings = {
            "temperature": 0.0,
            "seed": self.config.seed,
            "cache_prompt": False,
            "return_tokens": True,
        }
        return {"prompt": prompt, "n_predict": n_predict, **settings, **more}

    def runs(self) -> Iterator[Run]:
        """Every run of the audit, as it is done; ends early where the server is gone."""
        self.probe()
        for plan in (self.forced, self.free, self.constrained, self.chain):
            for run in plan():
                yield run
                if self.unanswered >= GIVE_UP:
                    self.audit.notes.append(f"stopped: {GIVE_UP} requests in a row had no answer")
                    return

    def probe(self) -> None:
        """What the server says of itself, and whether grammars work and ids are bytes.

        Raises RequestError where it does not answer as a llama-server does.
        """
        where = f"{self.server.url}/completion"
        try:
            answers = ask(self.server, {**self.body(self.prompts[0] or "A", 2), "stream": False})
        except Lost as error:
            raise RequestError(f"{where}: {error}; expected a server that runs there") from None
        if isinstance(answers, Refusal):
            way = {401: "; give its key with --api-key", 404: "; expected the address before /completion"}
            raise RequestError(
                f"{where}: status {answers.status}, {answers.message}{way.get(answers.status, '')}"
            )
        answer = answers[0]
        if not answer.ended or answer.predicted is None or not answer.ids:
            told = "; ".join(finding.text for finding in answer.findings) or "no ids"
            raise RequestError(f"{where}: not the answer of a llama-server ({told}); see POST /completion")
        self.ask_properties()
        self.probe_grammar()
        self.audit.facts |= {
            "grammar": self.grammar,
            "grammar_names_ids": self.names_ids,
            "vocabulary": "bytes" if self.bytes_vocabulary else "unknown",
        }

    def ask_properties(self) -> None:
        properties = self.server.json("/props")
        if isinstance(properties, dict):
            kept = ("build_info", "model_alias", "model_path", "total_slots")
            self.audit.facts |= {name: properties[name] for name in kept if name in properties}
            settings = properties.get("default_generation_settings")
            context = settings.get("n_ctx") if isinstance(settings, dict) else None
            if isinstance(context, int) and context > 0:
                self.context = context
                self.audit.facts["n_ctx"] = context

    def probe_grammar(self) -> None:
        text = "A😊"
        data = text.encode("utf-8")
        answer = self.forced_answer(literal(data), len(data))
        if isinstance(answer, str):
            self.audit.notes.append(f"no case is forced: {answer}")
            return
        if answer.text != text:
            self.audit.notes.append("no case is forced: the server does not follow `grammar`")
            return
        self.grammar = True
        ids = answer.ids
        self.bytes_vocabulary = ids[: len(data)] == tuple(data) and all(
            token > 255 for token in ids[len(data) :]
        )
        if not self.bytes_vocabulary:
            self.audit.notes.append("ids are not bytes: cases of ill-formed bytes are left out")
            return
        named = self.forced_answer(ids_grammar(b"A\xff"), 2)
        self.names_ids = not isinstance(named, str) and named.ids[:2] == (65, 255)
        if not self.names_ids:
            why = named if isinstance(named, str) else "it does not follow ids in a grammar"
            self.audit.notes.append(f"cases of ill-formed bytes and NUL are left out: {why}")

    def forced_answer(self, grammar: str, length: int) -> Answer | str:
        """The answer to one forced request without stream, or why there is none."""
        try:
            answers = ask(self.server, {**self.body("A", length + 8, grammar=grammar), "stream": False})
        except Lost as error:
            return str(error)
        return f"status {answers.status}, {answers.message}" if isinstance(answers, Refusal) else answers[0]

    def forced(self) -> Iterator[Run]:
        """The cases, then every limit within the three emoji."""
        if not self.grammar:
            return
        faces = FACES.encode("utf-8")
        done = {(case.data, case.limit) for case in CASES if not case.stop}
        sweep = [Case(f"{FACES} limit {limit}", faces, (), limit) for limit in range(1, len(faces) + 2)]
        for case in (*CASES, *(case for case in sweep if (case.data, case.limit) not in done)):
            needs_ids = case.text is None or "\0" in case.text
            if needs_ids and not self.names_ids:
                continue
            grammar = ids_grammar(case.data) if needs_ids else literal(case.data)
            limit = len(case.data) + 8 if case.limit is None else case.limit
            more = {"stop": list(case.stop)} if case.stop else {}
            body = self.body("A", limit, grammar=grammar, **more)
            yield from self.both("forced", case.name, body, data=case.data)

    def free(self) -> Iterator[Run]:
        """What the model writes by itself: greedy and drawn, cut by a stop string, with progress events."""
        length = self.config.tokens
        for prompt in self.prompts:
            name = f"prompt {prompt!r}"
            greedy = list(self.both("free", f"{name}, greedy", self.body(prompt, length)))
            yield from greedy
            drawn = self.body(prompt, length, temperature=1.0)
            yield from self.both("free", f"{name}, seed {self.config.seed}", drawn)
            word = middle(greedy[0].whole.text) if greedy[0].whole is not None else ""
            if word:
                yield from self.both("free", f"{name}, stop {word!r}", self.body(prompt, length, stop=[word]))
        first = self.prompts[0] or "A"
        body = self.body(first, min(length, 8), return_progress=True)
        yield from self.both("free", f"prompt {first!r}, progress events", body)
        yield from self.both("free", "two prompts", self.body([first, f"{first} {first}"], min(length, 8)))

    def constrained(self) -> Iterator[Run]:
        """The same prompts under a grammar without symbols: another distribution, averaged apart."""
        if not self.grammar:
            return
        for prompt in self.prompts:
            body = self.body(prompt, self.config.tokens, temperature=1.0, grammar=NO_SYMBOLS)
            yield from self.both("constrained", f"prompt {prompt!r}, no emoji", body)

    def chain(self) -> Iterator[Run]:
        """Each link is fed the ids of all before, and must say that it read as many."""
        fed: list[int] = []
        for link in range(self.config.chain):
            seed = self.config.seed + link
            prompt: Any = list(fed) if link else self.prompts[0] or "A"
            body = self.body(prompt, self.config.tokens, temperature=1.0, seed=seed)
            run = self.one("chain", f"link {link}: {len(fed)} ids fed" if link else "link 0: text fed", body)
            if run.stream is not None and link and run.stream.evaluated != len(fed):
                text = f"tokens_evaluated is {run.stream.evaluated} where {len(fed)} ids were fed"
                run.findings.append(Finding("I2", text))
            yield run
            if run.stream is None or not run.stream.ids:
                self.audit.notes.append(f"the chain ends at link {link}: no ids to go on with")
                return
            fed += run.stream.ids
            if self.context is not None and len(fed) + self.config.tokens > self.context:
                fed = fed[-max(1, self.context // 2 - self.config.tokens) :]

    def one(self, group: Group, name: str, body: dict[str, Any]) -> Run:
        """A request with stream only."""
        run = Run(group, name, body)
        answers = self.answers(run, stream=True)
        if answers is not None:
            run.stream = answers[0]
            run.findings += check(run.stream, self.request(body, None), stream=True)
        return run

    def both(self, group: Group, name: str, body: dict[str, Any], data: bytes | None = None) -> Iterator[Run]:
        """A request with stream and without; a run for each of its prompts."""
        first = Run(group, name, body)
        streams = self.answers(first, stream=True)
        wholes = self.answers(first, stream=False) if streams is not None else None
        if streams is None or wholes is None:
            if streams is not None:
                first.stream = streams[0]
            yield first
            return
        prompts = body["prompt"] if len(streams) > 1 else [body["prompt"]]
        for index, stream in streams.items():
            run = (
                first if len(streams) == 1 else Run(group, f"{name}, the {('first', 'second')[index]}", body)
            )
            run.stream, run.whole = stream, wholes[index]
            request = self.request({**body, "prompt": prompts[index]}, data)
            run.findings += check(run.stream, request, stream=True)
            run.findings += [
                Finding(found.invariant, f"without stream: {found.text}", found.broken)
                for found in check(run.whole, request, stream=False)
            ]
            differences = compare(run.stream, run.whole)
            if differences and counted(stream, stream) and counted(run.whole, run.whole):
                differences = self.excused(differences, run, index)
            run.findings += differences
            yield run

    def excused(self, differences: list[Finding], run: Run, index: int) -> list[Finding]:
        """A server that answers the same request in two ways cannot be compared with itself."""
        again = self.answers(Run(run.group, run.name, run.body), stream=False)
        assert run.whole is not None
        if again is None or again[index].ids == run.whole.ids:
            return differences
        text = "the same request without stream gave two results, so the stream cannot be compared with one"
        return [Finding("I3", text, broken=False)]

    def answers(self, run: Run, stream: bool) -> dict[int, Answer] | None:
        """Ask; a refusal or a silence is noted in the run."""
        answers: Answers
        try:
            answers = ask(self.server, {**run.body, "stream": stream})
        except Lost as error:
            self.unanswered += 1
            run.findings.append(Finding("I7", f"no answer: {error}"))
            return None
        self.unanswered = 0
        if isinstance(answers, Refusal):
            run.refused = f"status {answers.status}: {answers.message}"
            if answers.status >= 500 and answers.status != 501:
                run.findings.append(Finding("I11", run.refused))
            return None
        return answers

    def request(self, body: Mapping[str, Any], data: bytes | None) -> Request:
        stop: Sequence[str] = body.get("stop", ())
        empty = body["prompt"] == ""
        return Request(body["n_predict"], tuple(stop), data, self.bytes_vocabulary, empty)


def middle(text: str) -> str:
    """A stop string out of the middle of a text, of whole characters; empty where there is none."""
    start = len(text) // 2
    word = text[start : start + 3]
    return word if word.strip() and "\ufffd" not in word and "\0" not in word else ""
