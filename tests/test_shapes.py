"""check_shape: a border that states a shape refuses every other one, saying which axis and why."""

from __future__ import annotations

import unittest

import numpy as np
import torch

from tinylm.errors import ShapeError
from tinylm.shapes import KINDS, check_shape


class Shapes(unittest.TestCase):
    def test_letters_bind_to_what_is_found(self) -> None:
        for value in (np.zeros((2, 3, 4)), torch.zeros(2, 3, 4)):
            self.assertEqual(check_shape(value, "B T D", name="x"), {"B": 2, "T": 3, "D": 4})

    def test_no_axes_and_empty_axes(self) -> None:
        self.assertEqual(check_shape(np.float32(1), "", name="x"), {})
        self.assertEqual(check_shape(torch.zeros(0, 5), "B T", name="x"), {"B": 0, "T": 5})

    def test_sizes_that_are_given_must_match(self) -> None:
        self.assertEqual(check_shape(torch.zeros(2, 257), "B V", name="logits_BV", V=257), {"B": 2, "V": 257})
        with self.assertRaises(ShapeError) as caught:
            check_shape(torch.zeros(2, 256), "B V", name="logits_BV", V=257)
        self.assertEqual(
            str(caught.exception),
            "logits_BV: axis 1 (V) is 256, expected 257; shape [2, 256], expected [B, V=257]",
        )

    def test_a_letter_twice_means_equal_sizes(self) -> None:
        self.assertEqual(check_shape(np.zeros((3, 3)), "T T", name="mask"), {"T": 3})
        with self.assertRaisesRegex(ShapeError, r"mask: axis 1 \(T\) is 4, expected 3"):
            check_shape(np.zeros((3, 4)), "T T", name="mask")

    def test_a_number_in_the_pattern_is_that_size(self) -> None:
        self.assertEqual(check_shape(np.zeros((2, 257)), "B 257", name="x"), {"B": 2})
        with self.assertRaisesRegex(ShapeError, r"x: axis 1 \(257\) is 1, expected 257"):
            check_shape(np.zeros((2, 1)), "B 257", name="x")

    def test_one_is_not_broadcast(self) -> None:
        with self.assertRaises(ShapeError):
            check_shape(torch.zeros(1, 4), "B D", name="x", B=2)

    def test_the_number_of_axes_must_match(self) -> None:
        for shape in ((), (2,), (2, 3, 4)):
            with self.assertRaisesRegex(
                ShapeError, rf"ids_BT: expected 2 axes \[B, T\], found {len(shape)} axes"
            ):
                check_shape(torch.zeros(shape), "B T", name="ids_BT")

    def test_what_has_no_shape_is_refused(self) -> None:
        for value in ([1, 2], 3, None, "AB"):
            with self.assertRaisesRegex(
                ShapeError, rf"x: expected an array \[T\], found {type(value).__name__}"
            ):
                check_shape(value, "T", name="x")

    def test_what_is_given_is_not_changed(self) -> None:
        sizes = {"D": 4}
        check_shape(np.zeros((2, 4)), "B D", name="x", **sizes)
        self.assertEqual(sizes, {"D": 4})


class Kinds(unittest.TestCase):
    def test_every_dtype_belongs_to_one_kind_in_both_libraries(self) -> None:
        for kind, names in KINDS.items():
            for name in names:
                values = [torch.zeros(1, dtype=getattr(torch, name))]
                if name != "bfloat16":
                    values.append(np.zeros(1, name))
                for value in values:
                    self.assertEqual(check_shape(value, "T", name="x", kind=kind), {"T": 1})
                    for other in set(KINDS) - {kind}:
                        with self.assertRaisesRegex(
                            ShapeError, f"x: expected {other} values, found dtype {name}"
                        ):
                            check_shape(value, "T", name="x", kind=other)

    def test_complex_and_object_are_of_no_kind(self) -> None:
        for value in (np.zeros(1, complex), np.zeros(1, object), torch.zeros(1, dtype=torch.complex64)):
            for kind in KINDS:
                with self.assertRaises(ShapeError):
                    check_shape(value, "T", name="x", kind=kind)

    def test_without_a_kind_any_dtype_passes(self) -> None:
        check_shape(np.zeros(1, complex), "T", name="x")

    def test_the_error_is_a_value_error_of_one_line(self) -> None:
        with self.assertRaises(ValueError) as caught:
            check_shape(np.zeros(1), "B T", name="x")
        self.assertEqual(len(str(caught.exception).splitlines()), 1)
