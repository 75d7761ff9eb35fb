"""Key files: what is right, and errors that name the line and never show a key."""

from pathlib import Path

import pytest

from services.common.settings import SettingError
from services.gateway.auth import Auth, find_tenant, parse_keys


def test_keys_and_tenants() -> None:
    keys = parse_keys("# keys\n\n  sk-1  \nbob:sk-2\n#alice:sk-3\nteam.a_b-c:sk-4\n")
    assert [find_tenant(keys, f"sk-{i}") for i in range(1, 5)] == ["", "bob", None, "team.a_b-c"]
    for wrong in ("", "sk-", "sk-11", "bob:sk-2", "ü", "\udcff"):
        assert find_tenant(keys, wrong) is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no key"),
        ("# only this\n", "no key"),
        ("sk-1\nsecret words\n", "line 2"),
        ("sk-1\na:sk-1\n", "line 2"),
        ("a b:secret\n", "line 1"),
        (":secret\n", "line 1"),
        ("bob:\n", "line 1"),
        ("sécret\n", "line 1"),
        ("secret" * 100 + "\n", "line 1"),
    ],
)
def test_wrong_files(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(SettingError, match=named) as error:
        Auth(str(path))
    assert str(path) in str(error.value)
    assert "secret" not in str(error.value).replace(str(path), "")


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no-such-file"):
        Auth(str(tmp_path / "no-such-file"))
    (tmp_path / "keys").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="keys"):
        Auth(str(tmp_path / "keys"))


def test_a_file_from_another_editor(tmp_path: Path) -> None:
    """With a byte order mark and carriage returns."""
    (tmp_path / "keys").write_bytes(b"\xef\xbb\xbfsk-1\r\nbob:sk-2\r\n")
    auth = Auth(str(tmp_path / "keys"))
    assert (auth.tenant("Bearer sk-1"), auth.tenant("Bearer sk-2")) == ("", "bob")


def test_without_a_file_all_may_pass() -> None:
    auth = Auth("")
    assert auth.tenant(None) == ""
    auth.reload()
    assert auth.tenant("Bearer anything") == ""
