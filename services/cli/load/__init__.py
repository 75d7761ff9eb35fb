"""Load on an OpenAI endpoint, and what it measured."""
