"""Replaces a package that is not installed."""

raise ImportError("not installed")
