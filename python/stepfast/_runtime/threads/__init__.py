"""The threads of sync workflows: the thread pool, branches, and time limits of attempts."""
