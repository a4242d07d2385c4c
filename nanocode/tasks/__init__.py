"""Agentic task families with checkable end states."""
