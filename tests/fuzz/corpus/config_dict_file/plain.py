import ml_collections


def get_config():
    config = ml_collections.ConfigDict()
    config.steps = 100
    config.model = ml_collections.ConfigDict({"dim": 8, "layers": (1, 2)})
    config.rate = config.get_ref("steps")
    config.name = ml_collections.config_dict.placeholder(str)
    return config
