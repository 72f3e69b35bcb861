"""Starts of executions within a transaction of the caller."""
