"""Ray: gangs on the nodes of a Ray cluster, and on slices of TPUs."""
