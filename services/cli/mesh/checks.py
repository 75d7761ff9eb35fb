"""What can be known to be wrong before anything starts: the services' settings, the model, and what GPUs there are."""

from collections.abc import Sequence

from services.cli.errors import UsageError
from services.cli.mesh import gpus
from services.cli.mesh.plan import ServicePlan
from services.common import paths, settings
from services.common.settings import SettingError
from services.gateway.settings import GatewaySettings
from services.global_scheduler.settings import SchedulerSettings
from services.gpu_backend.settings import BackendSettings
from services.kvstore.settings import StoreSettings
from services.tokenizer.settings import TokenizerSettings

SETTINGS: dict[str, type[object]] = {
    "gateway": GatewaySettings,
    "global_scheduler": SchedulerSettings,
    "gpu_backend": BackendSettings,
    "kvstore": StoreSettings,
    "tokenizer": TokenizerSettings,
}


def check(plans: Sequence[ServicePlan]) -> None:
    """Raises UsageError for what a service would refuse of its flags and of the environment."""
    engines = []
    for plan in plans:
        try:
            own = settings.load(SETTINGS[plan.section], plan.section, plan.flags)
        except SettingError as error:
            raise UsageError(f"{plan.name}: {error}") from None
        if isinstance(own, BackendSettings):
            engines.append(own)
    for engine in engines:  # a synthetic one, too: the tokenizer reads its folder
        if not engine.model_folder.is_dir():
            raise _no_model(engine)
    if wanted := [engine.gpu for engine in engines if engine.engine == "cuda"]:
        gpus.check(wanted)


def _no_model(asked: BackendSettings) -> UsageError:
    folder = paths.models_dir()
    there = sorted(path.name for path in folder.glob("[!.]*") if path.is_dir()) if folder.is_dir() else []
    have = f"There are: {', '.join(there)}." if there else "There is none yet."
    return UsageError(
        f"no model {asked.model!r} in {folder}",
        f"{have} To get one: hostless pull, or hostless pull ORG/NAME",
    )
