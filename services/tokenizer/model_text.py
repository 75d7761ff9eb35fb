"""All that a front end knows of one model: how its text is cut, joined, and framed as a chat."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hostless.v1 import frontend_pb2 as pb
from services.common.gguf_file import read_metadata
from services.tokenizer import encoders
from services.tokenizer.chat_template import ChatTemplate
from services.tokenizer.control_guard import ControlGuard
from services.tokenizer.detokenize import TokenText
from services.tokenizer.encoder import Encoder, TokenIds
from services.tokenizer.errors import invalid
from services.tokenizer.messages import parse_messages, parse_tools, parse_variables
from services.tokenizer.sampling_defaults import SamplingDefaults, of_folder
from services.tokenizer.tokenizer_json import read_json
from services.tokenizer.tool_formats import Opening, opening
from services.tokenizer.tool_use import probe

TOOL_USE = "tool_use"
"""What the template for chats with tools is called where a model has several."""


class ModelFilesMissing(FileNotFoundError):
    """The model's folder holds no tokenizer; the message names the folder and what it lacks."""


@dataclass(frozen=True, slots=True)
class Templates:
    """Sources of a model's chat templates."""

    chat: str | None
    tools: str | None = None
    """For chats with tools, where that is another one."""
    tool_format: pb.ToolFormat = pb.TOOL_FORMAT_NONE
    """In which the model writes calls; none: as its template does."""


class TooLong(ValueError):
    """The text is of more tokens than asked for: of `least` or more."""

    def __init__(self, least: int) -> None:
        super().__init__(f"the text has {least} tokens or more")
        self.least = least


class ModelText:
    """Immutable and thread-safe; the encoding methods are long for long prompts and belong off the event loop.

    Every prompt of a model that was trained with a begin token starts with exactly one, whatever its kind.
    Control tokens come from the chat template and from ids only, never from text that a user wrote.
    """

    def __init__(self, encoder: Encoder, templates: Templates, sampling: SamplingDefaults | None = None) -> None:
        """Raises TemplateError."""
        vocabulary = encoder.vocabulary
        self.encoder = encoder
        self.sampling = sampling or SamplingDefaults()
        self._guard = ControlGuard(vocabulary)
        self._bos = vocabulary.bos_id if vocabulary.add_bos else None
        self._template = None
        if templates.chat:
            eos = vocabulary.text_of(vocabulary.eos_ids[0] if vocabulary.eos_ids else None)
            special = {"bos_token": vocabulary.text_of(vocabulary.bos_id), "eos_token": eos}
            self._template = self._tools_template = ChatTemplate(templates.chat, special)
            if templates.tools:
                self._tools_template = ChatTemplate(templates.tools, special)
            self._tool_use = probe(self._tools_template, templates.tool_format)

    def token_text(self, size: int) -> TokenText:
        """The table for detokenizers, of at least `size` ids: an engine may emit ids past the vocabulary."""
        table = self.encoder.vocabulary.token_bytes
        return TokenText(table, max(size, len(table)))

    def opening(self, chat: pb.Chat) -> Opening | None:
        """Of the answer to a chat with tools that `encode_chat` has taken."""
        if not chat.tools_json:
            return None
        return opening(self._tool_use.tool_format, chat.call if chat.HasField("call") else None)

    def encode_chat(self, chat: pb.Chat, model: str, most: int | None = None) -> TokenIds:
        """Raises RequestError for messages and tools that are malformed or that the template refuses or has no place
        for, and TooLong as `encode_text` does. `model` is how messages call it."""
        if self._template is None:
            raise invalid("this model has no chat template; use /v1/completions", "messages")
        messages, tools, mark = parse_messages(chat.messages_json), parse_tools(chat.tools_json), self._guard.new_mark()
        template = self._template
        if tools:
            self._tool_use.check_tools(model)
        if tools or any("tool_calls" in message or message["role"] == "tool" for message in messages):
            template, messages = self._tools_template, self._tool_use.prepare(messages)
        begun = self.opening(chat)
        given = parse_variables(chat.variables_json).items()
        try:
            protected = [self._protect(message, mark) for message in messages]
            variables = {name: self._guard.protect(value, mark) for name, value in given}
            rendered = template.render(protected, self._guard.protect(tools, mark), variables)
            rendered += begun.text if begun else ""
            self._check_length(rendered.replace(mark, ""), most)  # UnicodeEncodeError: JSON can spell what is no text
            return self._begin(self._guard.encode(rendered, mark, self.encoder))
        except RecursionError as error:
            raise invalid("messages are nested too deeply", "messages") from error
        except UnicodeEncodeError as error:
            raise invalid("messages hold half of a surrogate pair, which is no text", "messages") from error

    def encode_text(self, text: str, most: int | None = None) -> TokenIds:
        """Raises TooLong for a text that is so long that it must have more than `most` tokens: encoding megabytes
        takes seconds. An answer may have more all the same."""
        self._check_length(text, most)
        return self._begin(self.encoder.encode(text, add_special=False))

    def begin_ids(self, ids: TokenIds) -> TokenIds:
        """Ids as a user gave them, with the begin token in front where the model wants one and they lack it."""
        return self._begin(ids)

    def _check_length(self, text: str, most: int | None) -> None:
        least = self.encoder.vocabulary.least_tokens(text)
        if most is not None and least > most:
            raise TooLong(least)

    def _protect(self, message: dict[str, Any], mark: str) -> dict[str, Any]:
        # Roles are compared by templates and checked to be plain names; field names are the API's.
        return {key: value if key == "role" else self._guard.protect(value, mark) for key, value in message.items()}

    def _begin(self, ids: TokenIds) -> TokenIds:
        if self._bos is None:
            return ids
        own = int(np.argmax(ids != self._bos)) if (ids != self._bos).any() else len(ids)
        return np.concatenate([np.array([self._bos], dtype=np.uint32), ids[own:]])


def load(folder: Path, tool_format: pb.ToolFormat = pb.TOOL_FORMAT_NONE, *, own_sampling: bool = True) -> ModelText:
    """From a model's folder: tokenizer.json if it is there, else its one .gguf file. `tool_format`: as in Templates;
    `own_sampling`: whether its generation_config.json says how requests that don't say are sampled.

    Raises ModelFilesMissing, UnsupportedTokenizer, GgufError or TemplateError; each names file and reason.
    """
    sampling = of_folder(folder) if own_sampling else SamplingDefaults()
    if (folder / "tokenizer.json").exists():
        return ModelText(encoders.from_folder(folder), _templates_of(folder, tool_format), sampling)
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise ModelFilesMissing(f"{folder} holds neither tokenizer.json nor a .gguf file; is the model pulled?")
    metadata = read_metadata(files[0])
    key = "tokenizer.chat_template"
    templates = Templates(metadata.get(key), metadata.get(f"{key}.{TOOL_USE}"), tool_format)
    return ModelText(encoders.from_gguf(metadata), templates, sampling)


def _templates_of(folder: Path, tool_format: pb.ToolFormat) -> Templates:
    file = folder / "chat_template.jinja"
    if file.exists():
        more = folder / "additional_chat_templates" / f"{TOOL_USE}.jinja"
        tools = more.read_text(encoding="utf-8") if more.exists() else None
        return Templates(file.read_text(encoding="utf-8"), tools, tool_format)
    template = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):  # several by name
        named = {entry["name"]: entry["template"] for entry in template}
        return Templates(named.get("default"), named.get(TOOL_USE), tool_format)
    return Templates(template, None, tool_format)
