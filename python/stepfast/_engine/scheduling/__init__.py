"""Schedules: declarations, their present states, and the operations of engines and clients on them."""
