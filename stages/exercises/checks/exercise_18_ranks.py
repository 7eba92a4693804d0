"""Check of exercise 18."""

from types import ModuleType

from tinylm.walkthrough.exercises import Hint, expect


def check(answer: ModuleType) -> None:
    """Raise a Hint for what is still wrong with `rows_of`."""
    for step, batch, ranks in ((0, 4, 1), (0, 4, 2), (3, 4, 2), (2, 5, 2), (1, 8, 4), (1, 2, 3)):
        whole = list(range(step * batch, (step + 1) * batch))
        mine = [list(answer.rows_of(step, batch, rank, ranks)) for rank in range(ranks)]
        together = sorted(row for rows in mine for row in rows)
        call = f"rows_of({step}, {batch}, rank, {ranks})"
        if ranks > 1 and len(together) == ranks * batch:
            raise Hint(f"{call}: each rank takes a whole batch; {ranks} ranks make it {ranks} times as large")
        if len(set(together)) < len(together):
            twice = next(row for row in together if together.count(row) > 1)
            raise Hint(f"{call}: row {twice} is taken by two ranks: {mine}")
        lost = sorted(set(whole) - set(together))
        if lost:
            raise Hint(
                f"{call}: rows {lost} are taken by nobody: {mine}"
                + (", as the batch does not divide evenly" if batch % ranks else "")
            )
        for rank, rows in enumerate(mine):
            size = batch // ranks
            expect(
                f"rows_of({step}, {batch}, {rank}, {ranks})",
                rows,
                whole[rank::ranks],
                {
                    "the rank takes neighbours, not every `ranks`-th row": whole[
                        rank * size : (rank + 1) * size
                    ]
                },
            )
