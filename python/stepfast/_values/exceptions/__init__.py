"""The encoding and decoding of exceptions, as failures and as values."""
