"""Which storage engines there are, and opening the one that the settings name."""

from services.common.settings import SettingError
from services.kvstore.engines import StorageEngine
from services.kvstore.settings import StoreSettings


def open_engine(settings: StoreSettings) -> StorageEngine:
    """Engines load what they need only when they are chosen. Raises SettingError: it can't be used here."""
    match settings.engine:
        case "files":
            return _files(settings)
        case "mooncake":
            return _mooncake(settings)
        case _:
            raise SettingError(f"engine: {settings.engine!r} is not there yet")


def _files(settings: StoreSettings) -> StorageEngine:
    from services.kvstore.engines.files.engine import FileEngine
    from services.kvstore.engines.files.usrbio import Usrbio

    return FileEngine(settings.folder, settings.shared, Usrbio(settings.usrbio) if settings.usrbio else None)


def _mooncake(settings: StoreSettings) -> StorageEngine:
    raise SettingError("engine: mooncake is not there yet")
