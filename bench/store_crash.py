"""Kills a store's engine at random moments, over and over, and looks at what is left: never a wrong byte.

python -m bench.store_crash [--rounds 200] [--folder DIR] [--no-faults] [--seed 0]

Each round a process opens the engine `local` on the blocks of the rounds before, puts, loads and removes blocks of many
sizes from two threads, and is killed (SIGKILL) at a random point of that. Its disk is made worse than real: writes and
syncs fail with EIO or ENOSPC, and the last blocks before some kills are torn, as by a loss of power. Then:

- every block whose put had returned is there, and its bytes are right;
- no block whose put had not begun, or was refused, or that was removed, is there;
- a block whose put was under way is whole or not there;
- the segments take the room of the blocks that are there, to within one block; nothing else lies in the folder.
"""

import argparse
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from services.common.keys import next_key, root_key
from services.kvstore import _segments
from services.kvstore.block import Block
from services.kvstore.engines import Read, Write
from services.kvstore.engines.local import LocalEngine, LocalOptions

ROOT = Path(__file__).resolve().parents[1]
LENGTHS = (64 << 10, 100_000, 256 << 10, 1 << 20, 4 << 20)
OPTIONS = LocalOptions(queue_depth=8, segment_bytes=48 << 20)
SEGMENT_SLACK = 24 << 10
"""A segment's footer, the file system's list of its holes."""


def block_of(number: int) -> tuple[Block, memoryview]:
    """A block and its bytes, the same for a number always."""
    length = LENGTHS[number % len(LENGTHS)]
    tokens = np.array([number, *range(63)], "<u4")
    parent = root_key("crash", "")
    block = Block(next_key(parent, tokens), parent, 0, length, tokens.tobytes())
    return block, np.random.Generator(np.random.SFC64(number)).integers(0, 256, length, np.uint8).data


class BadDisk:
    """Channels that now and then answer with an error, or tear what they wrote and end the process."""

    def __init__(self, real: _segments.Channels, seed: int) -> None:
        self._real, self._random = real, random.Random(seed)

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def write(self, requests: list[tuple[int, int, int, bytes, memoryview, int]]) -> list[int]:
        results = self._real.write(requests)
        if self._random.random() < 0.03:
            for request in self._random.sample(requests, self._random.randint(1, len(requests))):
                self._tear(*request)
            os.kill(os.getpid(), signal.SIGKILL)
        return [self._spoil(result, 0.02) for result in results]

    def sync(self, files: list[tuple[int, int]]) -> list[int]:
        return [self._spoil(result, 0.02) for result in self._real.sync(files)]

    def _spoil(self, result: int, share: float) -> int:
        return self._random.choice([errno.EIO, errno.ENOSPC]) if self._random.random() < share else result

    def _tear(self, fd: int, _: int, offset: int, __: bytes, data: memoryview, ___: int) -> None:
        """Some sectors never got there: the header's, the last, or those behind a point."""
        end = offset + _segments.PAGE + -(-len(data) // _segments.PAGE) * _segments.PAGE
        kind = self._random.choice(["header", "half a header", "last sector", "short"])
        begin, stop = {
            "header": (offset, offset + _segments.PAGE),
            "half a header": (offset + 2048, offset + _segments.PAGE),
            "last sector": (offset + _segments.PAGE + (len(data) - 1) // 512 * 512, end),
            "short": (self._random.randrange(offset, end) // 512 * 512, end),
        }[kind]
        torn = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        os.pwrite(torn, bytes(stop - begin), begin)
        os.close(torn)


def child(root: Path, numbers_from: int, seed: int, faults: bool) -> None:
    """Says what it is about to do and what is done, a line each, in writes that a kill can't cut."""
    engine = LocalEngine([root / "a", root / "b"], OPTIONS)
    stored = [key for key, *_ in engine.scan().blocks]
    if faults:
        engine.channels = BadDisk(engine.channels, seed)  # type: ignore[assignment]
    lock = threading.Lock()

    def say(**what: object) -> None:
        os.write(1, (json.dumps(what) + "\n").encode())

    def work(thread: int) -> None:
        rng = random.Random(seed * 2 + thread)
        number = numbers_from + thread * 100_000
        while True:
            batch = list(range(number, number + rng.randint(1, 6)))
            number = batch[-1] + 1
            made = [block_of(one) for one in batch]
            spoilt = rng.random() < 0.1
            say(begin=[] if spoilt else batch)
            writes = [Write(block, data, _segments.crc32c(data) ^ spoilt) for block, data in made]
            outcomes = engine.put(writes)
            done = [one for one, outcome in zip(batch, outcomes, strict=True) if outcome is None]
            say(done=done, failed=[one for one in batch if one not in done])
            with lock:
                stored.extend(made[at][0].key for at in range(len(batch)) if batch[at] in done)
                excess = stored[: max(0, len(stored) - 60)]
                del stored[: len(excess)]
            if excess:
                say(remove=[key.hex() for key in excess])
                engine.remove(excess)
                say(removed=[key.hex() for key in excess])

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Shadow:
    """What must be there, and what may be."""

    def __init__(self) -> None:
        self.must: set[bytes] = set()
        self.may: set[bytes] = set()
        self.number_of: dict[bytes, int] = {}

    def hear(self, line: bytes) -> None:
        for verb, values in json.loads(line).items():
            keys = [bytes.fromhex(v) if isinstance(v, str) else self._key(v) for v in values]
            if verb == "begin":
                self.may.update(keys)
            elif verb == "done":
                self.must.update(keys)
                self.may.difference_update(keys)
            elif verb == "remove":
                self.must.difference_update(keys)
                self.may.update(keys)
            else:  # failed, removed
                self.must.difference_update(keys)
                self.may.difference_update(keys)

    def _key(self, number: int) -> bytes:
        key = block_of_key(number)
        self.number_of[key] = number
        return key


def block_of_key(number: int) -> bytes:
    return next_key(root_key("crash", ""), np.array([number, *range(63)], "<u4"))


def examine(root: Path, shadow: Shadow) -> int:
    """Blocks that were under way and turned out whole. Raises AssertionError."""
    engine = LocalEngine([root / "a", root / "b"], OPTIONS)
    try:
        blocks = engine.scan().blocks
        there = {block.key for block in blocks}
        assert len(there) == len(blocks), "a block is listed twice"
        assert shadow.must <= there, f"{len(shadow.must - there)} committed blocks are lost"
        assert there <= shadow.must | shadow.may, f"{len(there - shadow.must - shadow.may)} blocks should not be there"
        for block in blocks:
            _, data = block_of(shadow.number_of[block.key])
            into = memoryview(bytearray(block.length))
            (outcome,) = engine.load([Read(block.key, block.length, 0, into)])
            assert outcome is None, f"a committed block can't be read: {outcome}"
            assert into == data, "wrong bytes"
        segments = list(root.glob("*/segments/*"))
        taken = sum(path.stat().st_blocks * 512 for path in segments)
        right = sum(engine.footprint(block.length) for block in blocks)
        assert right <= taken <= right + SEGMENT_SLACK * len(segments), f"{taken} bytes taken, {right} stored"
        extra = {path.name for path in root.glob("*/*")} - {"lock", "segments"}
        assert not extra, f"left over: {extra}"
        surprising = len(there - shadow.must)
        shadow.must, shadow.may = there, set()
        return surprising
    finally:
        engine.close()


def one_round(root: Path, number: int, shadow: Shadow, seed: int, faults: bool) -> int:
    rng = random.Random(seed)
    command = [sys.executable, "-m", "bench.store_crash", "--child", str(root), "--from", str(1 + number * 1_000_000)]
    process = subprocess.Popen(
        [*command, "--seed", str(seed), *([] if faults else ["--no-faults"])],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    killer = threading.Timer(rng.uniform(0.05, 0.6), process.kill)
    assert process.stdout is not None
    try:
        for at, line in enumerate(process.stdout):
            if at == 0:
                killer.start()
            shadow.hear(line)
    finally:
        process.kill()
        _, errors = process.communicate(timeout=60)
    killer.cancel()
    assert process.returncode == -signal.SIGKILL, f"the process ended by itself: {errors.decode()[-2000:]}"
    return examine(root, shadow)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=None, help="where to make the store; default: a temporary one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-faults", action="store_true", help="kills only")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--from", type=int, dest="first", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.first, options.seed, not options.no_faults)
        return
    root = Path(tempfile.mkdtemp(prefix="store-crash.", dir=options.folder))
    shadow, begun = Shadow(), time.monotonic()
    try:
        for number in range(options.rounds):
            seed = options.seed * 1_000_000 + number
            whole = one_round(root, number, shadow, seed, not options.no_faults)
            if number % 10 == 9 or whole:
                print(f"round {number + 1}: {len(shadow.must)} blocks right, {whole} of them under way when killed")
    finally:
        shutil.rmtree(root)
    print(f"{options.rounds} rounds, no fault found, {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
