"""Graphs: workflows of tasks with declared dependencies."""
