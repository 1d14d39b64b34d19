"""The override grammar: statements, typed values, names and selections."""
