"""Concurrent calls, races between calls, and time limits."""
