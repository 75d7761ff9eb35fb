"""hostless chat against a fake server."""

from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner

from services.cli.errors import CliError
from services.cli.main import app
from services.cli.openai_api import Answer, OpenAiApi
from tests.cli.conftest import FakeOpenAi, sse


def chat(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["chat", *arguments], input=stdin)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_one_question(server: FakeOpenAi) -> None:
    code, out, err = chat("--url", server.url, "-m", "Hi", "--temperature", "0", "--max-tokens", "5", "--stats")
    assert (code, out) == (0, "Hello!\n")
    [body] = server.bodies
    assert body["model"] == "tiny"
    assert body["messages"] == [{"role": "user", "content": "Hi"}]
    assert (body["temperature"], body["max_tokens"], body["stream"]) == (0, 5, True)
    assert "top_p" not in body
    assert "prompt 7 tokens" in err
    assert "(stop)" in err


def test_from_stdin_with_system_message_and_key(server: FakeOpenAi) -> None:
    code, _, _ = chat("--url", f"{server.url}/v1/", "-m", "-", "--system", "Be brief.", "--api-key", "k", stdin="a\nb")
    assert code == 0
    assert server.bodies[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb"},
    ]
    assert server.headers[0]["Authorization"] == "Bearer k"


def test_ctrl_c_in_an_answer(server: FakeOpenAi, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(api: OpenAiApi, body: object, answer: Answer) -> Iterator[str]:
        answer.text = "Hel"
        yield "Hel"
        raise KeyboardInterrupt

    monkeypatch.setattr(OpenAiApi, "chat", cut)
    assert chat("--url", server.url, "-m", "Hi")[:2] == (130, "Hel\n")


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lines that the user will type; the end of them is Ctrl-D."""

    def type_(*lines: str) -> None:
        rest: Iterator[str] = iter(lines)

        def read(_: str) -> str:
            line = next(rest, None)
            if line is None:
                raise EOFError
            return line

        monkeypatch.setattr("builtins.input", read)

    return type_


def test_a_conversation_has_a_history(server: FakeOpenAi, typed: Callable[..., None]) -> None:
    typed("one", "two", "/reset", "three", "/system Rhyme.", "four", "/what", "/exit", "never")
    code, out, _ = chat("--url", server.url)
    assert code == 0
    assert "no command /what" in out
    asked = [[m["content"] for m in body["messages"]] for body in server.bodies]
    assert asked == [["one"], ["one", "Hello!", "two"], ["three"], ["Rhyme.", "four"]]


def test_an_error_does_not_end_a_conversation_nor_enter_its_history(
    server: FakeOpenAi, typed: Callable[..., None]
) -> None:
    answers = iter([(400, b'{"error": {"message": "too [/long]"}}')])
    server.reply = lambda body: next(answers, (200, sse({"choices": [{"delta": {"content": "ok"}}]}, end=True)))
    typed("a", "b")
    code, out, err = chat("--url", server.url)
    assert code == 0
    assert "too [/long]" in err
    assert "ok" in out
    assert [m["content"] for m in server.bodies[1]["messages"]] == ["b"]


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (429, b'{"error": {"message": "queue is full"}}', "429: queue is full"),
        (502, b"<html>bad gateway", "502: <html>bad gateway"),
        (200, sse({"error": {"message": "engine lost"}}, end=False), "engine lost"),
        (200, sse({"choices": [{"delta": {"content": "half"}}]}, end=False), "before its end"),
    ],
)
def test_errors_are_said(server: FakeOpenAi, status: int, body: bytes, says: str) -> None:
    server.reply = lambda _: (status, body)
    with pytest.raises(CliError, match=says):
        chat("--url", server.url, "-m", "Hi")


def test_nobody_there() -> None:
    with pytest.raises(CliError, match=r"nothing answers at http://127\.0\.0\.1:9"):
        chat("--url", "127.0.0.1:9", "-m", "Hi")


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port", "x:70000", "http://[::1", "::1"])
def test_not_a_url(url: str) -> None:
    with pytest.raises(CliError, match="is not the URL"):
        OpenAiApi(url)


@pytest.mark.parametrize("command", [["chat", "-m", "Hi"], ["bench"]])
@pytest.mark.parametrize(
    ("page", "says"),
    [(b'{"data": []}', "serves no model"), (b"<html>", "lists no models"), (b"[1]", "lists no models")],
)
def test_no_model(server: FakeOpenAi, command: list[str], page: bytes, says: str) -> None:
    server.pages["/v1/models"] = page
    with pytest.raises(CliError, match=says):
        CliRunner().invoke(app, [*command, "--url", server.url], catch_exceptions=False)
    assert server.bodies == []


def test_closing_the_iterator_closes_the_stream(server: FakeOpenAi) -> None:
    answer = Answer()
    pieces = OpenAiApi(server.url).chat({"model": "tiny", "messages": []}, answer)
    assert next(pieces) == "Hel"
    pieces.close()
    assert (answer.text, answer.finish_reason) == ("Hel", "")
