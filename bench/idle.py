"""CPU of an idle mesh: every service, in percent of one core, over a minute.

hostless up --port 0 -- python -m bench.idle [--seconds 60] [--json FILE]
"""

import argparse
import json
import os
import time
from pathlib import Path

from services.cli.load import cpu
from services.cli.mesh import run_folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    mesh = run_folder.find(os.environ.get("HOSTLESS_URL", ""))
    if mesh is None:
        raise SystemExit("no mesh runs here: start this through `hostless up -- python -m bench.idle`")
    time.sleep(5)  # what starting left to do
    before, start = cpu.seconds(mesh), time.perf_counter()
    time.sleep(options.seconds)
    used, wall = cpu.between(before, cpu.seconds(mesh)), time.perf_counter() - start
    percent = {name: 100 * seconds / wall for name, seconds in used.items()}
    percent["all"] = sum(percent.values())
    for name, value in percent.items():
        print(f"{name:<20} {value:6.2f} % of a core")
    if options.json:
        options.json.write_text(json.dumps({"seconds": wall, "percent_of_a_core": percent}, indent=1) + "\n")


if __name__ == "__main__":
    main()
