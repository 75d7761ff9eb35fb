"""API keys from a file, compared in constant time, read again on SIGHUP."""

import hashlib
import hmac
import logging
import re
from dataclasses import dataclass
from pathlib import Path

from services.common.settings import SettingError
from services.gateway.errors import ApiError

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_KEY = re.compile(r"[\x21-\x7e]{1,512}")


@dataclass(frozen=True)
class Key:
    """A key's sha256, and whose it is: "" is the public tenant."""

    digest: bytes
    tenant: str


def parse_keys(text: str) -> tuple[Key, ...]:
    """One key a line: `key`, or `name:key`, then requests with it are of tenant `name`. Empty lines and lines that
    start with # don't count. Raises SettingError, which names the line but never shows a key."""
    keys: dict[bytes, Key] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        tenant, colon, key = line.rpartition(":")
        if colon and not _NAME.fullmatch(tenant):
            raise SettingError(f"line {number}: the name before ':' must be 1 to 64 letters, digits, '_', '.' or '-'")
        if not _KEY.fullmatch(key):
            raise SettingError(f"line {number}: a key is 1 to 512 visible ASCII characters without spaces")
        digest = hashlib.sha256(key.encode()).digest()
        if digest in keys:
            raise SettingError(f"line {number}: the same key stands on an earlier line")
        keys[digest] = Key(digest, tenant)
    if not keys:
        raise SettingError("there is no key in it")
    return tuple(keys.values())


def find_tenant(keys: tuple[Key, ...], given: str) -> str | None:
    """The tenant of a key, None if it is none of them. Takes as long for any answer."""
    digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
    found: str | None = None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            found = key.tenant
    return found


class Auth:
    """Who may call /v1: anyone if no file is set, else who brings `Authorization: Bearer KEY`."""

    def __init__(self, path: str) -> None:
        """Raises SettingError if the file can't be read."""
        self._path = path
        self._keys = _read(path) if path else ()

    def tenant(self, authorization: str | None) -> str:
        """Raises ApiError(401)."""
        if not self._path:
            return ""
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise _unauthorized("an API key is missing; send it as `Authorization: Bearer KEY`")
        tenant = find_tenant(self._keys, key.strip())
        if tenant is None:
            raise _unauthorized("the API key is not known here")
        return tenant

    def reload(self) -> None:
        """Reads the file again; if it is wrong, says so in the log and keeps the keys there are."""
        if not self._path:
            log.info("SIGHUP: no file of API keys is set, nothing to read again")
            return
        try:
            self._keys = _read(self._path)
        except SettingError as error:
            log.error("SIGHUP: the old API keys stay", extra={"reason": str(error)})
        else:
            log.info("SIGHUP: API keys read again", extra={"keys": len(self._keys)})


def _read(path: str) -> tuple[Key, ...]:
    try:
        return parse_keys(Path(path).read_text("utf-8-sig"))  # some editors put a mark in front
    except (OSError, UnicodeDecodeError, SettingError) as error:
        raise SettingError(f"api-keys: {path}: {error}") from None


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
