"""Packs this checkout for a machine without a network, with all that it needs to run the GPU's tests and benches there.

    python scripts/bundle.py OUT --python 3.12 [--without torch ...] [--models] [--part-mib 40] [--add FILE ...]
    # on the other machine, in the folder with what OUT holds:
    tar -xf hostless.tar.xz && python3 hostless/setup.py
    . hostless/environment && python3 -m tests.gpu.run results

OUT/hostless.tar.xz holds the checkout's files as they are, the gRPC stubs, and the Python packages of --extras and
--also with all that they need, in the versions of this environment, for the given Python and glibc; `--without` names
what the other machine has (torch and CUDA's libraries never travel). OUT/model-ID.tar.xz.00, .01, ...: a model's
folder, for each of `--models`. Quantized weights hardly shrink (SmolLM2's by 8 %), so they can be cut into parts that
are carried one by one. setup.py (bundle_setup.py) needs Python and g++ there, can be run again when more parts have
come, and fetches nothing.
"""

import argparse
import hashlib
import importlib.metadata
import io
import json
import lzma
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, BinaryIO, cast

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
NAME = "hostless"
EXTRAS = ("gateway", "tokenizer", "cli", "gpu-backend", "cuda")
ALSO = ("nanobind", "pytest", "pytest-asyncio", "hypothesis", "transformers", "aiohttp")
"""The build needs the first, tests and benches the rest."""
NEVER = ("torch", "triton", "nvidia-")


def requirements(extras: Sequence[str]) -> list[Requirement]:
    """Of the project itself and some of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return [Requirement(line) for line in lines]


def pins(wanted: Sequence[Requirement], python: str, without: Sequence[str]) -> list[str]:
    """`wanted` and all that they need, as name==version of this environment. Raises LookupError."""
    left_out = {canonicalize_name(name) for name in without}
    there = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    open_ = [(requirement, "") for requirement in wanted]
    while open_:
        requirement, extra = open_.pop()
        name = canonicalize_name(requirement.name)
        key = name, frozenset(requirement.extras)
        if requirement.marker and not requirement.marker.evaluate(there | {"extra": extra}):
            continue
        if key in seen or name in left_out or name.startswith(NEVER):
            continue
        seen.add(key)
        try:
            of_it = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise LookupError(f"{name} is not installed here, so its version is not known: make setup") from None
        found[name] = f"{name}=={of_it.version}"
        for line in of_it.requires or ():
            open_ += [(Requirement(line), each) for each in ("", *requirement.extras)]
    return sorted(found.values())


def platforms(glibc: str, machine: str) -> list[str]:
    """Tags of wheels that run there, the newest first."""
    major, minor = map(int, glibc.split("."))
    newer = [f"manylinux_{major}_{n}_{machine}" for n in range(minor, 4, -1)]
    return [*newer, *(f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux"))]


def fetch(named: Sequence[str], python: str, tags: Sequence[str], wheels: Path, site: Path) -> None:
    """By pip, as it is set up here; unpacked into `site`."""
    command = [
        sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d", str(wheels),
        "--only-binary=:all:", "--python-version", python, "--implementation", "cp",
    ]  # fmt: skip
    subprocess.run([*command, *(f"--platform={tag}" for tag in tags), *named], check=True)
    for wheel in wheels.glob("*.whl"):
        unpack(wheel, site)


def unpack(wheel: Path, site: Path) -> None:
    """Modules and metadata; not scripts."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            first, _, rest = name.partition("/")
            if first.endswith(".data"):
                kind, _, rest = rest.partition("/")
                if kind not in ("purelib", "platlib"):
                    continue
            else:
                rest = name
            if not rest or rest.endswith("/"):
                continue
            (site / rest).parent.mkdir(parents=True, exist_ok=True)
            (site / rest).write_bytes(archive.read(name))


def stubs(site: Path) -> None:
    protos = sorted(str(path) for path in (ROOT / "protos").rglob("*.proto"))
    out = [f"--{kind}_out={site}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "protos"), *out, *protos], check=True)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    about = site / f"{NAME}-{version}.dist-info"  # services ask for their version
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n")


def tree() -> list[str]:
    """Files that git knows, and new ones that it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted(name for name in set(listed) if name and (ROOT / name).is_file())


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


class Parts(io.RawIOBase):
    """A file in parts: NAME.00, NAME.01, ..., of `most` bytes; one part is as large as it gets where `most` is 0."""

    def __init__(self, path: Path, most: int) -> None:
        self._path, self._most = path, most
        self._left = 0
        self._part: BinaryIO | None = None
        self.names: list[str] = []
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        view = memoryview(data)
        self.digest.update(view)
        while view:
            if self._part is None or (self._most and not self._left):
                self._next()
            assert self._part is not None
            now = view[: self._left] if self._most else view
            self._part.write(now)
            self._left -= len(now)
            view = view[len(now) :]
        return len(data)

    def _next(self) -> None:
        if self._part is not None:
            self._part.close()
        self.names.append(f"{self._path.name}.{len(self.names):02}")
        self._part = self._path.with_name(self.names[-1]).open("wb")
        self._left = self._most

    def close(self) -> None:
        if self._part is not None:
            self._part.close()
        super().close()


def pack_model(folder: Path, out: Path, most: int) -> dict[str, object]:
    """What setup.py has to know of it."""
    with Parts(out / f"model-{folder.name}.tar.xz", most) as parts:
        with (
            lzma.LZMAFile(cast(IO[bytes], parts), "wb", preset=6) as packed,
            tarfile.open(fileobj=packed, mode="w|") as archive,
        ):
            archive.add(folder, folder.name)
        return {"parts": parts.names, "sha256": parts.digest.hexdigest()}


def pack(out: Path, site: Path, added: Sequence[Path], manifest: dict[str, object]) -> Path:
    """All of it, or nothing under its name. An `out` within the checkout does not travel along."""
    made = out / f"{NAME}.tar.xz"
    unfinished = out / f".{made.name}"
    with tarfile.open(unfinished, "w:xz", preset=6) as archive:
        for name in tree():
            if out.resolve() not in (ROOT / name).resolve().parents:
                archive.add(ROOT / name, f"{NAME}/tree/{name}")
        archive.add(site, f"{NAME}/site")
        for path in added:
            archive.add(path, f"{NAME}/extra/{path.name}")
        archive.add(Path(__file__).with_name("bundle_setup.py"), f"{NAME}/setup.py")
        data = json.dumps(manifest, indent=1).encode()
        about = tarfile.TarInfo(f"{NAME}/bundle.json")
        about.size = len(data)
        archive.addfile(about, io.BytesIO(data))
    return unfinished.rename(made)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, fromfile_prefix_chars="@"
    )
    parser.add_argument("out", type=Path, help="folder for what is packed")
    parser.add_argument("--python", default=".".join(map(str, sys.version_info[:2])), help="of the other machine")
    parser.add_argument("--glibc", default="2.28", help="of the other machine, or an older one")
    parser.add_argument(
        "--machine", default="x86_64", help="of the other machine, as uname -m says; %(default)s unless given"
    )
    parser.add_argument(
        "--extras", nargs="*", default=EXTRAS, help="of pyproject.toml; unless given: " + " ".join(EXTRAS)
    )
    parser.add_argument("--also", nargs="*", default=ALSO, help="further packages")
    parser.add_argument(
        "--without", nargs="*", default=(), help="packages that are there; @FILE: named in it, one a line"
    )
    parser.add_argument("--models", nargs="*", type=Path, help="folders of models; no name: the default model's")
    parser.add_argument(
        "--part-mib", type=int, default=0, help="cuts models into parts of so many MiB; 0: one part each"
    )
    parser.add_argument("--add", nargs="*", type=Path, default=[], help="files and folders, into hostless/extra/")
    given = parser.parse_args()
    models = given.models or []
    if given.models == []:
        sys.path.insert(0, str(ROOT))
        from services.cli.models.catalogue import DEFAULT
        from services.common.paths import models_dir

        models = [models_dir() / DEFAULT.model_id]
    given.out.mkdir(parents=True, exist_ok=True)
    wanted = [*requirements(given.extras), *(Requirement(name) for name in given.also)]
    named = pins(wanted, given.python, given.without)
    manifest: dict[str, object] = {
        "commit": commit(),
        "python": given.python,
        "machine": given.machine,
        "packages": named,
    }
    with tempfile.TemporaryDirectory() as temporary:
        site = Path(temporary) / "site"
        site.mkdir()
        if named:
            tags = platforms(given.glibc, given.machine)
            fetch(named, given.python, tags, Path(temporary) / "wheels", site)
        stubs(site)
        manifest["models"] = {folder.name: pack_model(folder, given.out, given.part_mib << 20) for folder in models}
        made = pack(given.out, site, given.add, manifest)
    print(f"{made}: {_mib(made)}, commit {manifest['commit']}, {len(named)} packages for Python {given.python}")
    for path in sorted(given.out.glob("model-*")):
        print(f"{path}: {_mib(path)}")


def _mib(path: Path) -> str:
    return f"{path.stat().st_size / 2**20:.1f} MiB"


if __name__ == "__main__":
    main()
