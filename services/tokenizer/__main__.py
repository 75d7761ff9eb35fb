"""python -m services.tokenizer"""

import logging
import sys

from services.common import lifecycle
from services.tokenizer.assembly import running
from services.tokenizer.settings import TokenizerSettings

log = logging.getLogger("tokenizer")


async def serve(settings: TokenizerSettings, life: lifecycle.Lifecycle) -> None:
    async with running(settings) as tokenizer:
        await life.until_stopping()
        await tokenizer.drain()
    log.info("stopped")


if __name__ == "__main__":
    what = "Text to tokens and back; the front end of every ring."
    sys.exit(lifecycle.main("tokenizer", what, TokenizerSettings, serve))
