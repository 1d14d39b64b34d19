"""Experiments, each a function that returns a config (a Fiddle graph)."""

# Where modules were before: old references keep resolving. Recorded commands, papers' scripts and
# `--exp=` name them.
MOVED = {
    **{
        f"configs.lm.pax_{name}": f"configs.pax.{name}"
        for name in (
            *("bert", "c4", "cloud", "cloud_pipelines", "gpt3", "gpt3_pipelines", "gpu", "grok"),
            *("llama", "mixtures", "multislice", "nvidia", "nvidia_pipelines", "scaling"),
        )
    },
    "configs.vision.pax_resnet": "configs.pax.resnet",
}
