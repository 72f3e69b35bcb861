"""The options of starts, and the declarations of queues."""
