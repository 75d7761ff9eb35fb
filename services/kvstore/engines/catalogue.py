"""Which storage engines there are, and opening the one that the settings name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from services.kvstore.disk import PUTS
from services.kvstore.engines import StorageEngine
from services.kvstore.settings import StoreSettings


def open_engine(settings: StoreSettings) -> StorageEngine:
    """Engines load what they need only when they are chosen. Raises SettingError: it can't be used here."""
    return _OPENERS[settings.engine](settings)


def _files(settings: StoreSettings) -> StorageEngine:
    from services.kvstore.engines.files.engine import FileEngine
    from services.kvstore.engines.files.usrbio import Usrbio

    return FileEngine(settings.folder, settings.shared, Usrbio(settings.usrbio) if settings.usrbio else None)


def _local(settings: StoreSettings) -> StorageEngine:
    from services.kvstore.engines.local import LocalEngine, LocalOptions

    return LocalEngine(
        settings.folders,
        LocalOptions(
            queue_depth=settings.queue_depth,
            write_limit_bytes_s=settings.write_limit_bytes_s,
            lanes=PUTS,
            channels=PUTS + settings.read_threads,
        ),
    )


def _mooncake(settings: StoreSettings) -> StorageEngine:
    from services.kvstore.engines.mooncake.engine import MooncakeEngine
    from services.kvstore.engines.mooncake.pool import Pool, PoolOptions

    return MooncakeEngine(
        Pool(
            PoolOptions(
                settings.mooncake_master,
                settings.mooncake_metadata,
                settings.mooncake_host,
                settings.mooncake_protocol,
                settings.mooncake_devices,
                settings.mooncake_segment_bytes,
                settings.mooncake_replicas,
            )
        )
    )


_OPENERS: Mapping[str, Callable[[StoreSettings], StorageEngine]] = MappingProxyType(
    {"local": _local, "files": _files, "mooncake": _mooncake}
)
