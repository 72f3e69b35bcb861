"""Messages to executions."""
