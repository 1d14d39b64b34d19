"""Kubernetes: gangs as JobSets, written as manifests and applied by kubectl."""
