"""The building blocks of workflow code: workflows, steps, children, sleeps and time limits."""
