"""What the KV store costs and gives, part by part; results in docs/benchmarks/kvstore.json.

python -m bench.kvstore [--part engine ...] [--folder DIR] [--bytes 2147483648] [--repeats 5] [--out FILE]

engine:  the engine `local` against fio's io_uring O_DIRECT, on one file system, in turns, at one block size and depth.
service: a store in its own process: lookups over gRPC, writes, reads into a reader's shared memory.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.common.machine import machine
from bench.store import engine, service

PARTS: dict[str, Callable[[argparse.Namespace, Path], dict[str, Any]]] = {
    "engine": engine.measure,
    "service": service.measure,
}
RESULTS = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "kvstore.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; may be repeated")
    parser.add_argument("--folder", type=Path, help="on the file system to measure; default: the temporary folder's")
    parser.add_argument("--bytes", type=int, default=2 << 30, help="of blocks, a measurement")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--out", type=Path, default=None, help=f"e.g. {RESULTS.name}; parts that did not run stay in it"
    )
    options = parser.parse_args()
    results = {}
    folder = Path(tempfile.mkdtemp(prefix="kvstore-bench.", dir=options.folder))
    try:
        for name in options.part or PARTS:
            results[name] = {"machine": machine(), **PARTS[name](options, folder)}
    finally:
        shutil.rmtree(folder)
    if options.out:
        before = json.loads(options.out.read_text()) if options.out.exists() else {}
        options.out.write_text(json.dumps({**before, **results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
