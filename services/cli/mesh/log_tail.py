"""The end of a service's log, for a person: JSON records become plain lines, tracebacks keep their last part."""

import json
from collections.abc import Iterator
from pathlib import Path

TRACEBACK_LINES = 8


def read(log: Path, count: int) -> list[str]:
    """The last `count` lines; none when there is no log."""
    if not log.exists():
        return []
    lines = log.read_text(errors="replace").splitlines()[-count:]
    return [plain for line in lines for plain in _plain(line)][-count:]


def reason(log: Path) -> str:
    """What a service said of a wrong setting, file or port: its last line then. Empty when it ended otherwise."""
    last = read(log, 1)
    return last[0].partition(": ")[2] if last and last[0].startswith("hostless ") else ""


def _plain(line: str) -> Iterator[str]:
    try:
        record = json.loads(line)
        head = f"{record['level']}: {record['message']}"
    except (ValueError, TypeError, KeyError):
        yield line
        return
    details = {k: v for k, v in record.items() if k not in ("time", "level", "service", "message", "exception")}
    yield " ".join([head, *(f"{k}={v}" for k, v in details.items())])
    for inner in str(record.get("exception", "")).splitlines()[-TRACEBACK_LINES:]:
        yield f"  {inner}"
