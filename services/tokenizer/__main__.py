"""python -m services.tokenizer"""

import logging
import sys

from services.common import lifecycle
from services.common.settings import load_or_exit
from services.tokenizer.assembly import running
from services.tokenizer.settings import TokenizerSettings

log = logging.getLogger("tokenizer")


async def serve(settings: TokenizerSettings, life: lifecycle.Lifecycle) -> None:
    async with running(settings) as tokenizer:
        await life.until_stopping()
        await tokenizer.drain()
    log.info("stopped")


def main() -> int:
    settings = load_or_exit(TokenizerSettings, "tokenizer", "Text to tokens and back; the front end of every ring.")
    return lifecycle.run("tokenizer", lambda life: serve(settings, life), settings.log_level)


if __name__ == "__main__":
    sys.exit(main())
