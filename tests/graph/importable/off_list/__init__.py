"""Nothing may import this."""

raise AssertionError("off_list was imported")
