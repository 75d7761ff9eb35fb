"""What Prometheus is given beside the stack: its pages are the stack's, the names in alerts are ones that we serve."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
METRICS = re.compile(r"hostless:(\w+?)(?:_total|_bucket)?\b")
OWNERS = ("engine_kv_", "engine_", "kvstore_", "scheduler_", "tokenizer_")
"""What is put in front of the names of those who are not the gateway."""


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / "compose" / name).read_text())


@pytest.fixture(scope="module")
def served() -> str:
    """The sources in which metrics are named."""
    return "\n".join(path.read_text() for path in (ROOT / "services").glob("*/*metrics.py"))


def names(group: dict[str, Any]) -> list[str]:
    return [name for rule in group["rules"] for name in METRICS.findall(rule["expr"])]


def test_alerts_are_about_metrics_that_there_are(served: str) -> None:
    asked = [name for group in load("alerts.yml")["groups"] for name in names(group)]
    assert len(asked) > 10
    for name in asked:
        forms = {name, *(name.removeprefix(owner) for owner in OWNERS if name.startswith(owner))}
        assert any(f'"{form}"' in served or f'"hostless:{form}"' in served for form in forms), name


def test_alerts_say_what_is_wrong() -> None:
    rules = [rule for group in load("alerts.yml")["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["annotations"]["summary"], rule["alert"]


def test_what_is_scraped_is_where_the_stack_serves_it() -> None:
    services = load("docker-compose.yml")["services"]
    [job] = load("prometheus.yml")["scrape_configs"]
    targets = {config["labels"]["service"]: config["targets"] for config in job["static_configs"]}
    expected = {}
    for name, service in services.items():
        for variable, value in service.get("environment", {}).items():
            if variable.endswith("_METRICS_ADDRESS"):
                expected[name] = [f"{name}:{value.rpartition(':')[2]}"]
    expected["gateway"] = ["gateway:8000"]  # beside its API
    assert targets == expected
    assert set(expected) == set(services) - {"prometheus"}


def test_a_container_has_longer_to_stop_than_its_requests_have() -> None:
    services = load("docker-compose.yml")["services"]
    for name in ("gateway", "tokenizer"):
        assert int(services[name]["stop_grace_period"].removesuffix("s")) > 30 + 5
