"""Exchanges of programs with executions."""
