"""Engines and clients, handles, filters, and records of executions."""
