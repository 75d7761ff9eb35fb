"""What generation_config.json says of sampling holds where a request says nothing."""

import json
from pathlib import Path

import pytest

from hostless.v1 import frontend_pb2 as pb
from services.tokenizer.encoder import UnsupportedTokenizer
from services.tokenizer.sampling_defaults import SamplingDefaults, of_folder


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (None, SamplingDefaults()),
        ({"eos_token_id": 2}, SamplingDefaults()),
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, SamplingDefaults(0.6, 0.95, 20)),
        ({"temperature": 0, "top_p": None, "top_k": -1}, SamplingDefaults(0, 1.0, 0)),
    ],
)
def test_of_a_folder(tmp_path: Path, config: dict[str, object] | None, found: SamplingDefaults) -> None:
    if config is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert of_folder(tmp_path) == found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "hot"),
        ("temperature", 10**400),
        ("temperature", 1e39),
        ("top_p", 1e-50),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", 2.5),
        ("top_k", True),
        ("top_k", -2),
    ],
)
def test_what_is_none_is_named(tmp_path: Path, name: str, value: object) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({name: value}))
    with pytest.raises(UnsupportedTokenizer, match=rf"generation_config.json: {name} can't be"):
        of_folder(tmp_path)


def test_what_a_request_says_stays() -> None:
    defaults = SamplingDefaults(0.6, 0.95, 20)
    sampling = pb.Sampling(temperature=0, top_k=0)
    defaults.fill(sampling)
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0, 0, pytest.approx(0.95))
    defaults.fill(silent := pb.Sampling())
    assert (silent.temperature, silent.top_p, silent.top_k) == (pytest.approx(0.6), pytest.approx(0.95), 20)
