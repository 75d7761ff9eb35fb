"""Which store a command means, and one conversation with it."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from services.cli.errors import CliError, UsageError
from services.cli.mesh import run_folder
from services.common import sizes

if TYPE_CHECKING:  # it takes its time to load, which only these commands should pay
    from services.kvstore.client import StoreClient

ADDRESS = "127.0.0.1:7030"

T = TypeVar("T")

Address = Annotated[
    str,
    typer.Option("--store", envvar="HOSTLESS_STORE_ADDRESS", help="host:port of the store. Default: the mesh here."),
]


def ask(address: str, work: "Callable[[StoreClient], Awaitable[T]]") -> T:
    """Runs `work` with a client. Raises CliError when the store doesn't answer."""
    import uvloop

    from services.kvstore.client import StoreClient, StoreUnavailable

    found = address or _here()

    async def talk() -> T:
        async with StoreClient(found) as client:
            return await work(client)

    try:
        return uvloop.run(talk())
    except StoreUnavailable as error:
        raise CliError(str(error), "Is it there? hostless up starts one; --store names one elsewhere.") from error


def _here() -> str:
    mesh = run_folder.here()
    service = mesh.service("kvstore") if mesh else None
    return service.address if service else ADDRESS


def size(count: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"


def parse_size(text: str) -> int:
    """'1.5GiB', '200m' or '4096' -> bytes. Raises CliError."""
    try:
        return sizes.parse_size(text)
    except ValueError as error:
        raise UsageError(str(error), f"For example: {sizes.EXAMPLES}") from None
