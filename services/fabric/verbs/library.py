"""pyverbs, which is Debian's and not of this Python's packages."""

import importlib
import sys
from types import ModuleType

from services.fabric.errors import TransportUnavailable

DEBIAN = "/usr/lib/python3/dist-packages"
HINT = "install python3-pyverbs and ibverbs-providers (Debian 12), and run Python 3.11, for which that is built"


def pyverbs(module: str) -> ModuleType:
    """`pyverbs.<module>`. Raises TransportUnavailable, with what to install."""
    if "pyverbs" not in sys.modules:
        _find()
    try:
        return importlib.import_module(f"pyverbs.{module}")
    except ImportError as error:
        raise TransportUnavailable(f"transport verbs needs pyverbs ({error}): {HINT}") from None


def _find() -> None:
    """Imports the package; its modules are then found by it. No other package of Debian's becomes visible."""
    try:
        importlib.import_module("pyverbs")
        return
    except ImportError:
        sys.path.append(DEBIAN)
    try:
        importlib.import_module("pyverbs")
    except ImportError as error:
        raise TransportUnavailable(f"transport verbs needs pyverbs ({error}): {HINT}") from None
    finally:
        sys.path.remove(DEBIAN)
