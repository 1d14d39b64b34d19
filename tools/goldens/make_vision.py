"""Make the golden files of residual networks and of the Conformer block, with PyTorch in float64.

The files hold weights under luthier's parameter names, inputs, outputs in evaluation and in
training, and the running statistics after the step in training.

Needs torch, which luthier does not: run it in an environment of its own,

    pip install torch && python tools/goldens/make_vision.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

TESTS = Path(__file__).resolve().parents[2] / "tests"
CLASSES, IMAGES, SIZE = 5, 3, 32
DIM, HEADS, HIDDEN, TAPS, LENGTH = 16, 4, 24, 5, 13


class _Block(nn.Module):
    """A residual block of convolutions, with the stride where version 1.5 has it."""

    def __init__(self, in_dim, width, stride, taps, strided, expansion, norm):
        super().__init__()
        out_dim, last, dim = width * expansion, len(taps) - 1, in_dim
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        for i, k in enumerate(taps):
            size = out_dim if i == last else width
            step = stride if i == strided else 1
            self.convolutions.append(nn.Conv2d(dim, size, k, step, k // 2, bias=False))
            self.norms.append(norm(size))
            dim = size
        self.shortcut = None
        if stride != 1 or in_dim != out_dim:
            self.shortcut = nn.Conv2d(in_dim, out_dim, 1, stride, bias=False)
            self.shortcut_norm = norm(out_dim)

    def forward(self, x):
        y = x
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(convolution(torch.relu(y) if i else y))
        if self.shortcut is not None:
            x = self.shortcut_norm(self.shortcut(x))
        return torch.relu(x + y)


class _Stem(nn.Module):
    def __init__(self, channels, width, norm, large):
        super().__init__()
        self.large = large
        taps, stride = (7, 2) if large else (3, 1)
        self.convolution = nn.Conv2d(channels, width, taps, stride, taps // 2, bias=False)
        self.norm = norm(width)

    def forward(self, x):
        x = torch.relu(self.norm(self.convolution(x)))
        return nn.functional.max_pool2d(x, 3, 2, 1) if self.large else x


class _ResNet(nn.Module):
    def __init__(self, channels, width, stages, taps, strided, expansion, norm, large):
        super().__init__()
        self.stem = _Stem(channels, width, norm, large)
        self.stages, dim = nn.ModuleList(), width
        for number, size in enumerate(stages):
            blocks = nn.ModuleList()
            for i in range(size):
                stride = 2 if number and not i else 1
                blocks.append(_Block(dim, width << number, stride, taps, strided, expansion, norm))
                dim = (width << number) * expansion
            self.stages.append(blocks)
        self.head = nn.Linear(dim, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        for stage in self.stages:
            for block in stage:
                x = block(x)
        return self.head(x.mean((2, 3)))


class _Conformer(nn.Module):
    def __init__(self):
        super().__init__()
        names = ("first_mlp_norm", "attention_norm", "convolution_norm", "last_mlp_norm", "norm")
        for name in names:
            setattr(self, name, nn.LayerNorm(DIM))
        for name in ("first_mlp", "last_mlp"):
            both = nn.Linear(DIM, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, DIM)
            setattr(self, name, nn.Sequential(*both))
        self.attention = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
        self.gated, self.output = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)
        self.depthwise = nn.Conv1d(DIM, DIM, TAPS, padding=TAPS // 2, groups=DIM)
        self.depthwise_norm = nn.LayerNorm(DIM)

    def convolution(self, x):
        x = nn.functional.glu(self.gated(x), -1)
        x = self.depthwise(x.swapaxes(1, 2)).swapaxes(1, 2)
        return self.output(nn.functional.silu(self.depthwise_norm(x)))

    def forward(self, x):
        x = x + self.first_mlp(self.first_mlp_norm(x)) / 2
        y = self.attention_norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.convolution(self.convolution_norm(x))
        x = x + self.last_mlp(self.last_mlp_norm(x)) / 2
        return self.norm(x)


def shaken(module):
    """Give every parameter and running statistic a value of its own."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
            if "running_var" in name:
                tensor.copy_(noise.abs() + 0.5)
            elif tensor.ndim == 1:
                tensor.add_(0.2 * noise)
    return module


RENAMES = {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "variance"}


def resnet_arrays(model):
    """Rename and reshape; kernels are (out, in, height, width) in torch."""
    found = {}
    for name, tensor in model.state_dict().items():
        owner, _, leaf = name.rpartition(".")
        array = tensor.numpy()
        if leaf == "num_batches_tracked":
            continue
        if array.ndim == 4:
            found[f"{owner}.kernel"] = array.transpose(2, 3, 1, 0)
        elif owner == "head":
            found["head.kernel" if leaf == "weight" else "head.bias"] = array.T
        else:
            found[f"{owner}.{RENAMES[leaf]}"] = array
    return found


def resnet(name, *settings):
    torch.manual_seed(0)
    model = shaken(_ResNet(*settings).double())
    images = torch.randn(IMAGES, settings[0], SIZE, SIZE, dtype=torch.float64)
    arrays = {"inputs": images.permute(0, 2, 3, 1).numpy()}
    for key, array in resnet_arrays(model).items():
        arrays[f"before/{key}"] = array.copy()
    model.eval()
    arrays["evaluated"] = model(images).detach().numpy()
    model.train()
    arrays["trained"] = model(images).detach().numpy()
    for key, array in resnet_arrays(model).items():
        if key.endswith((".mean", ".variance")):
            arrays[f"after/{key}"] = array
    save(TESTS / "models" / "goldens" / f"{name}.npz", arrays)


def conformer():
    torch.manual_seed(0)
    model = shaken(_Conformer().double())
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    head_dim = DIM // HEADS
    found = {}
    for name in ("first_mlp_norm", "attention_norm", "convolution_norm", "last_mlp_norm", "norm"):
        found[f"{name}.scale"], found[f"{name}.bias"] = (
            state[f"{name}.weight"],
            state[f"{name}.bias"],
        )
    for name in ("first_mlp", "last_mlp"):
        for number, part in ((0, "up"), (2, "down")):
            found[f"{name}.{part}.kernel"] = state[f"{name}.{number}.weight"].T
            found[f"{name}.{part}.bias"] = state[f"{name}.{number}.bias"]
    kernels = np.split(state["attention.in_proj_weight"], 3)
    biases = np.split(state["attention.in_proj_bias"], 3)
    for part, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
        found[f"attention.{part}.kernel"] = kernel.T.reshape(DIM, HEADS, head_dim)
        found[f"attention.{part}.bias"] = bias.reshape(HEADS, head_dim)
    found["attention.output.kernel"] = state["attention.out_proj.weight"].T.reshape(
        HEADS, head_dim, DIM
    )
    found["attention.output.bias"] = state["attention.out_proj.bias"]
    found["convolution.gated.kernel"] = state["gated.weight"].T.reshape(DIM, 2, DIM)
    found["convolution.gated.bias"] = state["gated.bias"].reshape(2, DIM)
    found["convolution.kernel"] = state["depthwise.weight"][:, 0].T
    found["convolution.bias"] = state["depthwise.bias"]
    found["convolution.norm.scale"] = state["depthwise_norm.weight"]
    found["convolution.norm.bias"] = state["depthwise_norm.bias"]
    found["convolution.output.kernel"] = state["output.weight"].T
    found["convolution.output.bias"] = state["output.bias"]
    arrays = {f"before/{name}": array for name, array in found.items()}
    arrays |= {"inputs": x.numpy(), "outputs": model(x).detach().numpy()}
    save(TESTS / "layers" / "convolution" / "goldens" / "conformer.npz", arrays)


def save(path, arrays):
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **{name: array.astype(np.float32) for name, array in arrays.items()})
    print(path, path.stat().st_size)


if __name__ == "__main__":
    resnet("resnet_bottleneck", 3, 8, (1, 1), (1, 3, 1), 1, 4, nn.BatchNorm2d, True)
    resnet("resnet_basic", 1, 8, (1, 1), (3, 3), 0, 1, nn.BatchNorm2d, False)
    resnet("resnet_group", 3, 8, (1, 2), (3, 3), 0, 1, lambda dim: nn.GroupNorm(4, dim), True)
    conformer()
