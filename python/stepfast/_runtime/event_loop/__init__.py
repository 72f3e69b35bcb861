"""The event loops of async workflows: their tasks, cancellations and ends."""
