"""The names that the code of workflows uses: workflows, steps, children, sleeps, limits in time."""
