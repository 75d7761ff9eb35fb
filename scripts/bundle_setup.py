"""Sets up what bundle.py packed, where it was unpacked: native modules, models, and a file `environment` to be sourced.

    python3 hostless/setup.py [--parts FOLDER]

Needs g++ with C++20 and the Python that the bundle was made for. Can be run again, and does what is due.
"""

import argparse
import hashlib
import json
import lzma
import os
import platform
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

HERE = Path(__file__).resolve().parent


def check(manifest: dict[str, Any]) -> None:
    python, machine = ".".join(map(str, sys.version_info[:2])), platform.machine()
    if (python, machine) != (manifest["python"], manifest["machine"]):
        sys.exit(
            f"this bundle is for Python {manifest['python']} on {manifest['machine']}; this is Python {python} on "
            f"{machine}: make it again with --python {python} --machine {machine}"
        )


def natives(environment: dict[str, str]) -> None:
    command = [sys.executable, str(HERE / "tree/scripts/natives.py"), str(HERE / "tree")]
    if subprocess.run(command, env={**os.environ, **environment}, check=False).returncode:
        sys.exit("the native modules were not built; the compiler's words are above")


class Joined:
    """Parts as one file, to be read once from the beginning."""

    def __init__(self, paths: list[Path]) -> None:
        self.digest = hashlib.sha256()
        self._chunks = self._read(paths)

    def _read(self, paths: list[Path]) -> Iterator[bytes]:
        for path in paths:
            with path.open("rb") as part:
                while chunk := part.read(1 << 20):
                    self.digest.update(chunk)
                    yield chunk

    def read(self, _count: int = -1) -> bytes:
        return next(self._chunks, b"")


def model(name: str, about: dict[str, Any], places: list[Path]) -> None:
    """Unpacked whole or not at all."""
    folder = HERE / "models" / name
    if folder.exists():
        return
    parts = [next((place / part for place in places if (place / part).exists()), None) for part in about["parts"]]
    if missing := [part for part, path in zip(about["parts"], parts, strict=True) if path is None]:
        print(f"model {name}: not unpacked, as {', '.join(missing)} is not in {' or '.join(map(str, places))}")
        return
    unfinished = HERE / "models" / f".{name}"
    joined = Joined([path for path in parts if path is not None])
    try:
        with lzma.LZMAFile(cast(IO[bytes], joined)) as packed, tarfile.open(fileobj=packed, mode="r|") as archive:
            archive.extractall(unfinished, filter="data")
        whole = True
    except (EOFError, lzma.LZMAError, tarfile.TarError):
        whole = False
    while joined.read():
        pass
    if not whole or joined.digest.hexdigest() != about["sha256"]:
        sys.exit(f"model {name}: its parts are damaged, or belong to another bundle")
    (unfinished / name).rename(folder)
    unfinished.rmdir()
    print(f"model {name}: unpacked")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--parts", type=Path, nargs="*", default=[], help="folders with models' parts, besides the archive's"
    )
    given = parser.parse_args()
    manifest = json.loads((HERE / "bundle.json").read_text())
    check(manifest)
    environment = {
        "PYTHONPATH": f"{HERE / 'site'}:{HERE / 'tree'}", "HOSTLESS_MODELS": str(HERE / "models"),
        "HOSTLESS_KERNELS": str(HERE / "kernels"), "TRITON_CACHE_DIR": str(HERE / "triton"), "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    for folder in ("models", "kernels", "triton"):
        (HERE / folder).mkdir(exist_ok=True)
    natives(environment)
    for name, about in manifest["models"].items():
        model(name, about, [HERE.parent, *(place.resolve() for place in given.parts)])
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    (HERE / "environment").write_text("\n".join([*lines, f"cd {shlex.quote(str(HERE / 'tree'))}"]) + "\n")
    print(f"commit {manifest['commit']}. Next:\n  . {HERE / 'environment'}\n  python3 -m tests.gpu.run RESULTS")


if __name__ == "__main__":
    main()
