"""The encoder as a program of its own, on this machine and on Arm under QEMU: the reference's ids, nothing allocated.

Cases are written here from the library's ids; the program encodes them with the best scanner of its CPU and with the
plain one. A machine without Arm's compiler or QEMU skips that part, and says so.
"""

import json
import subprocess
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers

from services.common.gguf_file import read_metadata
from services.common.paths import models_dir
from services.tokenizer import gguf_recipe, hf_encoder
from services.tokenizer.tokenizer_json import read_recipe
from tests.native.test_native import ADDRESS, SERVICES, WARNINGS, need, run
from tests.native.tokenizer import case_file
from tests.tokenizer.scan.reference import PRE_TOKENIZERS
from tests.tokenizer.scan.texts import FRAGMENTS, SAMPLES

NATIVE = SERVICES / "tokenizer/native"
PROGRAMS = Path(__file__).parent / "tokenizer"
ARM_ROOT = "/usr/aarch64-linux-gnu"
TEXTS = [
    *SAMPLES.values(),
    *("".join(FRAGMENTS[i::step]) * 3 for step in (1, 2, 3, 5, 7) for i in range(step)),
    *(unit * 5000 for unit in ("a", " ", "\u0300", "😀", "中", "ab", "\n")),
    *(unicodedata.normalize("NFD", text) for text in SAMPLES.values()),
    "e\u0301\u0323" * 100 + "".join(map(chr, range(0x300, 0x370))) * 50 + "\u212b\u0958",
    "",
]
Build = Callable[..., Path]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A small vocabulary a pattern, made of the samples."""
    folder = tmp_path_factory.mktemp("cases")
    return [trained(folder / pattern, pattern) for pattern in PRE_TOKENIZERS]


def trained(folder: Path, pattern: str) -> Path:
    skeleton = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    if pattern == "qwen2":
        skeleton["normalizer"] = {"type": "NFC"}
    tokenizer = Tokenizer.from_str(json.dumps({**skeleton, "pre_tokenizer": PRE_TOKENIZERS[pattern]}))
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(SAMPLES.values(), trainer)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    recipe = read_recipe(folder)
    case_file.write(folder / "case", recipe, case_file.expected(tokenizer, TEXTS))
    return folder / "case"


@pytest.fixture(scope="module")
def real_case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = list((models_dir() / "SmolLM2-135M-Instruct").glob("*.gguf"))
    if not files:
        pytest.skip("needs the default model: hostless pull")
    metadata = read_metadata(files[0])
    path = tmp_path_factory.mktemp("real") / "case"
    samples = case_file.expected(hf_encoder.from_gguf(metadata)._plain, TEXTS)
    case_file.write(path, gguf_recipe.read_recipe(metadata), samples)
    return path


def build(folder: Path, compiler: str, *flags: str) -> Path:
    program = folder / "encode"
    scanners = [str(source) for source in sorted((NATIVE / "scan").glob("*.cpp")) if source.stem != "scan_module"]
    command = [need(compiler), "-std=c++20", *WARNINGS, *flags, f"-I{NATIVE}", f"-I{PROGRAMS}"]
    built = subprocess.run(
        [*command, str(PROGRAMS / "encode.cpp"), *scanners, "-o", str(program)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return program


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("here"), "g++", "-O1")


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script that runs the Arm program."""
    emulator = need("qemu-aarch64")
    folder = tmp_path_factory.mktemp("arm")
    program = build(folder, "aarch64-linux-gnu-g++", "-O1")
    script = folder / "run"
    script.write_text(f'#!/bin/sh\nexec {emulator} -L {ARM_ROOT} {program} "$@"\n')
    script.chmod(0o755)
    return script


def check(program: Path, case: Path) -> None:
    printed = run(program, str(case), "both")
    assert printed.count(" 0 allocations") == 2, printed


def test_small_vocabularies(here: Path, cases: list[Path]) -> None:
    for case in cases:
        check(here, case)


@pytest.mark.model
def test_the_default_models_vocabulary(here: Path, real_case: Path) -> None:
    check(here, real_case)


@pytest.mark.slow  # a build with sanitizers
def test_under_sanitizers(tmp_path: Path, cases: list[Path]) -> None:
    program = build(tmp_path, "g++", *ADDRESS, "-DALLOCATIONS_NOT_COUNTED")
    for case in cases:
        run(program, str(case), "both")


@pytest.mark.slow  # a build for Arm
def test_small_vocabularies_on_arm(arm: Path, cases: list[Path]) -> None:
    for case in cases:
        check(arm, case)


@pytest.mark.slow  # emulated
@pytest.mark.model
def test_the_default_models_vocabulary_on_arm(arm: Path, real_case: Path) -> None:
    check(arm, real_case)
