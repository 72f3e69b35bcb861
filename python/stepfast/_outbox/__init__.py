"""Outboxes, which start executions in a transaction of the caller."""
