"""Runs a logical graph in text form with PyTorch, op by op, in float64 by default: an oracle of what a graph means
that shares no code with the compiler or the kernels. graph/ir/text.h describes the text form."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:"(?:[^"\\]|\\.)*"|[^\]"])*\]|[^\s,=]+|,|=')
_ITEM = re.compile(r'"(?:[^"\\]|\\.)*"|[^,]+')


@dataclass
class Node:
    op: str
    symbol: str = ""
    operands: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    attrs: dict = field(default_factory=dict)
    dims: list[list[int]] = field(default_factory=list)  # of the results
    module: str = ""


def _value(text: str):
    if text.startswith("["):
        return [_value(item) for item in _ITEM.findall(text[1:-1])]
    if text.startswith('"'):
        return text[1:-1]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text, text)


def parse(text: str) -> list[Node]:
    lines = text.splitlines()
    assert lines[0].split() == ["tacc.graph", "1"], lines[0]
    nodes = []
    for line in lines[1:]:
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        results = []
        if line.startswith("%"):
            left, line = line.split(" = ", 1)
            results = [name.strip() for name in left.split(",")]
        module = ""
        if match := re.search(r" @(\S+)$", line):
            module, line = match.group(1), line[: match.start()]
        types = ""
        if match := re.search(r" : ((?:(?:bool|i32|i64|bf16|f16|f32|f64)\[[^\]]*\](?:, )?)+)$", line):
            types, line = match.group(1), line[: match.start()]
        tokens = [t for t in _TOKEN.findall(line) if t != ","]
        node = Node(tokens[0], results=results, module=module)
        at = 1
        while at < len(tokens):
            if at + 1 < len(tokens) and tokens[at + 1] == "=":
                node.attrs[tokens[at]] = _value(tokens[at + 2])
                at += 3
                continue
            if tokens[at].startswith("%"):
                node.operands.append(tokens[at])
            else:
                node.symbol = _value(tokens[at])
            at += 1
        node.dims = [[int(d) for d in dims.split(",") if d] for dims in re.findall(r"\w+\[([^\]]*)\]", types)]
        nodes.append(node)
    return nodes


def _aten_argument(text: str, operands: list[torch.Tensor], ints: list[int]):
    """As graph/ops/torch/aten.cc writes it."""
    if text.startswith("["):
        depth, items = 0, [""]
        for c in text[1:-1]:
            depth += {"[": 1, "]": -1}.get(c, 0)
            if c == "," and depth == 0:
                items.append("")
            else:
                items[-1] += c
        return [_aten_argument(item, operands, ints) for item in items if item]
    if text.startswith("%"):
        return operands[int(text[1:])]
    if text.startswith("i%"):  # pairs of real numbers
        return torch.view_as_complex(operands[int(text[2:])].contiguous())
    if text.startswith("#"):
        return ints[int(text[1:])]
    if text in ("none", "true", "false"):
        return {"none": None, "true": True, "false": False}[text]
    try:
        return float(text)
    except ValueError:
        return getattr(torch, text, text)


def _aten(node: Node, operands: list[torch.Tensor]):
    namespace, _, schema = node.attrs["schema"].partition("::")
    name, _, overload = schema.partition(".")
    op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    given = [_aten_argument(str(text), operands, node.attrs.get("ints", [])) for text in node.attrs["args"]]
    arguments = op._schema.arguments
    positional = [v for v, argument in zip(given, arguments) if not argument.kwarg_only]
    keywords = {argument.name: v for v, argument in zip(given, arguments) if argument.kwarg_only}
    made = op(*positional, **keywords)
    made = list(made) if isinstance(made, (list, tuple)) else [made]
    return [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in made]


def _philox(counter: list[np.ndarray], key: tuple[int, int]) -> np.ndarray:
    """The four words of each counter, uint64 [4, ...]. Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC11, section 3.3."""
    k0, k1 = key
    for _ in range(10):
        p0, p1 = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
        counter = [(p1 >> shift) ^ counter[1] ^ np.uint64(k0), p1 & low, (p0 >> shift) ^ counter[3] ^ np.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(counter)


def run_random(node: Node, step: torch.Tensor, sample: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """What a node `random` draws, as kernels/contract/dropout.h says, of samples and steps below 2^32."""
    shape, a = node.attrs["shape"], node.attrs
    per_sample = int(np.prod(shape[1:], dtype=np.int64))
    blocks = np.arange((per_sample + 3) // 4, dtype=np.uint64)[None, :]
    ids = sample.numpy().astype(np.uint64)[:, None]
    zero = np.zeros(np.broadcast_shapes(blocks.shape, ids.shape), dtype=np.uint64)
    words = _philox([blocks + zero, ids + zero, np.uint64(int(step)) + zero, zero], (a["seed"] & 0xFFFFFFFF, a["key"]))
    unit = np.moveaxis(words, 0, -1).reshape(shape[0], -1) // 256 / 2.0**24
    if a["distribution"] == "normal":
        radius, angle = np.sqrt(-2 * np.log1p(-unit[:, ::2])), 2 * np.pi * unit[:, 1::2]
        unit = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(shape[0], -1)
    return torch.from_numpy(unit[:, :per_sample].reshape(shape)).to(dtype)


def _aligned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return b.reshape([1] * (a.dim() - b.dim()) + list(b.shape))


def _rope_table(node: Node, dtype: torch.dtype):
    inv_freq = torch.tensor(node.attrs["inv_freq"], dtype=torch.float64)
    phase = torch.arange(node.attrs["length"], dtype=torch.float64)[:, None] * inv_freq
    scale = node.attrs.get("attention_scale", 1.0)
    return [(phase.cos() * scale).to(dtype), (phase.sin() * scale).to(dtype)]


def _rotary(node: Node, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
    assert not node.attrs.get("inverse", False)
    pairs = cos.shape[1]
    layout = {"half": (2, pairs), "interleaved": (pairs, 2)}[node.attrs["style"]]
    member = -2 if node.attrs["style"] == "half" else -1  # the dim that tells the two of a pair apart
    turned, rest = x[..., : 2 * pairs].unflatten(-1, layout), x[..., 2 * pairs :]
    a, b = turned.select(member, 0), turned.select(member, 1)
    cos, sin = cos[None, :, None, :], sin[None, :, None, :]
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=member).flatten(-2)
    return [torch.cat([turned, rest], dim=-1)]


class _Zero(torch.autograd.Function):
    """0 in the place of a number that something outweighs, with its derivative."""

    @staticmethod
    def forward(ctx, x):
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def _attention(node: Node, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor):
    repeats = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(repeats, dim=2), v.repeat_interleave(repeats, dim=2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * node.attrs["scale"]
    if cap := node.attrs.get("softcap", 0):
        scores = cap * torch.tanh(scores / cap)
    i, j = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])[None, :]
    if "alibi_slopes" in node.attrs:
        slopes = torch.tensor(node.attrs["alibi_slopes"], dtype=scores.dtype)
        scores = scores + slopes[:, None, None] * (j - i)
    biases = [more[-1]] if node.attrs.get("bias", False) else []
    if node.attrs.get("key_bias", False):
        biases.append(more[-1 - len(biases)][:, None, None, :])
    if biases:
        hidden = functools.reduce(torch.logical_or, [bias == float("-inf") for bias in biases])
        outweighed = functools.reduce(torch.logical_or, [bias == float("inf") for bias in biases])
        total = sum(biases)
        zero = _Zero.apply(scores) if node.attrs.get("bias_yields", False) else _Zero.apply(scores) + _Zero.apply(total)
        scores = torch.where(outweighed, zero, scores + total).masked_fill(hidden, float("-inf"))
    if node.attrs["causal"]:
        scores = scores.masked_fill(j > i, float("-inf"))
    if window := node.attrs.get("window", 0):
        scores = scores.masked_fill(j <= i - window, float("-inf"))
    values = v
    if node.attrs.get("sinks", False):  # one more key, of value 0
        sinks = more[0][None, :, None, None].expand(*scores.shape[:3], 1)
        scores, values = torch.cat([scores, sinks], dim=-1), F.pad(v, (0, 0, 0, 0, 0, 1))
    sees_none = (scores == float("-inf")).all(-1, keepdim=True)  # Has the result 0.
    p = scores.masked_fill(sees_none, 0.0).softmax(-1) * ~sees_none
    return [torch.einsum("bhij,bjhd->bihd", p, values), scores.logsumexp(-1)]


def _norm(node: Node, operands: list[torch.Tensor]):
    x, rest = operands[0], operands[1:]
    mean = torch.zeros_like(x[..., :1]) if node.op == "rms_norm" else x.mean(-1, keepdim=True)
    rstd = ((x - mean).square().mean(-1, keepdim=True) + node.attrs["eps"]).rsqrt()
    y = (x - mean) * rstd
    if rest:
        y = y * rest[0]
    if len(rest) > 1:
        y = y + rest[1]
    statistics = [rstd.squeeze(-1)] if node.op == "rms_norm" else [mean.squeeze(-1), rstd.squeeze(-1)]
    return [y, *statistics]


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor):
    lse = logits.logsumexp(-1)
    counted = targets >= 0
    picked = logits.gather(-1, targets.clamp(min=0).long()[..., None]).squeeze(-1)
    return [torch.where(counted, lse - picked, 0.0).sum(), counted.sum().to(logits.dtype), lse]


def _expert_matmul(node: Node, x: torch.Tensor, ids: torch.Tensor, w: torch.Tensor):
    if node.attrs.get("transposed", False):
        w = w.transpose(1, 2)
    if x.dim() == ids.dim():  # a row a token
        x = x.unsqueeze(-2).expand(*ids.shape, -1)
    y = torch.einsum("...mn,...n->...m", w[ids], x)
    return [y.sum(-2) if node.attrs.get("sum_slots", False) else y]


def _top_k(node: Node, p: torch.Tensor, choice: torch.Tensor | None = None):
    choice = (p if choice is None else choice).detach()
    if groups := node.attrs.get("groups", 0):
        of_group = choice.unflatten(-1, (groups, -1))
        sums = of_group.topk(node.attrs["summed"], dim=-1).values.sum(-1)
        kept = torch.zeros_like(sums).scatter(-1, sums.topk(node.attrs["kept_groups"], dim=-1).indices, 1.0)
        choice = of_group.masked_fill(kept[..., None] == 0, float("-inf")).flatten(-2)
    ids = choice.topk(node.attrs["k"], dim=-1).indices
    weights = p.gather(-1, ids)
    return [weights / weights.sum(-1, keepdim=True) if node.attrs.get("normalize", False) else weights, ids]


def _convolution(node: Node, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None):
    a, n = node.attrs, x.dim() - 2
    stride, padding, dilation = (a.get(name, [default] * n) for name, default in _WINDOW)
    groups = a.get("groups", 1)
    if node.op == "convolution":
        return [(F.conv1d, F.conv2d, F.conv3d)[n - 1](x, w, bias, stride, padding, dilation, groups)]
    sizes = zip(a["size"], x.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)
    more = [size - ((i - 1) * s - 2 * p + d * (k - 1) + 1) for size, i, k, s, p, d in sizes]
    transposed = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
    return [transposed(x, w, bias, stride, padding, more, groups, dilation)]


def _max_pool(node: Node, x: torch.Tensor):
    a, n = node.attrs, x.dim() - 2
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n - 1]
    window = [a.get("stride", a["kernel"]), a.get("padding", [0] * n), a.get("dilation", [1] * n)]
    return list(pool(x, a["kernel"], *window, a.get("ceil_mode", False), return_indices=True))


def _avg_pool(node: Node, x: torch.Tensor):
    a, n = node.attrs, x.dim() - 2
    if "size" in a:
        return [(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[n - 1](x, a["size"])]
    window = [a["kernel"], a.get("stride", a["kernel"]), a.get("padding", [0] * n), a.get("ceil_mode", False)]
    counted = a.get("count_include_pad", True)
    if n == 1:  # which has no divisor
        x, window = x.unsqueeze(2), [[1, *window[0]], [1, *window[1]], [0, *window[2]], window[3]]
        return [F.avg_pool2d(x, *window, counted, a.get("divisor")).squeeze(2)]
    return [(F.avg_pool2d, F.avg_pool3d)[n - 2](x, *window, counted, a.get("divisor"))]


def _interpolate(node: Node, x: torch.Tensor):
    a, n = node.attrs, x.dim() - 2
    scales = a.get("scales", [None] * n)
    if a["mode"].startswith("nearest"):  # which elements: as of float32
        for dim, (size, scale) in enumerate(zip(a["size"], scales, strict=True), start=2):
            places = torch.arange(x.shape[dim], dtype=torch.float32)[None, None, None]
            target = {"size": (1, size)} if scale is None else {"scale_factor": (1.0, scale)}
            places = F.interpolate(places, **target, mode=a["mode"].replace("_", "-"))
            x = x.index_select(dim, places.flatten().long())
        return [x]
    mode = {"linear": ("linear", "bilinear", "trilinear")[n - 1], "cubic": "bicubic"}[a["mode"]]
    target = {"scale_factor": scales, "recompute_scale_factor": False} if "scales" in a else {"size": a["size"]}
    return [F.interpolate(x, **target, mode=mode, align_corners=a.get("align_corners", False))]


def _of_channels(numbers: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return numbers.reshape(-1, *[1] * (x.dim() - 2))


def _batch_moments(node: Node, sums: torch.Tensor, products: torch.Tensor, *running: torch.Tensor):
    count = math.prod(node.attrs["extents"])
    mean = sums / count
    variance = (products / count - mean.square()).clamp(min=0)
    if not running:
        return [mean, variance]
    batch = [mean, variance * (count / (count - 1))]
    return [mean, variance, *(old.lerp(new, node.attrs["momentum"]) for old, new in zip(running, batch, strict=True))]


_WINDOW = (("stride", 1), ("padding", 0), ("dilation", 1))
_BINARY = {name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "maximum", "minimum")}
_UNARY = {
    name: getattr(torch, name)
    for name in ("neg", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "sigmoid", "relu", "square")
} | {"silu": F.silu}


# Types of elements that are none of the run's.
_DTYPES = {"i32": torch.int32, "i64": torch.int64, "bool": torch.bool}


def _run_node(node: Node, x: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    a = node.attrs
    if node.op in _BINARY:
        return [_BINARY[node.op](x[0], _aligned(x[0], x[1]))]
    if node.op in _UNARY:
        return [_UNARY[node.op](x[0])]
    match node.op:
        case "einsum":
            return [torch.einsum(a["spec"], x[0], x[1])]
        case "gelu":
            return [F.gelu(x[0], approximate=a["approximate"])]
        case "swiglu":
            return [F.silu(x[0]) * x[1]]
        case "scale":
            return [x[0] * a["factor"]]
        case "add_scalar":
            return [x[0] + a["value"]]
        case "cast":
            return [x[0].to(_DTYPES.get(a["dtype"], dtype))]
        case "broadcast":
            kept = [extent if dim in a["dims"] else 1 for dim, extent in enumerate(a["shape"])]
            return [x[0].reshape(kept).expand(a["shape"])]
        case "log1p":
            return [x[0].log1p()]
        case "pow":
            return [x[0] ** a["exponent"]]
        case "compare":
            return [getattr(torch, a["comparison"])(*x)]
        case "select":
            return [torch.where(x[0] != 0, x[1], x[2])]
        case "gather":
            return [x[0].gather(a["dim"], x[1])]
        case "scatter_add":
            shape = [a["extent"] if d == a["dim"] else extent for d, extent in enumerate(x[0].shape)]
            return [x[0].new_zeros(shape).scatter_add(a["dim"], x[1], x[0])]
        case "cumsum":
            return [x[0].cumsum(a["dim"])]
        case "flip":
            return [x[0].flip(a["dims"])]
        case "aten":
            return _aten(node, x)
        case "clamp":
            return [x[0].clamp(a["min"], a["max"])]
        case "reshape":
            return [x[0].reshape(a["shape"])]
        case "stop_gradient":
            return [x[0].detach()]
        case "transpose":
            return [x[0].permute(a["perm"])]
        case "slice":
            return [x[0].narrow(a["dim"], a["start"], a["limit"] - a["start"])]
        case "concat":
            return [torch.cat(x, dim=a["dim"])]
        case "reduce_sum":
            return [x[0].sum(a["dims"])]
        case "reduce_max":
            return [x[0].amax(a["dims"])]
        case "pad":
            around = [0, 0] * (x[0].dim() - 1 - a["dim"]) + [a["low"], a["high"]]
            return [F.pad(x[0], around)]
        case "constant":
            return [torch.full(a["shape"], a["value"], dtype=_DTYPES.get(a["dtype"], dtype))]
        case "iota":
            index = torch.arange(a["shape"][a["dim"]], dtype=_DTYPES.get(a["dtype"], dtype))
            return [index.reshape([-1 if d == a["dim"] else 1 for d in range(len(a["shape"]))]).expand(a["shape"])]
        case "rms_norm" | "layer_norm":
            return _norm(node, x)
        case "l2_normalize":
            norm = x[0].norm(dim=-1, keepdim=True).clamp(min=a["eps"])
            return [x[0] / norm, norm.reciprocal().squeeze(-1)]
        case "positions":
            return [torch.arange(node.attrs["length"], dtype=torch.int32)]
        case "rope_table":
            return _rope_table(node, dtype)
        case "rotary":
            return _rotary(node, *x)
        case "attention":
            return _attention(node, *x)
        case "embedding":
            return [F.embedding(x[1].long(), x[0])]
        case "cross_entropy":
            return _cross_entropy(*x)
        case "convolution" | "convolution_transposed":
            return _convolution(node, *x)
        case "max_pool":
            return _max_pool(node, *x)
        case "avg_pool":
            return _avg_pool(node, *x)
        case "interpolate":
            return _interpolate(node, *x)
        case "channel_sums":
            dims = [0, *range(2, x[0].dim())]
            return [x[0].sum(dims), (x[0] * x[-1]).sum(dims)]
        case "channel_affine":
            return [x[0] * _of_channels(x[1], x[0]) + (_of_channels(x[2], x[0]) if len(x) > 2 else 0)]
        case "batch_moments":
            return _batch_moments(node, *x)
        case "softmax":
            return [x[0].softmax(-1)]
        case "top_k":
            return _top_k(node, *x)
        case "expert_counts":
            ids = x[0] if a.get("per_sample") else x[0][None]
            counts = torch.stack([torch.bincount(row.flatten(), minlength=a["num_experts"]) for row in ids]).to(dtype)
            return [counts if a.get("per_sample") else counts[0]]
        case "expert_matmul":
            return _expert_matmul(node, *x)
        case "mul_rows":
            return [x[0] * x[1][..., None]]
        case "dropout":
            return [x[0]]  # as in evaluation
        case "random":
            return [run_random(node, x[0], x[1], dtype)]
    raise NotImplementedError(node.op)


def run(
    nodes: list[Node],
    inputs: dict[str, torch.Tensor],
    params: dict[str, torch.Tensor],
    dtype: torch.dtype = torch.float64,
) -> dict[str, torch.Tensor]:
    """The graph's outputs by name. `params` as stored, by name, taken in `dtype`. Differentiable."""
    values: dict[str, torch.Tensor] = {}
    outputs = {}
    for node in nodes:
        operands = [values[name] for name in node.operands]
        if node.op == "input":
            results = [inputs[node.symbol]]
        elif node.op == "param":
            name, _, rows = node.symbol.partition("[")  # NAME[begin:end]: these rows of it
            if "*" in name:  # a stack
                weight = torch.stack([params[name.replace("*", str(i))] for i in range(node.dims[0][0])])
            else:
                weight = params[name]
            if rows:
                of_entries = rows.startswith(":,")  # NAME[:,begin:end]: these rows of each entry
                begin, end = map(int, rows.removesuffix("]").removeprefix(":,").split(":"))
                weight = weight[:, begin:end] if of_entries else weight[begin:end]
            assert list(weight.shape) == node.attrs.get("stored", node.dims[0]), node.symbol
            results = [weight.to(dtype).reshape(node.dims[0])]
        elif node.op == "output":
            outputs[node.symbol] = operands[0]
            continue
        else:
            results = _run_node(node, operands, dtype)
        assert [list(r.shape) for r in results] == node.dims, (node, [r.shape for r in results])
        values.update(zip(node.results, results))
    return outputs
