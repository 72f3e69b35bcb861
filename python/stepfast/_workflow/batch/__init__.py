"""Batches as workflows see them: counts, results, and batches that the code of a workflow submits."""
