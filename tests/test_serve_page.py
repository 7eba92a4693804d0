"""The page at /: driven in a real browser against the real server, with a model whose bytes are known."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shutil
import threading
import time
import unittest
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tests.scripted import UNLIKELY
from tests.serve_support import Playable, Serving, serving
from tests.stage_support import ROOT
from tinylm.bit_pictures.page import STEPS
from tinylm.bit_pictures.style import LEVELS
from tinylm.contract import DOC_BOUNDARY, VOCABULARY_SIZE

PAGE = (ROOT / "tinylm" / "serve" / "page" / "index.html").read_text("utf-8")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = [
    *(name for name in ("playwright", "starlette", "uvicorn") if importlib.util.find_spec(name) is None),
    *([] if CHROMIUM else ["a chromium"]),
]
WEIGHTS = (3.0, 1.0, 0.0)
"""Logits of the byte that is scripted and of two others at each place; the rest cannot be drawn."""

LIKELY = math.exp(3) / sum(map(math.exp, WEIGHTS))
SECONDS = 10_000.0
"""Milliseconds for which the browser waits for something."""


def wavering(script: Sequence[int], window: int = 256) -> Playable:
    """A model that most likely writes a script, after a prompt of one token; else other letters."""
    tokens = [*script, DOC_BOUNDARY]
    logits_PV = np.full((len(tokens), VOCABULARY_SIZE), UNLIKELY)
    for place, token in enumerate(tokens):
        logits_PV[place, [token, 113, 122]] = WEIGHTS  # q and z
    model = Playable(window=window)
    model._logits_PV = torch.from_numpy(logits_PV)
    return model


def gated(script: Sequence[int]) -> Playable:
    """The same, computing only as often as it is let."""
    model = wavering(script)
    model.permits = threading.Semaphore(0)
    return model


def permit(model: Playable, passes: int = 1) -> None:
    assert model.permits is not None
    model.permits.release(passes)


class Static(unittest.TestCase):
    """What can be seen without a browser."""

    def test_colours_are_those_of_the_bit_pictures(self) -> None:
        light, dark = (
            dict(re.findall(r"--([lk]\d): (#[0-9a-f]{6});", part))
            for part in (PAGE.split("@media (prefers-color-scheme: dark)")[i] for i in (0, 1))
        )
        for index, (on_light, on_dark) in enumerate(LEVELS):
            self.assertEqual((light[f"l{index}"], light[f"k{index}"]), on_light)
            self.assertEqual((dark[f"l{index}"], dark[f"k{index}"]), on_dark)
        steps = re.search(r"const STEPS = (\[.*?\]);", PAGE)
        assert steps is not None
        self.assertEqual(tuple(json.loads(steps[1])), STEPS)

    def test_it_is_one_file_that_a_strict_policy_lets_run(self) -> None:
        self.assertEqual((PAGE.count("<script"), PAGE.count("<style")), (1, 1))
        body = PAGE.partition("<body")[2].partition("<script>")[0]
        self.assertIsNone(re.search(r"\s(style|on\w+)=", body), "an attribute that the policy would block")
        self.assertIsNone(re.search(r"(src|href)=\"(?!data:)", PAGE), "something outside of the file")
        self.assertIsNone(re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\b", PAGE))


@unittest.skipIf(bool(MISSING), f"no {', '.join(MISSING)}")
class InABrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        from playwright.sync_api import sync_playwright

        playwright = sync_playwright().start()
        cls.addClassCleanup(playwright.stop)
        arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        cls.browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        cls.addClassCleanup(cls.browser.close)

    @contextmanager
    def opened(
        self, model: Playable, key: str | None = None, **options: Any
    ) -> Iterator[tuple[Any, Serving]]:
        """The page in a new window, on a server of its own. Nothing may go wrong that a user does not see."""
        troubles: list[str] = []
        with serving(model, key=key) as server, self.browser.new_context(**options) as context:
            page = context.new_page()
            page.set_default_timeout(SECONDS)
            page.on("console", lambda message: troubles.append(f"console: {message.text}"))
            page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
            page.on("dialog", lambda dialog: troubles.append(f"dialog: {dialog.message}"))
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            url = f"http://127.0.0.1:{server.port}"
            page.goto(url)
            page.wait_for_selector("#model:text('window'), #alarm:visible")
            yield page, server
            foreign = [found for found in asked if not found.startswith((url, "data:"))]
        refused = [trouble for trouble in troubles if "401" in trouble or "400" in trouble]
        self.assertEqual([trouble for trouble in troubles if trouble not in refused], [])
        self.assertEqual(foreign, [])

    def generate(self, page: Any, prompt: str = "", wait: bool = True, **fields: str) -> None:
        """Fill in the form and press the button; greedy unless told otherwise."""
        page.evaluate("document.getElementById('sampling').open = true")
        for name, value in {"temperature": "0", **fields}.items():
            page.fill(f"#{name}", value)
        page.fill("#prompt", prompt)
        page.click("#go")
        if wait:
            page.wait_for_selector("body[data-state=over]")

    def cells(self, page: Any, what: str = "#cells i") -> list[str]:
        return page.locator(what).all_text_contents()

    def let(self, model: Playable, page: Any, cells: int) -> None:
        """Let the model compute until so many cells are there."""
        for _ in range(cells + 5):  # a pass may read a prompt and sample nothing
            before = page.locator("#cells i").count()
            if before >= cells:
                return
            permit(model)
            until = time.monotonic() + 3
            while page.locator("#cells i").count() == before and time.monotonic() < until:
                time.sleep(0.01)
        self.fail(f"no {cells} cells")

    def test_korean_and_emoji_arrive_as_bytes_under_their_characters(self) -> None:
        text = "안 😊."
        with self.opened(wavering(text.encode())) as (page, _):
            self.generate(page)
            tiles = self.cells(page)
            self.assertEqual(tiles[:-1], ["boundary", *(f"{byte:02x}" for byte in text.encode())])
            self.assertTrue(tiles[-1].startswith("end of document"))
            self.assertEqual(self.cells(page, "#cells .c b"), ["안", "␣", "😊", "."])
            sizes = page.locator("#cells .c u").evaluate_all("all => all.map(u => u.children.length)")
            self.assertEqual(sizes, [3, 1, 4, 1])
            self.assertEqual(page.locator("#cells .waiting, #cells .bad, #cells .cut").count(), 0)
            self.assertEqual(page.locator("#text").inner_text(), text)
            bits = 10 * -math.log2(LIKELY)
            self.assertEqual(page.inner_text("#n-tokens"), "10")
            self.assertEqual(page.inner_text("#n-bits"), f"{bits:.1f}")
            self.assertEqual(page.inner_text("#n-per-byte"), f"{bits / 9:.2f}")
            self.assertIn("10 ids received, 10 counted by the server", page.inner_text("#status"))
            self.assertIn("ids and text agree", page.inner_text("#status"))
            self.assertEqual(page.locator("#said").text_content(), text)

    def test_held_bytes_are_hollow_until_their_character_is_whole(self) -> None:
        model = gated("안😊".encode())
        with self.opened(model) as (page, _):
            self.generate(page, wait=False)
            seen = []
            for count in range(1, 8):
                self.let(model, page, 1 + count)
                waiting = page.locator("#cells .waiting i").count()
                seen.append((waiting, page.locator("#text").inner_text()))
            self.assertEqual(
                seen,
                [(1, "▯"), (2, "▯▯"), (0, "안"), (1, "안▯"), (2, "안▯▯"), (3, "안▯▯▯"), (0, "안😊")],
            )
            permit(model, 10)
            page.wait_for_selector("body[data-state=over]")

    def test_what_may_begin_a_stop_string_is_held_and_a_whole_one_is_cut(self) -> None:
        model = gated(b"one ST, STOP two")
        with self.opened(model) as (page, _):
            self.generate(page, wait=False, stops="STOP\n\\n\\n")
            self.let(model, page, 1 + 6)
            self.assertEqual(page.locator("#cells .waiting").count(), 2)
            self.let(model, page, 1 + 7)
            self.assertEqual(page.locator("#cells .waiting").count(), 0)
            permit(model, 20)
            page.wait_for_selector("body[data-state=over]")
            self.assertEqual("".join(self.cells(page, "#cells .cut b")), "STOP")
            self.assertEqual(page.locator("#text").inner_text(), "one ST, ")
            self.assertIn('"STOP" is reached. 12 ids received, 12 counted', page.inner_text("#status"))
            self.assertIn("ids and text agree", page.inner_text("#status"))

    def test_ill_formed_bytes_are_shown_as_such(self) -> None:
        with self.opened(wavering(b"A\xff\xf0\x9fB\xc3")) as (page, _):
            self.generate(page)
            self.assertEqual(self.cells(page, "#cells .c b"), ["A", "✗", "✗", "B", "✗"])
            self.assertEqual(page.locator("#text").inner_text(), "A\ufffd\ufffdB\ufffd")
            self.assertIn("ids and text agree", page.inner_text("#status"))

    def test_stop_frees_the_slot_and_continue_feeds_the_ids_back(self) -> None:
        model = gated("안녕하세요. 안녕하세요. 안녕하세요.".encode())
        with self.opened(model) as (page, server):
            self.generate(page, wait=False)
            self.let(model, page, 1 + 5)
            page.click("#stop")
            page.wait_for_selector("body[data-state=over]")
            permit(model, 1000)
            self.assertRegex(page.inner_text("#status"), r"Stopped after \d+ tokens")
            self.assertTrue(server.idle(2), "the slot is still taken")
            given = [DOC_BOUNDARY, *(int(tile, 16) for tile in self.cells(page)[1:])]
            with page.expect_request("**/completion") as caught:
                page.click("#continue")
            self.assertEqual(caught.value.post_data_json["prompt"], given)
            page.wait_for_selector("body[data-state=over]")
            self.assertEqual(page.locator("#text").inner_text(), "안녕하세요. " * 2 + "안녕하세요.")
            self.assertIn(f"ids=-{bytes(given[1:]).hex()}", page.url)

    def test_a_character_that_a_limit_cut_is_joined_when_it_goes_on(self) -> None:
        with self.opened(wavering("안녕".encode())) as (page, _):
            self.generate(page, max="2")
            self.assertEqual((self.cells(page, "#cells .c b"), page.inner_text("#text")), (["✗"], "\ufffd"))
            page.click("#continue")
            page.wait_for_selector("#status:text('agree')")
            page.fill("#max", "9")
            page.click("#continue")
            page.wait_for_selector("#cells .edge:nth-last-child(1) >> text=end of document")
            self.assertEqual(self.cells(page, "#cells .c b"), ["안", "녕"])
            self.assertEqual(page.inner_text("#text"), "안녕")

    def test_it_goes_on_from_the_byte_that_is_chosen(self) -> None:
        with self.opened(wavering(b"abcdef")) as (page, _):
            self.generate(page)
            page.locator("#cells i").nth(3).click()
            with page.expect_request("**/completion") as caught:
                page.click("#from")
            self.assertEqual(caught.value.post_data_json["prompt"], [DOC_BOUNDARY, *b"abc"])
            page.wait_for_selector("body[data-state=over]")
            self.assertEqual(page.inner_text("#text"), "abcdef")

    def test_probabilities_are_shown_on_hover_and_bits_are_the_colour(self) -> None:
        with self.opened(wavering("é!".encode())) as (page, _):
            self.generate(page)
            page.hover("#cells i >> nth=2")
            self.assertEqual(page.inner_text("#what"), "byte a9")
            self.assertEqual(page.inner_text("#role"), "byte 2 of 2 of é U+00E9")
            self.assertIn(
                f"{-math.log2(LIKELY):.2f} bits, probability {LIKELY:.3f}", page.inner_text("#facts")
            )
            rows = page.locator("#others tbody tr").all_inner_texts()
            self.assertIn(f"{LIKELY:.3f}", rows[0])
            self.assertTrue(rows[0].startswith("a9") and rows[1].startswith("71"), rows)
            self.assertEqual(page.locator("#cells i.l0").count(), 4)  # 0.24 bits each
            page.hover("#cells i >> nth=0")
            self.assertIn("Given", page.inner_text("#facts"))

    def test_the_keyboard_is_enough(self) -> None:
        with self.opened(wavering(b"..." + "안!".encode())) as (page, _):

            def tab_to(selector: str) -> None:
                for _ in range(30):
                    if page.locator(selector).evaluate_all("all => all.includes(document.activeElement)"):
                        return
                    page.keyboard.press("Tab")
                self.fail(f"Tab does not reach {selector}")

            page.evaluate("document.getElementById('sampling').open = true")
            tab_to("#temperature")
            page.keyboard.type("0")
            page.evaluate("document.activeElement.blur()")
            tab_to("#prompt")
            page.keyboard.type("한")
            page.keyboard.press("Control+Enter")
            page.wait_for_selector("body[data-state=over]")
            tab_to("#cells i")
            for key in ("End", "ArrowLeft", "ArrowLeft"):
                page.keyboard.press(key)
            focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
            self.assertRegex(
                focused, r"^byte 88, byte 3 of 3 of 안 U\+C548. 0\.\d\d bits, probability 0\.\d+$"
            )
            self.assertEqual(page.inner_text("#what"), "byte 88")
            page.keyboard.press("Enter")
            self.assertIn("Continue from token", page.inner_text("#continue"))
            page.keyboard.press("Escape")
            self.assertNotIn("from", page.inner_text("#continue"))

    def test_a_phone_has_room_for_all_of_it(self) -> None:
        phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
        with self.opened(wavering(b"x" * 180), **phone) as (page, _):
            self.generate(page, "y" * 60)
            page.evaluate("document.getElementById('sampling').open = true")
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 360)
            wide = page.evaluate(
                "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > 360.5"
                " && !e.closest('.unseen')).map(e => e.outerHTML.slice(0, 60))"
            )
            self.assertEqual(wide, [])
            self.assertFalse(page.is_visible("#panel"))
            cell = page.locator("#cells i").nth(100)
            cell.tap()
            self.assertTrue(page.is_visible("#panel"))
            below = cell.evaluate("e => e.getBoundingClientRect().bottom")
            self.assertLess(below, page.locator("#panel").evaluate("e => e.getBoundingClientRect().top"))
            page.tap("#close")
            self.assertFalse(page.is_visible("#panel"))

    def test_what_a_model_writes_stays_text(self) -> None:
        evil = "<img src=x onerror=alert(1)><script>alert(2)</script>&lt;"
        with self.opened(wavering(b"." * 9 + evil.encode())) as (page, _):
            self.generate(page, "<b>hi</b>")
            self.assertEqual(page.inner_text("#text"), "<b>hi</b>" + evil)
            found = page.locator("#text *, #said *, #cells *").evaluate_all(
                "all => all.map(e => e.localName)"
            )
            self.assertLessEqual(set(found), {"span", "div", "b", "u", "i", "p", "br"})

    def test_the_same_link_gives_the_same_text(self) -> None:
        with self.opened(wavering("안녕하세요, 세계.".encode())) as (page, _):
            self.generate(page, temperature="3", seed="7", stops="\\n", max="18")
            page.evaluate("document.getElementById('anew').checked = false")
            self.generate(page, temperature="3", seed="7", stops="\\n", max="18")
            first = self.cells(page)
            self.assertNotEqual(first[1:], [f"{byte:02x}" for byte in "안녕하세요, 세계.".encode()][:18])
            other = page.context.new_page()
            other.goto(page.url)
            other.wait_for_selector("body[data-state=over]")
            self.assertEqual(self.cells(other), first)
            self.assertEqual(other.input_value("#stops"), "\\n")
            self.assertEqual(other.url, page.url)
            other.goto(page.url.replace("seed=7", "seed=8"))
            other.wait_for_function("() => document.getElementById('seed').value === '8'", polling=50)
            other.wait_for_selector("body[data-state=over]")
            self.assertNotEqual(self.cells(other), first)
            self.assertFalse(other.is_visible("#alarm"))
            other.goto(page.url.replace("weights=0123", "weights=abcd"))
            other.wait_for_selector(
                "#alarm:has-text('made with scripted (abcd4567); here is scripted (01234567)')"
            )

    def test_errors_are_told_in_words(self) -> None:
        with self.opened(wavering(b"abc"), key="open sesame") as (page, _):
            self.assertIn("wants an API key", page.inner_text("#alarm"))
            page.fill("#key", "open sesame")
            page.press("#key", "Enter")
            page.wait_for_selector("#model:text('window')")
            self.assertFalse(page.is_visible("#alarm"))
            self.generate(page, top_p="0")
            self.assertIn("The server refuses this: top_p", page.inner_text("#alarm"))
            self.generate(page, top_p="1")
            self.assertEqual((page.inner_text("#text"), page.is_visible("#alarm")), ("abc", False))

    def test_thousands_of_bytes_do_not_slow_it_down(self) -> None:
        with self.opened(wavering("가나다 abc\n".encode() * 50, window=4096)) as (page, _):
            page.evaluate(
                "() => { window.spent = []; const frame = window.requestAnimationFrame.bind(window);"
                "window.requestAnimationFrame = work => frame(now => { const began = performance.now();"
                "work(now); window.spent.push(performance.now() - began); }); }"
            )
            self.generate(page, max="4000")
            self.assertEqual(page.inner_text("#n-tokens"), "701")
            spent = page.evaluate("window.spent")
            self.assertLess(len(spent), 500, "updates were not gathered")
            # Not a race of clocks: a cost per frame that grew with the text would show as a ratio of many.
            early, late = spent[: len(spent) // 3], spent[-len(spent) // 3 :]
            self.assertLess(sum(late) / len(late), 8 * sum(early) / len(early) + 8)


if __name__ == "__main__":
    unittest.main()
