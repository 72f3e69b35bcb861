"""How the code of executions runs: branches, outcomes, waits."""
