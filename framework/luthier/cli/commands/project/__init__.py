"""Commands about a project and the program itself: nothing is trained or read of runs."""
