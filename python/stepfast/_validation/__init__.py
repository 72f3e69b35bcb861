"""Checks of what callers give, with messages that name the option, the value and the bounds."""
