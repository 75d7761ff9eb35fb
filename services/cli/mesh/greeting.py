"""What to do with a mesh, shown once it is ready."""

import os

from services.cli.errors import CliError
from services.cli.openai_api import OpenAiApi


def of(url: str) -> str:
    """A request that can be pasted, and the commands that come next."""
    return f"""
  curl {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{_model(url)}", "messages": [{{"role": "user", "content": "Hello"}}], "stream": true}}'

  hostless chat   talk to it      hostless status   what it does      Ctrl-C   stop"""


def _model(url: str) -> str:
    try:
        return OpenAiApi(url, os.environ.get("HOSTLESS_API_KEY", ""), timeout_s=2.0).first_model()
    except CliError:  # keys are asked for, say; the sample is only a sample
        return "MODEL"
