"""Where Hostless keeps files on a machine; every place can be moved by an environment variable."""

import os
from pathlib import Path


def models_dir() -> Path:
    """Folder of models, one folder a model id. HOSTLESS_MODELS moves it."""
    return Path(os.environ.get("HOSTLESS_MODELS") or _cache() / "models")


def store_dir() -> Path:
    """Where the KV store keeps its blocks unless told otherwise. HOSTLESS_STORE moves it."""
    return Path(os.environ.get("HOSTLESS_STORE") or _cache() / "store")


def shm_dir() -> Path:
    """Folder in memory where registered regions live, shared by the services of one host. HOSTLESS_SHM moves it."""
    return Path(os.environ.get("HOSTLESS_SHM") or "/dev/shm")


def run_dir() -> Path:
    """Where `hostless up` keeps a folder a run, with the services' logs. HOSTLESS_RUN moves it."""
    return Path(os.environ.get("HOSTLESS_RUN") or _cache() / "run")


def kernels_dir() -> Path:
    """Where compiled GPU code is kept between runs, by content. HOSTLESS_KERNELS moves it."""
    return Path(os.environ.get("HOSTLESS_KERNELS") or _cache() / "kernels")


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hostless"
