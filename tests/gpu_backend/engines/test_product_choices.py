"""Choices of cuBLAS kernels, kept in a file."""

from pathlib import Path

import pytest

from services.gpu_backend.engines.cuda.cublas_lt import Algorithm
from services.gpu_backend.engines.cuda.product_choices import PLAIN, ProductChoices, Shape

CONDITIONS = ("NVIDIA H200", 132, 130000, 1)
FOUND = Algorithm((1, 2**64 - 1, 3, 4, 5, 6, 7, 8), 1 << 20, 131)
GATE_UP, OUTPUT = Shape(1024, 28672, 4096, False), Shape(1024, 4096, 4096, True)


def test_what_was_kept_is_found_again_by_another_process(tmp_path: Path) -> None:
    first = ProductChoices(tmp_path / "new", CONDITIONS)
    assert first.find(GATE_UP) is None
    first.keep(GATE_UP, FOUND)
    first.keep(OUTPUT, None)
    again = ProductChoices(tmp_path / "new", CONDITIONS)
    assert again.find(GATE_UP) == FOUND
    assert again.find(OUTPUT) == PLAIN
    assert again.find(Shape(1024, 4096, 4096, False)) is None


@pytest.mark.parametrize("place", range(len(CONDITIONS)))
def test_other_conditions_have_other_choices(tmp_path: Path, place: int) -> None:
    ProductChoices(tmp_path, CONDITIONS).keep(GATE_UP, FOUND)
    others = (*CONDITIONS[:place], "other", *CONDITIONS[place + 1 :])
    assert ProductChoices(tmp_path, others).find(GATE_UP) is None


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1}', '{"a": {"words": [1]}}', '{"a": {"words": 5}}'])
def test_a_spoilt_file_is_as_none(tmp_path: Path, text: str) -> None:
    choices = ProductChoices(tmp_path, CONDITIONS)
    choices.keep(GATE_UP, FOUND)
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    again = ProductChoices(tmp_path, CONDITIONS)
    assert again.find(GATE_UP) is None
    again.keep(GATE_UP, None)
    assert ProductChoices(tmp_path, CONDITIONS).find(GATE_UP) == PLAIN
