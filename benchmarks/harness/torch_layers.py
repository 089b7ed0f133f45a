"""A functional Keras model as a `torch.nn` one, of PyTorch's own layers with the same weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

if TYPE_CHECKING:
    from .workloads import Workload

Shape = Sequence[Any]  # as Keras has it: the batch first, channels last


def network_of(workload: Workload) -> fx.GraphModule:
    """The workload's model, with the weights that all sides begin with."""
    calls: list[tuple[Any, list[Any], dict[str, Any], str]] = []

    def note(layer: Any, *tensors: Any, **options: Any) -> Any:
        result = layer(*tensors, **options)
        chosen = {name: value for name, value in options.items() if value}
        calls.append((layer, keras.tree.flatten(tensors), chosen, result.name))
        return result

    keras.config.set_dtype_policy(workload.precision)
    made = workload.model(keras, keras.layers)
    if isinstance(made, keras.Sequential):  # of which calls are not told
        made = keras.Model(made.inputs, made.outputs)
    model: Any = keras.models.clone_model(made, clone_function=lambda x: x, call_function=note)
    workload.begin(model)
    names = [tensor.name for tensor in model.inputs] if len(model.inputs) > 1 else ["inputs"]
    graph, modules = fx.Graph(), {}
    nodes = {x.name: graph.placeholder(n) for x, n in zip(model.inputs, names, strict=True)}
    for layer, tensors, options, result in calls:
        module = KINDS[type(layer).__name__](layer, tensors[0].shape, **options)
        if workload.precision != "float32" and layer.compute_dtype == "float32":
            module = InFloat32(module)
        modules[layer.name] = module
        arguments = tuple(nodes[tensor.name] for tensor in tensors)
        nodes[result] = graph.call_module(layer.name, arguments)
    graph.output(nodes[model.outputs[0].name])
    for node in graph.find_nodes(op="call_module"):  # in place, where no other reads the input
        if hasattr(module := modules[node.target], "inplace"):
            module.inplace = len(node.args[0].users) == 1
    return fx.GraphModule(modules, graph).to(memory_format=torch.channels_last)


def given(module: nn.Module, *weights: np.ndarray) -> nn.Module:
    """The module with those weights, in the order of its parameters."""
    with torch.no_grad():
        for parameter, values in zip(module.parameters(), weights, strict=True):
            parameter.copy_(torch.tensor(values))
    return module


class Formula(nn.Module):
    """A layer without weights.

    Args:
        function: What it does.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: Any) -> Any:
        return self._function(*inputs)


class InFloat32(nn.Module):
    """A layer that Keras keeps out of `mixed_bfloat16`.

    Args:
        layer: Which.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: Any) -> Any:
        with torch.autocast(inputs[0].device.type, enabled=False):
            return self.layer(*(x.float() for x in inputs))


class Attention(nn.Module):
    """Attention of a sequence to itself; one product makes queries, keys and values.

    Args:
        layer: Keras' own.
        width: Of the sequence's rows.
        causal: Whether a row sees those before it only.
    """

    def __init__(self, layer: Any, width: int, causal: bool) -> None:
        super().__init__()
        *parts, kernel, bias = layer.get_weights()
        kernels = np.concatenate([part.reshape(width, -1) for part in parts[::2]], 1)
        biases = np.concatenate([part.ravel() for part in parts[1::2]])
        self._heads, self._causal = layer.num_heads, causal
        self.parts = given(nn.Linear(*kernels.shape), kernels.T, biases)
        kernel = kernel.reshape(-1, width)
        self.out = given(nn.Linear(*kernel.shape), kernel.T, bias)

    def forward(self, x: Any, _same: Any) -> Any:
        parts = self.parts(x).unflatten(-1, (3, self._heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(*parts, is_causal=self._causal)
        return self.out(found.transpose(1, 2).flatten(2))


class Table(nn.Module):
    """Adds a row for each place.

    Args:
        table: The rows.
    """

    def __init__(self, table: np.ndarray) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.tensor(table))

    def forward(self, x: Any) -> Any:
        return x + self.table


class Recurrent(nn.Module):
    """An LSTM, of which PyTorch has two biases: one of them stays zero.

    Args:
        layer: Keras' own.
        width: Of the sequence's rows.
    """

    def __init__(self, layer: Any, width: int) -> None:
        super().__init__()
        kernel, recurrent, bias = layer.get_weights()
        self._sequences = layer.return_sequences
        self.lstm: Any = nn.LSTM(width, layer.units, batch_first=True)
        given(self.lstm, kernel.T, recurrent.T, bias, np.zeros_like(bias))
        self.lstm.bias_hh_l0.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        found, _ = self.lstm(x)
        return found if self._sequences else found[:, -1]


def activated(module: nn.Module, layer: Any) -> nn.Module:
    """With the activation of a Keras layer after it."""
    name = layer.activation.__name__
    return module if name == "linear" else nn.Sequential(module, ACTIVATIONS[name]())


def convolution(layer: Any, shape: Shape) -> nn.Module:
    """Of "same" paddings, PyTorch has those that are alike on both sides."""
    kernel, *bias = layer.get_weights()
    deep = type(layer).__name__ == "DepthwiseConv2D"
    weight = kernel.transpose(2, 3, 0, 1) if deep else kernel.transpose(3, 2, 0, 1)
    windows = zip(shape[1:3], layer.kernel_size, layer.strides, strict=True)
    same = [max(0, (math.ceil(size / by) - 1) * by + k - size) for size, k, by in windows]
    total = same if layer.padding == "same" else [0, 0]
    even = all(pad % 2 == 0 for pad in total)
    made = nn.Conv2d(
        shape[-1],
        len(weight),
        layer.kernel_size,
        layer.strides,
        [pad // 2 for pad in total] if even else 0,
        groups=shape[-1] if deep else 1,
        bias=bool(bias),
    )
    made = activated(given(made, weight, *bias), layer)
    if even:
        return made
    (above, left), (below, right) = [p // 2 for p in total], [p - p // 2 for p in total]
    return nn.Sequential(nn.ZeroPad2d((left, right, above, below)), made)


def transposed_convolution(layer: Any, shape: Shape) -> nn.Module:
    """With "same", Keras cuts off one more below and right if what is too much is odd."""
    kernel, *bias = layer.get_weights()
    wider = [k - by for k, by in zip(layer.kernel_size, layer.strides, strict=True)]
    down, along = wider if layer.padding == "same" else (0, 0)
    pads = (down // 2, along // 2)
    made = nn.ConvTranspose2d(
        shape[-1], layer.filters, layer.kernel_size, layer.strides, pads, bias=bool(bias)
    )
    made = activated(given(made, kernel.transpose(3, 2, 0, 1), *bias), layer)
    if down % 2 == along % 2 == 0:
        return made
    return nn.Sequential(made, nn.ZeroPad2d((0, -(along % 2), 0, -(down % 2))))


def batch_normalization(layer: Any, shape: Shape) -> nn.Module:
    """PyTorch's own keeps the variance of a sample; that is not read while it trains."""
    *weights, mean, variance = layer.get_weights()
    kind = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d
    made: Any = kind(shape[-1], layer.epsilon, 1 - layer.momentum)
    made.running_mean.copy_(torch.tensor(mean))
    made.running_var.copy_(torch.tensor(variance))
    return given(made, *weights)


def dense(layer: Any, shape: Shape) -> nn.Module:
    kernel, *bias = layer.get_weights()
    made = nn.Linear(*kernel.shape, bias=bool(bias))
    return activated(given(made, kernel.T, *bias), layer)


def layer_normalization(layer: Any, shape: Shape) -> nn.Module:
    return given(nn.LayerNorm(shape[-1], layer.epsilon), *layer.get_weights())


def padding(layer: Any, shape: Shape) -> nn.Module:
    (above, below), (left, right) = layer.padding
    return nn.ZeroPad2d((left, right, above, below))


def concatenation(layer: Any, shape: Shape) -> nn.Module:
    axis = 1 if len(shape) == 4 else layer.axis  # the channels of pictures come second
    return Formula(lambda *parts: torch.cat(parts, axis))


def reshaped(layer: Any, shape: Shape) -> nn.Module:
    """A picture is made as Keras has it, and seen as PyTorch does."""
    target = (-1, *layer.target_shape)
    if len(target) == 4:
        return Formula(lambda x: x.reshape(target).permute(0, 3, 1, 2))
    return Formula(lambda x: x.reshape(target))


def normalization(layer: Any, shape: Shape) -> nn.Module:
    mean, variance, _ = (torch.tensor(value) for value in layer.get_weights())
    mean, scale = mean.view(-1, 1, 1), variance.sqrt().clamp(min=1e-7).view(-1, 1, 1)
    return Formula(lambda x: (x - mean) / scale)


def rescaling(layer: Any, shape: Shape) -> nn.Module:
    scale, offset = layer.scale, layer.offset
    return Formula(lambda x: x * scale + offset)


def flattened(layer: Any, shape: Shape) -> nn.Module:
    """A picture as Keras has it: its channels last."""
    if len(shape) == 4:
        return Formula(lambda x: x.permute(0, 2, 3, 1).flatten(1))
    return nn.Flatten()


def products(layer: Any, shape: Shape) -> nn.Module:
    """Of all pairs of rows."""
    return Formula(lambda a, b: torch.bmm(a, b.transpose(1, 2)))


def rectified(layer: Any, shape: Shape) -> nn.Module:
    return nn.ReLU() if layer.max_value is None else nn.Hardtanh(0.0, layer.max_value)


ACTIVATIONS: Mapping[str, Callable[..., nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}
KINDS: Mapping[str, Callable[..., nn.Module]] = {
    "Activation": lambda layer, _: ACTIVATIONS[layer.activation.__name__](),
    "Add": lambda *_: Formula(torch.add),
    "AveragePooling2D": lambda layer, _: nn.AvgPool2d(layer.pool_size, layer.strides),
    "BatchNormalization": batch_normalization,
    "Concatenate": concatenation,
    "Conv2D": convolution,
    "Conv2DTranspose": transposed_convolution,
    "Dense": dense,
    "DepthwiseConv2D": convolution,
    "Dot": products,
    "Dropout": lambda layer, _: nn.Dropout(layer.rate),
    "Embedding": lambda layer, _: given(
        nn.Embedding(layer.input_dim, layer.output_dim), *layer.get_weights()
    ),
    "Flatten": flattened,
    "GlobalAveragePooling1D": lambda *_: Formula(lambda x: x.mean(1)),
    "GlobalAveragePooling2D": lambda *_: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    "LSTM": lambda layer, shape: Recurrent(layer, shape[-1]),
    "LayerNormalization": layer_normalization,
    "LeakyReLU": lambda layer, _: nn.LeakyReLU(layer.negative_slope),
    "MaxPooling2D": lambda layer, _: nn.MaxPool2d(layer.pool_size, layer.strides),
    "MultiHeadAttention": lambda layer, shape, use_causal_mask=False: Attention(
        layer, shape[-1], use_causal_mask
    ),
    "Multiply": lambda *_: Formula(torch.mul),
    "Normalization": normalization,
    "Positions": lambda layer, _: Table(*layer.get_weights()),
    "ReLU": rectified,
    "Rescaling": rescaling,
    "Reshape": reshaped,
    "ZeroPadding2D": padding,
}
