"""Settings of services that `hostless up` was given as options. Pure.

`--held-bytes 4GiB` is gpu_backend's; a setting that several services have takes the service's name in front
(`--kvstore-transport tcp`), which any may. Values are checked with all the rest (checks.py).
"""

import dataclasses
import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.cli.errors import UsageError
from services.cli.mesh.checks import SETTINGS
from services.cli.mesh.plan import ServicePlan


@dataclass(frozen=True)
class Given:
    """What `hostless up` itself has no option for."""

    flags: Mapping[str, Sequence[str]]  # of each service, as its own command line takes them
    command: Sequence[str]  # to run once the mesh is ready

    def names(self, section: str, flag: str) -> bool:
        """Whether this setting is among them."""
        return any(given.partition("=")[0] == flag for given in self.flags.get(section, ()))


def read(words: Sequence[str], own: Iterable[str]) -> Given:
    """`words`: pairs of a setting and its value, or setting=value; then a command. `own`: options of `hostless up`, for
    whoever misspelt one. Raises UsageError for a setting that no service has, or more than one.
    """
    settings = options()
    flags: dict[str, list[str]] = defaultdict(list)
    rest = list(words)
    while rest and rest[0].startswith("-"):
        option, joined, value = rest.pop(0).partition("=")
        places = settings.get(option, [])
        if not places:
            like = difflib.get_close_matches(option, {*own, *settings}, n=3)
            hint = f"Like it: {', '.join(like)}. " if like else ""
            raise UsageError(
                f"no such option, nor a setting of a service: {option}",
                f"{hint}All: hostless up --help, docs/settings.md",
            )
        if len(places) > 1:
            whole = ", ".join(_whole(section, flag) for section, flag in places)
            raise UsageError(f"more than one service has a setting {option}", f"Say whose: {whole}")
        [(section, flag)] = places
        if not joined:
            if not rest or rest[0].partition("=")[0] in settings:
                raise UsageError(f"{option} of {section} needs a value")
            value = rest.pop(0)
        flags[section].append(f"{flag}={value}")
    return Given(flags, rest)


def add(plans: Iterable[ServicePlan], given: Given) -> list[ServicePlan]:
    """The plans with these settings. Raises UsageError for what the mesh itself sets, or for a service it has not."""
    plans = list(plans)
    for section, flags in given.flags.items():
        if not any(plan.section == section for plan in plans):
            raise UsageError(f"{flags[0].partition('=')[0]} is a setting of {section}, which this mesh is without")
    return [_with(plan, given.flags.get(plan.section, ())) for plan in plans]


def _with(plan: ServicePlan, flags: Sequence[str]) -> ServicePlan:
    for flag in (given.partition("=")[0] for given in flags):
        if flag in plan.flags:
            raise UsageError(
                f"{flag} of {plan.name} is set by hostless up itself",
                "By an option of its own, maybe: hostless up --help",
            )
    return dataclasses.replace(plan, command=(*plan.command, *flags))


def options() -> dict[str, list[tuple[str, str]]]:
    """Option -> (service, its flag), for each way to write it."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for section, cls in SETTINGS.items():
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            flag = "--" + field.name.replace("_", "-")
            found[flag].append((section, flag))
            found[_whole(section, flag)].append((section, flag))
    return found


def _whole(section: str, flag: str) -> str:
    return f"--{section.replace('_', '-')}-{flag.removeprefix('--')}"
