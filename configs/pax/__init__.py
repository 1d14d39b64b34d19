"""The published recipes of Pax, number by number."""
