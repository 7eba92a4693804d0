"""Check of exercise 13."""

from types import ModuleType

from tinylm.walkthrough.exercises import expect, expect_refusal

EXPECTED: dict[str, object] = {"version": "utf8-byte-v1", "size": 257, "boundary_id": 256, "sha256": "b558"}


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `differences`."""

    def differences(header: str) -> object:
        return answer.differences(header, dict(EXPECTED))

    whole = '{"version": "utf8-byte-v1", "size": 257, "boundary_id": 256, "sha256": "b558", "note": 1}'
    more = {"what it holds beyond the expected is no matter": ["note"]}
    expect(f"the header {whole}", differences(whole), [], more)
    two = whole.replace("256,", "10,").replace("b558", "0000")
    expect(
        f"the header {two}",
        differences(two),
        ["boundary_id", "sha256"],
        {
            "it stops at the first difference: a user wants to know all": ["boundary_id"],
            "the names are not in alphabetical order": ["sha256", "boundary_id"],
            "it compares nothing but the names": [],
        },
    )
    missing = '{"version": "utf8-byte-v1", "size": 257, "sha256": "b558"}'
    expect(
        f"the header {missing}",
        differences(missing),
        ["boundary_id"],
        {"a value that is missing passes: absence is a difference too": []},
    )
    expect('the header {"boundary_id": null}', differences('{"boundary_id": null}'), sorted(EXPECTED))
    twice = whole.replace('"boundary_id": 256', '"boundary_id": 10, "boundary_id": 256')
    expect_refusal(
        f"the header {twice}",
        lambda: differences(twice),
        "the last of two equal keys wins, and another program may take the first",
    )
    deep = whole.replace('"note": 1', '"note": {"a": 1, "a": 1}')
    why = "a key that stands twice inside a value passes"
    expect_refusal(f"the header {deep}", lambda: differences(deep), why)
