"""A study of the toy system in which nothing is wrong."""

GOOD = {
    "schema_version": 1,
    "name": "toy",
    "system": "toy_system",
    "data": {"corpus": "conlang", "train": 10},
    "base": {"train": {"max_steps": 5}},
    "factors": {
        "depth": {"target": "model.num_layers", "levels": [1, 2, 3], "baseline": 2},
        "arm": {
            "levels": {
                "avg_eg": {"generator.kind": "avg"},
                "att_eg": {"generator": {"kind": "att", "kd_weight": 0.25}},
            },
            "baseline": "avg_eg",
        },
    },
    "components": {"gradual": {"without": {"train.is_gradual": False}}},
    "design": {"kind": "one_factor"},
    "objective": {"metric": "dev/bleu", "direction": "maximize"},
    "seeds": [0, 1],
}
