"""host:port, as descriptors and settings have it."""


def split(address: str) -> tuple[str, str]:
    """Host and port; an IPv6 host stands in brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), port
