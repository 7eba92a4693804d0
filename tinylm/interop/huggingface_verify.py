"""An exported folder, loaded by transformers and tokenizers and compared with the model that it came from."""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE
from tinylm.errors import CheckpointError, TinylmError
from tinylm.interop.huggingface_tokenizer import BOUNDARY_TEXT, TOKENIZER, vocabulary
from tinylm.model import Transformer
from tinylm.tokenizer import encode

TOLERANCE = 1e-4
"""How far two logits may differ in float32, unless float32 itself is less exact than that."""

GREEDY = 64
ROWS, COLUMNS = 2, 512

PROBES = (
    "",
    " two  spaces, and at the end ",
    "don't it's we'll I'D !? ., ;:",
    "line\nline\r\nline\rtab\tform\fend\n\n",
    "".join(map(chr, range(0x20))) + "\x7f\x80\x9f\xa0\xad",
    "\ufeffmark \u200b\u200d\u2028\u2029\ufffd\uffff",
    "e\u0301 \u00e9 \u1e9b\u0323 \ufb01 \u2460 \u212b",
    "안녕하세요 日本語 中文 العربية עברית हिन्दी தமிழ் ไทย ქართული հայերեն Ελληνικά кириллица",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇰🇷 𝔘𐍈 \U0010ffff",
    "\u2581 Ġ Ċ Ā ā ▁word",
    f"a {BOUNDARY_TEXT}b{BOUNDARY_TEXT}",
    BOUNDARY_TEXT,
    "<s></s><unk><pad><|endoftext|><|im_start|>",
)
"""Texts that tokenizers are known to change: each must give its bytes, and come back."""


def verify_huggingface(model: Transformer, folder: Path) -> list[str]:
    """Load `folder` in what is installed of transformers and tokenizers; gives a line per check that ran.

    Raises CheckpointError where the other program finds something else than `model`. Where neither is
    installed, the one line says that nothing was checked.
    """
    lines = []
    if importlib.util.find_spec("tokenizers") is not None:
        lines += verify_tokenizers(folder)
    if (obstacle := transformers_obstacle()) is not None:
        return [*lines, f"{'weights not' if lines else 'nothing was'} checked: {obstacle}"]
    transformers = importlib.import_module("transformers")
    with quiet(transformers):
        lines += verify_transformers(model, folder, transformers)
    gc.collect()  # its tensors may be mapped files, and the folder is about to be renamed
    return lines


def transformers_obstacle() -> str | None:
    """Why transformers cannot check a model here, and what to do; None where it can."""
    wanted = "pip install 'transformers>=4.57', and export again"
    if importlib.util.find_spec("transformers") is None:
        return f"transformers is not installed; {wanted}"
    try:
        transformers = importlib.import_module("transformers")
        if not hasattr(transformers, "Qwen3ForCausalLM"):
            return f"transformers {transformers.__version__} does not know Qwen3; {wanted}"
    except (ImportError, RuntimeError) as error:
        return f"transformers is installed but cannot be imported ({' '.join(str(error).split())}); {wanted}"
    return None


@contextlib.contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """transformers without its warnings and progress bars inside, and as it was afterwards."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def verify_tokenizers(folder: Path) -> list[str]:
    """The file tokenizer.json in the library that reads it."""
    tokenizers = importlib.import_module("tokenizers")
    name = f"tokenizers {tokenizers.__version__}"
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))
    if tokenizer.get_vocab(with_added_tokens=True) != vocabulary():
        raise disagreement(name, "has another vocabulary than the 257 entries")
    for text in PROBES:
        compare_text(name, text, tokenizer.encode(text).ids, tokenizer.decode(list(encode(text))))
    return [f"{name}: {VOCABULARY_SIZE} entries, {len(PROBES)} texts give their bytes and come back"]


def verify_transformers(model: Transformer, folder: Path, transformers: Any) -> list[str]:
    """The whole folder in transformers: names, numbers, greedy tokens, the end, the tokenizer."""
    name = f"transformers {transformers.__version__}"
    try:
        return [f"{name}: {line}" for line in compare_all(name, model, folder, transformers)]
    except TinylmError:
        raise
    except Exception as error:  # of whatever kind: the folder does not work there
        raise disagreement(name, f"does not run it ({type(error).__name__}: {error})") from error


def compare_all(name: str, model: Transformer, folder: Path, transformers: Any) -> list[str]:
    """The checks one after the other; a line for each."""
    dtype = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
    other, loading = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, local_files_only=True, **{dtype: "auto"}
    )
    found = {kind: list(loading[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    if any(found.values()):
        raise disagreement(name, f"does not take all tensors: {json.dumps(found, default=str)}")
    other.eval()
    lines = ["loads, no tensor missing, unexpected or mismatched"]
    with torch.inference_mode():
        line, allowed = compare_logits(name, model, other)
        lines += [line, compare_greedy(name, model, other, allowed)]
        compare_end(name, other, transformers)
    lines.append(f"generation stops at a new {DOC_BOUNDARY}, and at none that it was given")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if tokenizer.eos_token_id != DOC_BOUNDARY or tokenizer.get_vocab() != vocabulary():
        raise disagreement(name, "has another vocabulary than the 257 entries, or another end of text")
    for text in PROBES:
        back = tokenizer.decode([DOC_BOUNDARY, *encode(text), DOC_BOUNDARY], skip_special_tokens=True)
        compare_text(name, text, tokenizer(text)["input_ids"], back)
    lines.append(f"{len(PROBES)} texts give their bytes and come back, {BOUNDARY_TEXT} is 7 of them")
    return lines


def compare_logits(name: str, model: Transformer, other: Any) -> tuple[str, float]:
    """Logits at every position of fixed rows, up to the whole window (512 tokens of it).

    Gives the line and the difference that is allowed: 1e-4, or four times what this model loses in float32
    (a large model with large logits loses about that much).
    """
    ids_BT = fixed_ids(ROWS, min(COLUMNS, model.config.window))
    ours_BTV, theirs_BTV = model(ids_BT), other(ids_BT).logits
    if theirs_BTV.shape != ours_BTV.shape:
        raise disagreement(name, f"gives logits {list(theirs_BTV.shape)}, expected {list(ours_BTV.shape)}")
    largest, allowed = float((ours_BTV - theirs_BTV).abs().max()), TOLERANCE
    if largest > allowed:
        exact_BTV = copy.deepcopy(model).double()(ids_BT)
        allowed = max(TOLERANCE, 4 * float((ours_BTV - exact_BTV).abs().max()))
    if not largest <= allowed:
        raise disagreement(name, f"logits differ by {largest:.3g}, expected at most {allowed:.3g}")
    rows, columns = ids_BT.shape
    return f"logits of {rows} x {columns} tokens differ by {largest:.1e} at most", allowed


def compare_greedy(name: str, model: Transformer, other: Any, allowed: float) -> str:
    """What transformers writes greedily is what the model would; where its two best tie, either is right."""
    prompts = ([DOC_BOUNDARY], [DOC_BOUNDARY, *encode("The ")], fixed_ids(1, 8)[0].tolist())
    tokens = ties = 0
    for prompt in prompts:
        room = min(GREEDY, model.config.window - len(prompt))
        if room < 1:
            continue
        ids_BT = torch.tensor([prompt])
        out_BT = other.generate(
            ids_BT, attention_mask=torch.ones_like(ids_BT), max_new_tokens=room, do_sample=False, top_k=None
        )
        written_T = out_BT[0, len(prompt) :]
        logits_TV = model(out_BT)[0, len(prompt) - 1 : -1]
        for position, (token, logits_V) in enumerate(zip(written_T.tolist(), logits_TV, strict=True)):
            best = int(logits_V.argmax())
            if token == best:
                continue
            if float(logits_V[best] - logits_V[token]) > allowed:
                raise disagreement(name, f"greedy token {position} is {token}, expected {best}")
            ties += 1
        if DOC_BOUNDARY not in written_T and len(written_T) != room:
            raise disagreement(name, f"stopped after {len(written_T)} of {room} tokens, without a boundary")
        tokens += len(written_T)
    return f"{tokens} greedy tokens equal ({ties} of them where two tie within {allowed:.2g})"


def compare_end(name: str, other: Any, transformers: Any) -> None:
    """Generation that is made to draw 256 as its third token ends there; those of the prompt end nothing."""

    class Third(transformers.LogitsProcessor):  # type: ignore[misc]
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            token = DOC_BOUNDARY if input_ids.shape[1] == given + 2 else 97
            chosen = torch.full_like(scores, -torch.inf)
            chosen[:, token] = 0.0
            return chosen

    window = other.config.max_position_embeddings
    prompt = [DOC_BOUNDARY, 98, DOC_BOUNDARY][: max(1, window - 4)]
    given = len(prompt)
    ids_BT = torch.tensor([prompt])
    out_BT = other.generate(
        ids_BT,
        attention_mask=torch.ones_like(ids_BT),
        max_new_tokens=5,
        logits_processor=transformers.LogitsProcessorList([Third()]),
    )
    expected = [*prompt, 97, 97, DOC_BOUNDARY]
    if out_BT[0].tolist() != expected:
        raise disagreement(name, f"generates {out_BT[0].tolist()}, expected {expected}: it ends elsewhere")


def compare_text(name: str, text: str, ids: list[int], back: str) -> None:
    """A text's ids are its bytes, and its bytes are the text."""
    if list(ids) != list(encode(text)):
        raise disagreement(name, f"makes {list(ids)} of the text {text!r}, expected {list(encode(text))}")
    if back != text:
        raise disagreement(name, f"decodes the bytes of {text!r} to {back!r}")


def fixed_ids(rows: int, columns: int) -> Tensor:
    """Rows [B, T] of any of the 257 ids, a boundary first; always the same."""
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(0, VOCABULARY_SIZE, (rows, columns), generator=generator)
    ids_BT[:, 0] = DOC_BOUNDARY
    return ids_BT


def disagreement(name: str, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{name}: {problem}; nothing was exported. If that version is meant to work, please report it"
    )
