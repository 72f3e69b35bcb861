"""The code of executions while it runs: its branches, outcomes and waits."""
