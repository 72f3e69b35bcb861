"""Sync workflows on threads."""
