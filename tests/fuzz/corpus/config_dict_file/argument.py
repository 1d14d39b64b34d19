RENAMES = {"a": "steps"}


def get_config(argument="small"):
    return {"a": 1, "b": {"c": [argument]}}
