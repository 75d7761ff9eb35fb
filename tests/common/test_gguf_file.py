"""Metadata of GGUF files, whole, cut, and something else."""

from pathlib import Path
from typing import Any

import gguf
import pytest

from services.common.gguf_file import GgufError, read_file, read_metadata


def write(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.count", 7)
    writer.add_bool("a.flag", True)
    writer.add_float32("a.ratio", 0.5)
    writer.add_string("a.name", "né\n")
    writer.add_array("a.words", ["x", "", "語"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    expected: dict[str, Any] = {
        "general.architecture": "llama",
        "a.count": 7,
        "a.flag": True,
        "a.ratio": 0.5,
        "a.name": "né\n",
        "a.words": ["x", "", "語"],
        "a.numbers": [1, -2, 3],
    }
    assert read_metadata(tmp_path / "m.gguf") == expected
    assert read_file(tmp_path / "m.gguf").metadata == expected


def test_a_file_cut_anywhere_is_an_error_that_names_it(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    metadata_end = whole.rindex((3).to_bytes(4, "little")) + 4
    cut = tmp_path / "cut.gguf"
    for length in range(1, metadata_end):
        cut.write_bytes(whole[:length])
        with pytest.raises(GgufError, match=r"cut\.gguf: not a whole GGUF file"):
            read_metadata(cut)


def test_an_empty_file_and_another_format_are_errors(tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    for content in (b"", b"PK\x03\x04" + bytes(100), b"GGUF\x63" + bytes(100)):
        other.write_bytes(content)
        with pytest.raises(GgufError, match=r"other\.gguf"):
            read_metadata(other)
