"""Files of other configuration systems: how they change a graph, and become one."""
