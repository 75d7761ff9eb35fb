"""`hostless role`: what an engine is for, changed while it serves."""

import asyncio
from enum import StrEnum
from typing import Annotated

import typer

from services.cli.errors import CliError
from services.cli.mesh import run_folder
from services.cli.status import SCHEDULER


class RoleName(StrEnum):
    unified = "unified"
    prefill = "prefill"
    decode = "decode"


def role(
    engine: Annotated[str, typer.Argument(help="An engine's name, as hostless status shows it.")],
    to: Annotated[RoleName, typer.Argument(help="unified: whole requests; prefill: prompts; decode: the rest.")],
    scheduler: Annotated[
        str, typer.Option(envvar="HOSTLESS_SCHEDULER", help="host:port of the global scheduler elsewhere.")
    ] = "",
    wait: Annotated[float, typer.Option(help="Seconds to wait for requests of the old role to end.", min=1)] = 60.0,
    force: Annotated[bool, typer.Option(help="Though no request could be served then.")] = False,
) -> None:
    """Give an engine another role: new requests come by it at once, those under way end as they are.

    A restart of the engine brings the role of its settings back. Its name stays: it says how hostless up started it.

    [bold]Example[/bold]: hostless role decode-0 prefill

    Exit code 1: refused, or not all requests of the old role have ended.
    """
    from services.gpu_backend.client import EngineCallError

    mesh = run_folder.here()
    service = mesh.service("global_scheduler") if mesh else None
    try:
        asyncio.run(_change(scheduler or (service.address if service else SCHEDULER), engine, to, wait, force))
    except EngineCallError as error:
        raise CliError(str(error)) from error


async def _change(scheduler: str, name: str, to: RoleName, wait_s: float, force: bool) -> None:
    from hostless.v1.scheduler_pb2 import Role
    from services.global_scheduler.client import SchedulerClient, SchedulerUnavailable, bring_to_end
    from services.gpu_backend.client import EngineClient

    async with SchedulerClient(scheduler) as client:
        try:
            infos = [engine.info for engine in (await client.status()).engines if engine.live]
        except SchedulerUnavailable as error:
            raise CliError(
                str(error), "Is it there? hostless up starts one; --scheduler names one elsewhere."
            ) from error
    found = next((info for info in infos if info.engine_id == name), None)
    if found is None:
        known = ", ".join(sorted(info.engine_id for info in infos)) or "none"
        raise CliError(f"no live engine is called {name}", f"Live engines: {known}")
    wanted = Role.Value(f"ROLE_{to.upper()}")
    others = [info.role for info in infos if info.model == found.model and info.engine_id != name]
    if not force and not bring_to_end([*others, wanted]) and bring_to_end([*others, found.role]):
        raise CliError(
            f"{found.model} could not be served: it takes a unified engine, or one that prefills and one that decodes",
            "--force does it all the same.",
        )
    engine = EngineClient(found.address)
    try:
        reply = await engine.change_role(wanted, wait_s)
    finally:
        await engine.close()
    if not reply.announced:
        typer.echo("the global scheduler could not be told; it will hear of it from the engine", err=True)
    if reply.unfinished:
        raise CliError(f"{name} is {to} now; {reply.unfinished} requests of before go on")
    typer.echo(f"{name} is {to} now")
