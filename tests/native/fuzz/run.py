"""Fuzzes the encoder, vocabularies and texts, for so many minutes; fails on a crash, a leak or other ids.

    python tests/native/fuzz/run.py --minutes 10

Needs clang++ with libFuzzer (Debian: clang, libclang-rt-dev).
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "services/tokenizer/native"
FLAGS = ["-std=c++20", "-O1", "-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


class CannotBuild(Exception):
    """This machine has no clang++ with libFuzzer; the message is the compiler's."""


def build(folder: Path) -> Path:
    program = folder / "fuzz"
    scanners = [str(source) for source in sorted((NATIVE / "scan").glob("*.cpp")) if source.stem != "scan_module"]
    command = ["clang++", *FLAGS, *WARNINGS, f"-I{NATIVE}", str(HERE / "tokenizer.cpp"), *scanners, "-o", str(program)]
    empty = folder / "empty.cpp"
    empty.write_text('extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n')
    try:
        subprocess.run(["clang++", *FLAGS, str(empty), "-o", str(folder / "empty")], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotBuild(f"clang++ with libFuzzer: {error}") from error
    subprocess.run(command, check=True)
    return program


def fuzz(program: Path, seconds: int) -> str:
    """What libFuzzer printed. Raises CalledProcessError, with the input that failed in its output."""
    corpus = program.parent / "corpus"
    corpus.mkdir(exist_ok=True)
    limits = [f"-max_total_time={seconds}", "-max_len=3000", "-timeout=60"]
    command = [str(program), *limits, "-verbosity=0", "-print_final_stats=1", str(corpus)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=program.parent)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            print(fuzz(build(Path(folder)), round(options.minutes * 60))[-2000:])
        except subprocess.CalledProcessError as error:
            raise SystemExit(error.stderr[-6000:]) from error


if __name__ == "__main__":
    main()
