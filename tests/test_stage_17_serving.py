"""Stage 17: what a client may rely on, and the stage itself."""

from __future__ import annotations

import importlib.util
import unittest
from unittest import mock

from tests.stage_support import load_stage, page_arguments, run_stage

MISSING = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
EMOJI = [*"😊📚😊".encode(), 256]


class WithoutAServer(unittest.TestCase):
    def test_without_the_extra_it_is_skipped_in_one_line(self) -> None:
        stage = load_stage(17)
        with mock.patch("importlib.util.find_spec", lambda name: None):
            code, printed = run_stage(stage, "--quick")
        self.assertEqual(code, 0)
        self.assertIn("pip install -e '.[serve]'", printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: skipped")

    def test_a_server_that_holds_ids_sends_the_newest_when_a_character_is_whole(self) -> None:
        stage = load_stage(17)
        self.assertEqual(stage.newest_only(EMOJI), [138, 154, 138, 256])
        self.assertEqual(
            stage.newest_only([*"안녕하세요.".encode(), 256]), [136, 149, 152, 184, 148, 46, 256]
        )
        self.assertEqual(stage.newest_only([0xF0, 0x9F]), [])
        self.assertEqual(stage.newest_only([65, 255, 66]), [65, 255, 66])

    def test_ids_are_right_up_to_the_first_that_differs(self) -> None:
        stage = load_stage(17)
        self.assertEqual(stage.right([1, 2, 9, 4], [1, 2, 3, 4]), 2)
        self.assertEqual(stage.right([1, 2], [1, 2, 3]), 2)
        self.assertEqual(stage.right([], [1]), 0)


@unittest.skipIf(bool(MISSING), f"{', '.join(MISSING)} not installed: the extra serve")
class WithAServer(unittest.TestCase):
    def test_the_quick_run_passes_and_agrees_with_the_page(self) -> None:
        code, printed = run_stage(load_stage(17), "--quick", *page_arguments(17))
        self.assertEqual(code, 0, printed)
        self.assertEqual(printed.splitlines()[-1], "sanity check: PASS")
        self.assertLessEqual(max(len(line) for line in printed.splitlines()), 120)

    def test_a_server_that_drops_ids_fails_the_stage(self) -> None:
        from tinylm.serve import native

        stage, honest = load_stage(17), native.partial

        def partial(request, answer, sampled):
            event = honest(request, answer, sampled)
            return event if event["content"] or answer.end else {**event, "tokens": []}

        with mock.patch.object(native, "partial", partial):
            code, printed = run_stage(stage, "--quick")
        self.assertEqual(code, 1)
        self.assertIn("streams carry what was sampled", printed)

    def test_a_server_in_the_background_ends_with_its_context(self) -> None:
        from tests.llama_support import random_model
        from tinylm.config import ServeConfig
        from tinylm.errors import ConfigError
        from tinylm.serve.audit.client import Lost, Server
        from tinylm.serve.background import serve_in_background

        with serve_in_background(random_model(), name="tiny") as url:
            server = Server(url)
            self.assertEqual(server.json("/props")["model_alias"], "tiny")
            port = int(url.rpartition(":")[2])
            taken = serve_in_background(random_model(), ServeConfig(port=port))
            with self.assertRaises(ConfigError), taken:
                pass
        with self.assertRaises(Lost):
            server.get("/health")


if __name__ == "__main__":
    unittest.main()
