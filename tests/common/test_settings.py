"""Settings: precedence, and errors that name the bad key."""

from dataclasses import dataclass

import pytest

from services.common.settings import (
    SettingError,
    load,
    require,
    require_above,
    require_addresses,
    require_least,
    setting,
)


@dataclass(frozen=True)
class Example:
    port: int = setting(8000, "port to listen on")
    rate: float = setting(1.5, "share, 100% at most")
    name: str = setting("x", "a name")
    fast: bool = setting(False, "skip the slow part")
    tags: tuple[str, ...] = setting((), "comma-separated tags")
    room_bytes: int = setting(1024, "room")
    write_limit_bytes_s: int = setting(0, "most written a second")

    def __post_init__(self) -> None:
        require(self.port >= 0, f"port: {self.port} is negative")


@dataclass(frozen=True)
class Peers:
    peer: str = ""
    max_wait_s: float = 0.0


def test_defaults() -> None:
    assert load(Example, "example", [], {}) == Example()


def test_flags_beat_environment() -> None:
    environ = {"HOSTLESS_EXAMPLE_PORT": "1", "HOSTLESS_EXAMPLE_FAST": "yes", "HOSTLESS_OTHER_PORT": "7"}
    got = load(Example, "example", ["--port", "2", "--tags", "a, b,"], environ)
    assert got == Example(port=2, fast=True, tags=("a", "b"))


@pytest.mark.parametrize(
    ("argv", "environ", "named"),
    [
        (["--prot", "1"], {}, "--prot"),
        (["--por", "1"], {}, "--por"),
        (["--port", "one"], {}, "port: 'one' is not a whole number"),
        (["--port", "4k"], {}, "port: '4k' is not a whole number"),
        (["--rate", "fast"], {}, "rate: 'fast' is not a number"),
        (["--room-bytes", "4 gigs"], {}, "room-bytes: '4 gigs' is not a size; for example: 4096"),
        ([], {"HOSTLESS_EXAMPLE_ROOM_BYTES": ""}, "room-bytes: '' is not a size"),
        (["--fast", "maybe"], {}, "fast: 'maybe'"),
        (["--port", "-1"], {}, "port: -1"),
        ([], {"HOSTLESS_EXAMPLE_PROT": "1"}, "HOSTLESS_EXAMPLE_PROT"),
    ],
)
def test_bad_key_or_value_is_named(argv: list[str], environ: dict[str, str], named: str) -> None:
    with pytest.raises(SettingError, match=named.replace("--", "")):
        load(Example, "example", argv, environ)


def test_those_like_an_unknown_flag_are_named() -> None:
    with pytest.raises(SettingError, match="--prot is not a setting of example; like it: --port"):
        load(Example, "example", ["--prot=3"], {})
    with pytest.raises(SettingError, match=r"^stray is not a setting of example; --help lists every setting$"):
        load(Example, "example", ["stray"], {})


def test_bytes_take_a_unit() -> None:
    got = load(Example, "example", ["--room-bytes", "4GiB"], {"HOSTLESS_EXAMPLE_WRITE_LIMIT_BYTES_S": "1.5m"})
    assert got == Example(room_bytes=4 << 30, write_limit_bytes_s=3 << 19)
    assert load(Example, "example", ["--room-bytes", "-1"], {}).room_bytes == -1, "bounds are the settings' own"


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        load(Example, "example", ["--help"], {})
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for flag in ("--port", "--rate", "--name", "--fast", "--tags", "HOSTLESS_EXAMPLE_PORT"):
        assert flag in shown


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "host:port", "host:65536", "host:-1", "host:²"])
def test_what_is_no_address_is_named(address: str) -> None:
    with pytest.raises(SettingError, match=r"peer: .* is not host:port"):
        require_addresses(Peers(peer=address), "peer")


@pytest.mark.parametrize("address", ["localhost:0", "127.0.0.1:65535", "[::1]:80"])
def test_addresses(address: str) -> None:
    require_addresses(Peers(peer=address), "peer")


def test_an_address_may_be_empty_where_it_is_said() -> None:
    require_addresses(Peers(), or_empty=("peer",))
    with pytest.raises(SettingError, match="peer: 'host' is not host:port"):
        require_addresses(Peers(peer="host"), or_empty=("peer",))


def test_bounds_are_named() -> None:
    require_least(Peers(), 0, "max_wait_s")
    with pytest.raises(SettingError, match=r"max-wait-s: 0\.0 is not above 0"):
        require_above(Peers(), 0, "max_wait_s")
    with pytest.raises(SettingError, match=r"max-wait-s: 0\.0 is below 1"):
        require_least(Peers(), 1, "max_wait_s")
