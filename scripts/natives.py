"""Builds the native modules with a C++ compiler alone, each beside its sources: for machines without CMake.

    python scripts/natives.py [ROOT]

What to build is read from ROOT/CMakeLists.txt. Needs nanobind and numpy in this Python, and g++ or $CXX. A module that
is newer than all sources stays. Without libibverbs there is no _verbs, as with CMake.
"""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FLAGS = ("-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-DNDEBUG")
OPTIONAL = {"_verbs": ("infiniband/verbs.h", "-libverbs")}
"""Modules that need a header of the system, and how they are linked then."""


def modules(root: Path) -> dict[str, list[str]]:
    """Sources by module ("services/fabric/_ring"), from the root on."""
    text = (root / "CMakeLists.txt").read_text()
    lists = {name: words.split() for name, words in re.findall(r"^set\((\w+)\s+([^)$]*)\)", text, re.M)}
    found = {}
    for name, folder, words in re.findall(r"^\s*hostless_module\((\w+) (\S+) ([^)]*)\)", text, re.M):
        sources: list[str] = []
        for word in words.split():
            sources += lists[word[2:-1]] if word.startswith("${") else [word]
        found[f"{folder}/{name}"] = [f"{folder}/{source}" for source in sources]
    return found


def folders(root: Path) -> list[str]:
    """Of headers, from the root on."""
    text = (root / "CMakeLists.txt").read_text()
    named = re.findall(r"target_include_directories\(\S+ PRIVATE ([^)]*)\)", text)
    return list(dict.fromkeys(word for words in named for word in words.split() if not word.startswith("$")))


def build(root: Path) -> list[str]:
    """Raises RuntimeError with the compiler's words. What was built."""
    import nanobind
    import numpy

    library, compiler = Path(nanobind.__file__).parent, shlex.split(os.environ.get("CXX", "g++"))
    own = [root / folder for folder in folders(root)]
    others = [
        sysconfig.get_path("include"),
        numpy.get_include(),
        library / "include",
        library / "ext/robin_map/include",
    ]
    includes = [f"-I{folder}" for folder in (*own, *others)]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    newest = max(each.stat().st_mtime for kind in ("*.?pp", "CMakeLists.txt") for each in root.rglob(kind))
    wanted = {
        module: sources
        for module, sources in modules(root).items()
        if not _up_to_date(root / f"{module}{suffix}", newest) and _possible(compiler, module)
    }
    if not wanted:
        return []
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(os.cpu_count()) as at_once:

        def compile_one(source: Path) -> str:
            made = f"{place}/{str(source).replace('/', '.')}.o"
            _run([*compiler, *FLAGS, *includes, "-c", str(source), "-o", made])
            return made

        def link(module: str) -> None:
            parts = [objects[root / source] for source in wanted[module]] + [objects[common]]
            extra = OPTIONAL.get(module.rpartition("/")[2], ("",))[1:]
            _run([*compiler, "-shared", *parts, *extra, "-o", str(root / f"{module}{suffix}")])

        common = library / "src/nb_combined.cpp"
        files = [common, *dict.fromkeys(root / source for sources in wanted.values() for source in sources)]
        files.sort(key=lambda file: -file.stat().st_size)
        objects = dict(zip(files, at_once.map(compile_one, files), strict=True))
        list(at_once.map(link, wanted))
    return list(wanted)


def _up_to_date(module: Path, newest: float) -> bool:
    return module.exists() and module.stat().st_mtime > newest


def _possible(compiler: list[str], module: str) -> bool:
    header, *_ = OPTIONAL.get(module.rpartition("/")[2], ("",))
    text = f"#include <{header}>\n" if header else ""
    tried = subprocess.run([*compiler, "-x", "c++", "-E", "-"], input=text, capture_output=True, text=True, check=False)
    return tried.returncode == 0


def _run(command: list[str]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{shlex.join(command)} failed:\n{ran.stderr[-4000:]}")


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]
    begin = time.monotonic()
    built = build(root)
    print(f"{len(built)} native modules built in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
