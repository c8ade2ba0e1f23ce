"""From a model's text to a verdict: pure functions, and the two places where processes are needed (code, algebra)."""

VERSION = 2
"""Raised whenever a verdict can change; every record of scores states it, and ``rescore`` brings old ones up to it."""
