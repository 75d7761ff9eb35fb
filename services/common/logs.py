"""Structured logs: one line a record on stderr, JSON unless a person watches, with the request's id."""

import contextvars
import json
import logging
import sys
import time
from typing import Any

from services.common.settings import SettingError

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")

LEVELS = ("debug", "info", "warning", "error")

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "taskName"}


class _Json(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self.service = service

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_fields(self.service, record), ensure_ascii=False, default=str)


class _Terse(logging.Formatter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self.service = service

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(self.service, record)
        extra = " ".join(f"{k}={v}" for k, v in fields.items() if k not in {"time", "level", "service", "message"})
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        return f"{clock} {self.service:<16} {record.levelname.lower():<7} {fields['message']} {extra}".rstrip()


def _fields(service: str, record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "time": round(record.created, 6),
        "level": record.levelname.lower(),
        "service": service,
        "message": record.getMessage(),
    }
    if request := request_id.get():
        fields["request_id"] = request
    fields.update({k: v for k, v in vars(record).items() if k not in _PLAIN})
    if record.exc_info:
        fields["exception"] = logging.Formatter().formatException(record.exc_info)
    return fields


def setup(service: str, level: str = "info") -> None:
    """Routes all logging of this process to stderr. `extra={...}` of a record becomes fields of its line.

    Raises SettingError for a level that is none of LEVELS.
    """
    if level not in LEVELS:
        raise SettingError(f"log-level: {level!r} is not one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Terse(service) if sys.stderr.isatty() else _Json(service))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
