"""The part of `stepfast bench --sdk python` that is Python's. The program starts `python -m stepfast.bench`
and speaks with it in lines of JSON; it makes the store, draws the bar and prints the table."""
