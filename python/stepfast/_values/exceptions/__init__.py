"""Exceptions: how they are recorded, as failures and as values, and rebuilt."""
