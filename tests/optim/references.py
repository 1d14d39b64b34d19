"""Optimizers in NumPy, written from the papers, over unrolled layers in float64.

Each is called as `reference(settings, parameters, gradients, t, memory)` with t = 1, 2, ..., and
changes `parameters` and `memory`.
"""

import numpy as np

from luthier.optim import DECAYED

NUM_INPUTS = {"query.kernel": 1, "output.kernel": 2, "up.kernel": 1}
"""Of the kernels that are optimized as matrices, the number of input dimensions."""


def clipped(gradients, limit):
    norm = np.sqrt(sum(np.sum(g * g) for g in gradients.values()))
    return {name: g * min(1.0, limit / norm) for name, g in gradients.items()}


def rms(x):
    return np.sqrt(np.mean(x * x))


def num_inputs(name):
    return next((n for end, n in NUM_INPUTS.items() if name.endswith(end)), None)


def as_matrix(name, x):
    return x.reshape(int(np.prod(x.shape[: num_inputs(name)])), -1)


def move(s, parameters, name, step, decays=DECAYED, rate="learning_rate"):
    decay = s["weight_decay"] * decays(name)
    parameters[name] = parameters[name] - s[rate] * (step + decay * parameters[name])


def adam_step(s, g, t, memory, key):
    m, v = memory.get(key, (0.0, 0.0))
    m, v = s["b1"] * m + (1 - s["b1"]) * g, s["b2"] * v + (1 - s["b2"]) * g * g
    memory[key] = m, v
    return (m / (1 - s["b1"] ** t)) / (np.sqrt(v / (1 - s["b2"] ** t)) + s["eps"])


def adamw(s, parameters, gradients, t, memory):
    for name, g in clipped(gradients, s["clip_norm"]).items():
        move(s, parameters, name, adam_step(s, g, t, memory, name))


def sgd(s, parameters, gradients, t, memory, nesterov):
    for name, g in clipped(gradients, s["clip_norm"]).items():
        g = g + s["weight_decay"] * DECAYED(name) * parameters[name]
        trace = memory[name] = g + s["momentum"] * memory.get(name, 0.0)
        step = g + s["momentum"] * trace if nesterov else trace
        parameters[name] = parameters[name] - s["learning_rate"] * step


def capped_adamw(s, parameters, gradients, t, memory):
    for name, g in clipped(gradients, s["clip_norm"]).items():
        m, v = memory.get(name, (0.0, 0.0))
        d1, d2 = (b * (1 - b ** (t - 1)) / (1 - b**t) for b in (s["b1"], s["b2"]))
        m, v = d1 * m + (1 - d1) * g, d2 * v + (1 - d2) * g * g
        memory[name] = m, v
        u = m / (np.sqrt(v + s["eps_root"]) + s["eps"])
        u = u / max(1.0, rms(u) / s["max_update_rms"])
        move(s, parameters, name, u, decays=lambda name: True)


def lion(s, parameters, gradients, t, memory):
    for name, g in clipped(gradients, s["clip_norm"]).items():
        m = memory.get(name, np.zeros_like(g))
        memory[name] = s["b2"] * m + (1 - s["b2"]) * g
        move(s, parameters, name, np.sign(s["b1"] * m + (1 - s["b1"]) * g))


def lamb(s, parameters, gradients, t, memory):
    for name, g in clipped(gradients, s["clip_norm"]).items():
        w = parameters[name]
        r = adam_step(s, g, t, memory, name) + s["weight_decay"] * DECAYED(name) * w
        ratio = np.linalg.norm(w) / np.linalg.norm(r)
        parameters[name] = w - s["learning_rate"] * ratio * r


def adafactor(s, parameters, gradients, t, memory):
    new = max(s["least_share"], t ** -s["exponent"])
    for name, g in clipped(gradients, s["clip_norm"]).items():
        square = g * g + s["eps"]
        largest = sorted(range(g.ndim), key=lambda d: g.shape[d])[-2:]
        factored = g.ndim >= 2 and min(g.shape[d] for d in largest) >= 3
        means = [square.mean(d, keepdims=True) for d in largest] if factored else [square]
        old = memory.get(name, [0.0] * 2)
        means = [(1 - new) * o + new * m for o, m in zip(old, means, strict=False)]
        memory[name] = means
        if factored:
            column, row = means  # without the smaller, without the larger dimension
            v = row * column / row.mean(largest[0], keepdims=True)
        else:
            (v,) = means
        u = g / np.sqrt(v)
        u = u / max(1.0, rms(u) / s["max_update_rms"])
        u = u * max(s["least_parameter_rms"], rms(parameters[name]))
        average = memory[name, "average"] = (
            s["momentum"] * memory.get((name, "average"), 0.0) + (1 - s["momentum"]) * u
        )
        move(s, parameters, name, average)


def muon(s, parameters, gradients, t, memory, scale):
    for name, g in clipped(gradients, s["clip_norm"]).items():
        if num_inputs(name) is None:
            step = adam_step(s, g, t, memory, name)
            move(s, parameters, name, step, rate="adam_learning_rate")
            continue
        trace = memory[name] = g + s["momentum"] * memory.get(name, 0.0)
        x = as_matrix(name, g + s["momentum"] * trace)
        fan_in, fan_out = x.shape
        x = x / (np.linalg.norm(x) + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        move(s, parameters, name, (scale(s, fan_in, fan_out) * x).reshape(g.shape))


def _eigenvectors(x):
    return np.linalg.eigh(x)[1][:, ::-1]


def soap(s, parameters, gradients, t, memory):
    """The sides of a kernel of more than 6 keep the standard basis."""
    for name, g in clipped(gradients, s["clip_norm"]).items():
        if num_inputs(name) is None:
            move(s, parameters, name, adam_step(s, g, t, memory, name))
            continue
        x = as_matrix(name, g)
        beta = s["statistics_decay"]
        kept = [side for side in (0, 1) if x.shape[side] <= 6]
        outer = {0: x @ x.T, 1: x.T @ x}
        if t == 1:
            factors = {side: (1 - beta) * outer[side] for side in kept}
            bases = {side: _eigenvectors(factors[side]) for side in kept}
            memory[name] = np.zeros_like(x), np.zeros_like(x), factors, bases
            move(s, parameters, name, np.zeros_like(g))
            continue
        m, v, factors, bases = memory[name]
        left, right = (bases.get(side, np.eye(x.shape[side])) for side in (0, 1))
        m = s["b1"] * m + (1 - s["b1"]) * x
        v = s["b2"] * v + (1 - s["b2"]) * (left.T @ x @ right) ** 2
        m_hat, v_hat = m / (1 - s["b1"] ** (t - 1)), v / (1 - s["b2"] ** (t - 1))
        unit = (left.T @ m_hat @ right) / (np.sqrt(v_hat) + s["eps"])
        move(s, parameters, name, (left @ unit @ right.T).reshape(g.shape))
        for side in kept:
            factors[side] = beta * factors[side] + (1 - beta) * outer[side]
            if (t - 1) % 2 == 0:
                basis = bases[side]
                order = np.argsort(-np.diag(basis.T @ factors[side] @ basis))
                v = np.take(v, order, axis=side)
                bases[side] = np.linalg.qr(factors[side] @ basis[:, order])[0]
        memory[name] = m, v, factors, bases


def shampoo(s, parameters, gradients, t, memory):
    for name, g in clipped(gradients, s["clip_norm"]).items():
        sized = adam_step(s, g, t, memory, (name, "adam"))
        if num_inputs(name) is None:
            move(s, parameters, name, sized)
            continue
        x, m = as_matrix(name, g), as_matrix(name, memory[name, "adam"][0])
        beta = s["statistics_decay"]
        factors, roots = memory.get(name, ([0.0, 0.0], [None, None]))
        factors = [
            beta * f + (1 - beta) * o for f, o in zip(factors, (x @ x.T, x.T @ x), strict=True)
        ]
        if (t - 1) % 2 == 0:
            roots = []
            for factor in factors:
                values, vectors = np.linalg.eigh(factor / (1 - beta**t))
                raised = values + s["eps"] * values.mean()
                roots.append(vectors @ np.diag(raised**-0.25) @ vectors.T)
        memory[name] = factors, roots
        p = roots[0] @ m @ roots[1]
        p = p * np.linalg.norm(sized) / np.linalg.norm(p)
        move(s, parameters, name, p.reshape(g.shape))
