"""Batches: many executions of one workflow that are submitted, tracked and cancelled as one."""
