"""Checks of arguments, with messages that name the option, the value and the bounds."""
