"""Async workflows on an event loop of asyncio."""
