"""The context of a graph: the values that its tasks share, their class, and how their changes merge."""
