"""The parser of each format."""

from collections.abc import Callable, Mapping

from hostless.v1 import frontend_pb2 as pb
from services.gateway.tool_calls.hermes import HermesParser
from services.gateway.tool_calls.llama3_json import Llama3JsonParser
from services.gateway.tool_calls.pieces import Parser

PARSERS: Mapping[int, Callable[[], Parser]] = {
    pb.TOOL_FORMAT_HERMES: HermesParser,
    pb.TOOL_FORMAT_LLAMA3_JSON: Llama3JsonParser,
}
