"""Calls of tools in a model's text: a parser a format, and what becomes of its pieces."""
