"""The driver of a study: it asks the sampler, runs trials on device groups, records results."""
