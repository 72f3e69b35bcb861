"""Options of a start, and declarations of queues."""
