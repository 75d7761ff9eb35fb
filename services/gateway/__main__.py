"""python -m services.gateway"""

import sys

from services.common import lifecycle
from services.common.settings import load_or_exit
from services.gateway.service import serve
from services.gateway.settings import GatewaySettings


def main() -> int:
    settings = load_or_exit(GatewaySettings, "gateway", "OpenAI's HTTP API, served by the mesh.")
    return lifecycle.run("gateway", lambda life: serve(settings, life), settings.log_level)


if __name__ == "__main__":
    sys.exit(main())
