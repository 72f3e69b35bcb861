"""The Python part of `stepfast bench --sdk python`.

The program `stepfast` starts `python -m stepfast.bench`, and the two processes exchange lines of JSON. The
program creates the store, draws the progress bar and prints the table.
"""
