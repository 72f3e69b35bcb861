"""The names that programs hold: engines, clients, handles, and records of executions."""
