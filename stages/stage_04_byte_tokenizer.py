"""Stage 04: bytes as tokens, and one document boundary instead of a beginning and an end."""

import sys
from collections.abc import Callable

import torch

from tinylm import contract, tokenizer
from tinylm.walkthrough import Lab, Stage, figures

STAGE = Stage(
    number=4,
    title="byte tokenizer",
    question="One boundary between documents, or a beginning and an end?",
    hypothesis="One is enough: in a stream, the end of one document is the beginning of the next. The second "
    "token costs a row in the embedding, a row in the head and a token per document, and decides nothing.",
    experiment="build the stream of two documents both ways; count tokens, parameters, and what a generator "
    "can decide with them",
    next="Is a shape a comment or a contract?",
)
WIDTH = 16
DOCUMENTS = ("ab", "ba")
GREETING = "안녕"
TYPED = "<|doc|>"


def one_boundary(documents: tuple[str, ...]) -> list[int]:
    """The stream of this library: a boundary opens the first document and ends every one."""
    stream = [contract.DOC_BOUNDARY]
    for document in documents:
        stream += [*tokenizer.encode(document), contract.DOC_BOUNDARY]
    return stream


def begin_and_end(documents: tuple[str, ...]) -> list[int]:
    """The usual alternative: BOS (256) before and EOS (257) after every document."""
    return [token for document in documents for token in (256, *tokenizer.encode(document), 257)]


def not_text(stream: list[int]) -> int:
    """How many tokens of a stream stand for no byte."""
    return sum(token >= 256 for token in stream)


def token_parameters(vocabulary: int, width: int = WIDTH) -> int:
    """Embedding and untied head: 2VD."""
    return 2 * vocabulary * width


def characters_with_fallback(text: str) -> int:
    """Vocabulary of a text's characters, plus 256 byte tokens for all others, plus one boundary."""
    return len(set(text)) + 256 + 1


def attention_to_the_first_document(stream: list[int]) -> float:
    """What share of causal attention the last byte of a stream gives to the first document in it."""
    ids = torch.tensor(stream[:-1])
    end = stream.index(contract.DOC_BOUNDARY, 1)
    first = torch.zeros(len(ids), 1)
    first[1:end] = 1.0
    onehot = torch.nn.functional.one_hot(ids, contract.VOCABULARY_SIZE).float()
    return float(torch.nn.functional.scaled_dot_product_attention(onehot, onehot, first, is_causal=True)[-1])


def experiment(lab: Lab) -> None:
    ours, theirs = one_boundary(DOCUMENTS), begin_and_end(DOCUMENTS)
    mixed = characters_with_fallback("".join(DOCUMENTS))
    lab.table(
        ["vocabulary", "size", "tokens", "parameters (D = 16)", "spellings of ab", "documents end at"],
        [
            ["bytes, boundary", 257, len(ours), token_parameters(257), 1, "256"],
            ["bytes, BOS, EOS", 258, len(theirs), token_parameters(258), 1, "257, or 256"],
            ["characters, bytes, boundary", mixed, len(ours), token_parameters(mixed), 2 ** len("ab"), "256"],
        ],
    )
    lab.note(f"tokens of the stream of ab, ba\none boundary  {ours}\nBOS and EOS   {theirs}")
    lab.value("tokens_one", len(ours))
    lab.value("tokens_two", len(theirs))
    lab.value("alone_one", len(one_boundary(DOCUMENTS[:1])))
    lab.value("alone_two", len(begin_and_end(DOCUMENTS[:1])))
    lab.value("parameters_one", token_parameters(257))
    lab.value("parameters_two", token_parameters(258))
    lab.value("parameters_apart", token_parameters(258) - token_parameters(257))
    ways = {"BOS and EOS": begin_and_end, "one boundary": one_boundary}
    added = {
        name: [(n, not_text(stream((DOCUMENTS * n)[:n]))) for n in range(1, 101)]
        for name, stream in ways.items()
    }
    lab.figure(
        lambda: figures.lines(added, x="documents in the stream", y="tokens that are not text", marks=False)
    )
    lab.value("hundred_two", added["BOS and EOS"][-1][1])
    lab.value("hundred_one", added["one boundary"][-1][1])

    typed = tokenizer.encode(TYPED)
    raw = bytes([65, 255, 66])
    lab.value("typed_tokens", len(typed))
    lab.table(
        ["given", "function", "result"],
        [
            [f'text "{TYPED}"', "encode", str(typed)],
            ["65 255 66", "decode_bytes", repr(tokenizer.decode_bytes(list(raw)))],
            ["65 255 66", "decode_text", refusal(tokenizer.decode_text, list(raw))],
            ["65 256 66", "decode_bytes", refusal(tokenizer.decode_bytes, [65, 256, 66])],
            ["256 65 256", "decode_document", repr(tokenizer.decode_document([256, 65, 256]))],
            ["256 65 255 256", "debug_decode", repr(tokenizer.debug_decode([256, 65, 255, 256]))],
        ],
    )
    across = lab.value("attention_across", attention_to_the_first_document(ours))
    lab.note(
        f"no wall: under plain causal attention the last byte of document 2 gives {across:.3f} to document 1"
    )
    characters, tokens = len(GREETING), len(tokenizer.encode(GREETING))
    lab.value("greeting_characters", characters)
    lab.value("greeting_tokens", tokens)
    lab.value("attention_worst", (4 * characters) ** 2 / characters**2)
    lab.otherwise(
        "A document that stands alone costs the same both ways, 4 tokens for ab: the second token is paid "
        f'once per join. And a user who types "{TYPED}" has typed seven bytes, which must stay seven bytes '
        "everywhere: a tokenizer that looks for the spelling hands every reader of a web form the power to "
        "end documents. A vocabulary of characters with byte fallback spells one text in several ways, so a "
        "protocol on top of it must also say which spelling counts, what a byte token inside a known "
        "character means, and where the list of characters is kept."
    )
    lab.costs(
        f"{GREETING} is {characters} characters and {tokens} tokens; a text of N characters has N to 4N "
        "tokens, so attention costs up to (4N)²/N² = 16 times as much, the linear layers up to 4 times. A "
        "mistake in this room reaches every corpus, checkpoint and export: that is why all of them carry "
        "its four values."
    )
    lab.proves(
        "that one boundary says everything that two say, in fewer tokens (7 instead of 8 here) and "
        "32 parameters fewer, and that no text can forge it.",
        does_not_prove="that a boundary keeps documents apart: attention reads across it, as the line above "
        "shows (stage 15). It is a protocol, not a wall.",
    )
    lab.check("the stream of two documents", ours == [256, 97, 98, 256, 98, 97, 256])
    lab.check("parameters", (token_parameters(257), token_parameters(258)) == (8224, 8256))
    lab.check("typed boundary stays text", typed == (60, 124, 100, 111, 99, 124, 62))
    lab.check("N <= T <= 4N", characters <= tokens <= 4 * characters)
    lab.check("0xFF survives", tokenizer.decode_bytes(list(raw)) == raw)
    lab.check("a boundary is no wall", across > 0.3)


def refusal(decode: Callable[[list[int]], object], ids: list[int]) -> str:
    """What a decoder says when it refuses."""
    try:
        return repr(decode(ids))
    except ValueError as error:
        return f"refused: {str(error).partition(';')[0]}"


if __name__ == "__main__":
    sys.exit(STAGE.main(experiment))
