"""Which engine, which scheduler, which defaults; what contradicts itself is refused by name."""

import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from services.common.settings import SettingError, load
from services.gpu_backend.loading import LoadingProgress, load_kit
from services.gpu_backend.settings import BackendSettings


def settings(**flags: Any) -> BackendSettings:
    given = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    return load(BackendSettings, "gpu_backend", given, {})


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, ("host", "float32", 16, 512)),
        ({"engine": "synthetic"}, ("host", "float32", 256, 512)),
        ({"engine": "cuda"}, ("device", "bfloat16", 64, 2304)),
        ({"engine": "cuda", "scheduler_kind": "host"}, ("host", "bfloat16", 64, 2304)),
        ({"engine": "cuda", "scheduler_kind": "host-overlap"}, ("host-overlap", "bfloat16", 64, 2304)),
        ({"engine": "cuda", "dtype": "float32", "lanes": 8, "step_tokens": 99}, ("device", "float32", 8, 99)),
        ({"engine": "cuda", "lanes": 3000}, ("device", "bfloat16", 3000, 3000)),
    ],
)
def test_what_an_engine_gets_unless_told_otherwise(flags: dict[str, Any], expected: tuple[Any, ...]) -> None:
    s = settings(**flags)
    assert (s.scheduling, s.number_type, s.batch, s.most_step_tokens) == expected


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"scheduler_kind": "device"}, "scheduler-kind: device is for engine cuda, not torch"),
        ({"engine": "cuda", "scheduler_kind": "gpu"}, "'gpu' is not one of host, host-overlap, device"),
        ({"weights": "none"}, "weights: 'none' is not one of files, random"),
        ({"gpu_memory": 1.5}, "gpu-memory: 1.5 is not between 0 and 1"),
        ({"gpu": -1}, "gpu: -1 is below 0"),
        ({"host_patience_s": 0.5}, "host-patience-s: 0.5 is below 5"),
        ({"engine": "cuda", "scheduler_kind": "host-overlap", "kvstore": "h:1"}, "kvstore: none with .* host-overlap"),
        ({"lanes": 64, "step_tokens": 32}, "step-tokens: 32 is less than lanes, 64"),
        ({"mixed_tokens": 8}, "mixed-tokens: 8 is neither -1, 0, nor between lanes, 16, and step-tokens, 512"),
        ({"mixed_tokens": 513}, "mixed-tokens: 513 is neither"),
        ({"attention_time": "1,2"}, "attention-time: .* are not three numbers"),
        ({"attention_time": "1,-2,3"}, "attention-time: .* is no time"),
        ({"attention_time": "1,nan,3"}, "attention-time: .* is no time"),
        ({"attention_quota_ms": 5}, "attention-quota-ms: nothing is known of attention's time: set attention-time"),
    ],
)
def test_what_contradicts_itself_is_named(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        settings(**flags)


@pytest.mark.parametrize(
    ("flags", "tokens"),
    [
        ({}, 0),
        ({"engine": "synthetic"}, 0),
        ({"engine": "cuda"}, 2304),
        ({"engine": "cuda", "mixed_tokens": 0}, 0),
        ({"engine": "cuda", "mixed_tokens": 256}, 256),
        ({"engine": "cuda", "step_tokens": 512}, 512),
        ({"engine": "cuda", "lanes": 2500}, 0),
        ({"mixed_tokens": 100}, 100),
    ],
)
def test_steps_are_mixed_on_a_gpu_where_they_hold_all_lanes(flags: dict[str, Any], tokens: int) -> None:
    assert settings(**flags).most_mixed_tokens == tokens


def test_the_time_of_attention_is_three_numbers() -> None:
    assert settings().attention_seconds == (0, 0, 0)
    assert settings(attention_time="1e-4, 2e-6,3.5e-9", attention_quota_ms=50).attention_seconds == (1e-4, 2e-6, 3.5e-9)


def test_engine_cuda_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOSTLESS_MODELS", str(tmp_path))
    (tmp_path / "some").mkdir()
    monkeypatch.setitem(sys.modules, "triton", None)  # as if it were not installed
    for name in [name for name in sys.modules if name.startswith("services.gpu_backend.engines.cuda")]:
        monkeypatch.delitem(sys.modules, name)
    wanted = settings(engine="cuda", model="some")
    with pytest.raises(SettingError, match=r"engine cuda: .*triton.*pip install -c constraints.txt '\.\[all,cuda\]'"):
        load_kit(wanted, LoadingProgress("some", Event()))
