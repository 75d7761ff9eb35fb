"""The encoders that bench/tokenizer.py compares, each by its own Python call, for the vocabularies that it knows."""

import ctypes
import importlib.metadata
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Encode = Callable[[str], Sequence[int] | NDArray[np.uint32]]

VOCABULARIES = {
    "cl100k": "tokenizer-gpt4",
    "o200k": "tokenizer-gpt4o",
    "qwen3": "tokenizer-qwen3",
    "llama3": "tokenizer-llama3",
    "deepseek3": "tokenizer-deepseek_v3",
    "gemma3": "tokenizer-gemma3",
}
PACKAGES = ("tokenizers", "tiktoken", "rs_bpe", "bpe-qwen", "xllamacpp")


def versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def of_folder(name: str, folder: Path) -> dict[str, Encode]:
    """Every encoder that is installed and knows this vocabulary: ours first, then the reference."""
    peers = {"hostless": hostless(folder), "tokenizers": tokenizers(folder)}
    builders: dict[str, Callable[[], Encode]] = {}
    if name in {"cl100k", "o200k", "qwen3", "llama3"}:
        builders["tiktoken"] = lambda: tiktoken(name, folder)
    if name in {"cl100k", "o200k"}:
        builders["rs-bpe"] = lambda: rs_bpe(name)
    if name == "qwen3":
        builders["bpe-qwen"] = lambda: bpe_qwen(folder)
    for peer, build in builders.items():
        try:
            peers[peer] = build()
        except ImportError as error:
            print(f"{peer} is left out: {error}")
    return peers


def of_gguf(file: Path) -> dict[str, Encode]:
    from services.common.gguf_file import read_metadata
    from services.tokenizer import encoders, hf_encoder

    metadata = read_metadata(file)
    native, library = encoders.from_gguf(metadata), hf_encoder.from_gguf(metadata)
    peers: dict[str, Encode] = {
        "hostless": lambda text: native.encode(text, add_special=False),
        "tokenizers": lambda text: library._plain.encode(text, add_special_tokens=False).ids,
    }
    try:
        peers["llama.cpp"] = llama_cpp(file)
    except ImportError as error:
        print(f"llama.cpp is left out: {error}")
    return peers


def hostless(folder: Path) -> Encode:
    from services.tokenizer.bpe_encoder import BpeEncoder
    from services.tokenizer.tokenizer_json import read_recipe

    encoder = BpeEncoder(read_recipe(folder))
    return lambda text: encoder.encode(text, add_special=False)


def tokenizers(folder: Path) -> Encode:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def tiktoken(name: str, folder: Path) -> Encode:
    import tiktoken
    import tiktoken_ext.openai_public as public

    pattern: str
    if name in {"cl100k", "o200k"}:  # its own form of the regex, quicker for its engine
        public.load_tiktoken_bpe = lambda *_, **__: {}
        pattern = getattr(public, f"{name}_base")()["pat_str"]
    else:
        (pattern,) = (
            step["pattern"]["Regex"]
            for step in _tokenizer_json(folder)["pre_tokenizer"]["pretokenizers"]
            if step["type"] == "Split"
        )
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=_ranks(folder), special_tokens={})
    encode: Encode = encoding.encode_ordinary
    return encode


def rs_bpe(name: str) -> Encode:
    from rs_bpe.bpe import openai

    encode: Encode = getattr(openai, f"{name}_base")().encode
    return encode


def bpe_qwen(folder: Path) -> Encode:
    from bpe_qwen import bpe_qwen as native

    model = _tokenizer_json(folder)["model"]
    with tempfile.TemporaryDirectory() as made:
        merges = (line if isinstance(line, str) else " ".join(line) for line in model["merges"])
        Path(made, "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
        Path(made, "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
        encode: Encode = native.QwenTokenizer(made).encode
    return encode


_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)


def llama_cpp(file: Path) -> Encode:
    """By the C interface of the library within the `xllamacpp` wheel; llama-cpp-python has none to install."""
    import xllamacpp

    class Parameters(ctypes.Structure):  # larger than llama_model_params, which is passed in memory
        _fields_ = [("bytes", ctypes.c_uint8 * 512)]

    library = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("xllamacpp*.so"))))
    library.llama_model_default_params.restype = Parameters
    library.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Parameters]
    library.llama_model_load_from_file.restype = library.llama_model_get_vocab.restype = ctypes.c_void_p
    library.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
    library.llama_tokenize.argtypes = [
        *(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32),
        *(ctypes.c_bool, ctypes.c_bool),
    ]
    library.llama_log_set(_SILENT, None)
    library.llama_backend_init()
    model = library.llama_model_load_from_file(str(file).encode(), library.llama_model_default_params())
    if not model:
        raise ImportError(f"llama.cpp can't load {file}")
    vocabulary = library.llama_model_get_vocab(model)
    room = (ctypes.c_int32 * (1 << 21))()

    def encode(text: str) -> Sequence[int]:
        data = text.encode()
        count: int = library.llama_tokenize(vocabulary, data, len(data), room, len(room), False, False)
        return memoryview(room)[:count].cast("B").cast("i")

    return encode


def _tokenizer_json(folder: Path) -> Any:
    return json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))


def _ranks(folder: Path) -> dict[bytes, int]:
    from services.tokenizer.hf_encoder import _bytes_of, _letters

    letters = _letters()
    return {_bytes_of(text, letters): rank for text, rank in _tokenizer_json(folder)["model"]["vocab"].items()}
