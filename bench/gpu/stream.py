"""One streamed completion of given token ids, and when its tokens came."""

import http.client
import json
import time
from urllib.parse import urlsplit


def stream(url: str, model: str, prompt: list[int], count: int, timeout_s: float = 120) -> tuple[str, list[float]]:
    """Text, and when each event came, in seconds from the request; the first is the first token."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=timeout_s)
    body = {"model": model, "prompt": prompt, "max_tokens": count, "stream": True, "ignore_eos": True, "temperature": 0}
    begin = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {answer.read()[:300]!r}")
    text, stamps = "", []
    while line := answer.readline():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(str(event["error"])[:300])
        if event["choices"]:
            stamps.append(time.perf_counter() - begin)
            text += event["choices"][0]["text"]
    connection.close()
    return text, stamps
