"""python -m services.gateway"""

import sys

from services.common import lifecycle
from services.gateway.service import serve
from services.gateway.settings import GatewaySettings

if __name__ == "__main__":
    sys.exit(lifecycle.main("gateway", "OpenAI's HTTP API, served by the mesh.", GatewaySettings, serve))
