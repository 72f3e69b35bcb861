"""The codecs of single types."""
