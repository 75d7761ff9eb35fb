"""Settings of the gateway."""

from dataclasses import dataclass

from services.common.settings import require, require_above, require_addresses, require_least, setting


@dataclass(frozen=True)
class GatewaySettings:
    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for every interface")
    port: int = setting(8000, "port to listen on; 0 picks a free one")
    tokenizer: str = setting("127.0.0.1:7020", "host:port of the tokenizer's gRPC service")
    scheduler: str = setting("127.0.0.1:7010", "host:port of the global scheduler, read for /metrics; empty: none")
    api_keys: str = setting("", "file of API keys, `key` or `name:key` a line, read again on SIGHUP; empty: no keys")
    max_running: int = setting(512, "choices being generated at once")
    max_queue: int = setting(1024, "choices waiting for their turn; beyond it the answer is 429")
    queue_timeout_s: float = setting(60.0, "a request that waited so long for its turn is answered with 429")
    max_choices: int = setting(128, "prompts times n of one request")
    max_body_bytes: int = setting(4 << 20, "longest request body")
    body_timeout_s: float = setting(30.0, "time a client has to send a request's headers, and then its body")
    headers_after_s: float = setting(5.0, "a stream's headers are sent with the first token, or after this time")
    silence_timeout_s: float = setting(600.0, "a request that makes no progress for so long ends with an error")
    ping_s: float = setting(15.0, "silence after which a stream gets an SSE comment, so that proxies keep it open")
    send_timeout_s: float = setting(30.0, "a stream whose client reads nothing for so long, and a ping, is cut")
    grace_s: float = setting(30.0, "time that running requests have to finish after SIGTERM")
    log_level: str = setting("info", "debug, info, warning or error")

    def __post_init__(self) -> None:
        require(0 <= self.port <= 65535, f"port: {self.port} is not between 0 and 65535")
        require_addresses(self, "tokenizer", or_empty=("scheduler",))
        require_least(self, 1, "max_running")
        require_least(self, 0, "max_queue", "grace_s")
        require_above(self, 0, "queue_timeout_s", "body_timeout_s", "headers_after_s", "silence_timeout_s")
        require_above(self, 0, "ping_s", "send_timeout_s")
        require(
            1 <= self.max_choices <= self.max_running,
            f"max-choices: {self.max_choices} is not between 1 and max-running ({self.max_running})",
        )
        require(
            1024 <= self.max_body_bytes <= 16 << 20,
            f"max-body-bytes: {self.max_body_bytes} is not between 1024 and {16 << 20}",
        )
