"""What makes the second graph of the first: as a fiddler, and as words of the override grammar."""
