"""The Python part of `stepfast bench --sdk python`.

The program starts `python -m stepfast.bench`, and both exchange lines of JSON. The program creates the store,
draws the progress bar and prints the table.
"""
