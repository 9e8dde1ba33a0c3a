"""Images made smaller or larger: pools, resizing, and pixels that become channels."""

from __future__ import annotations

from typing import Any

from tacc.exporting.graph_text import Value
from tacc.exporting.lowering import Lowering
from tacc.exporting.rows.convolution import each, require_samples
from tacc.exporting.table import NoRowError, row


def _spatial_rank(g: Lowering, x: Value) -> int:
    """The number of spatial dims, which the op's name says as "2d"."""
    name = str(g.node.target).split(".")[1]
    rank = next(n for n in (1, 2, 3) if f"{n}d" in name)
    require_samples(x, rank + 2)
    return rank


@row(
    "aten.max_pool1d.default",
    "aten.max_pool2d.default",
    "aten.max_pool3d.default",
    "aten.max_pool2d_with_indices.default",
    "aten.max_pool3d_with_indices.default",
)
def max_pool(
    g: Lowering, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Value | list[Value]:
    rank = _spatial_rank(g, x)
    kernel = each(kernel, rank)
    stride = each(stride, rank) if stride else kernel
    window: dict[str, Any] = {"kernel": kernel, "stride": stride, "padding": each(padding, rank), "dilation": each(dilation, rank)}
    if ceil_mode:
        window["ceil_mode"] = True
    y, indices = g.add("max_pool", [x], [("f32", g.dims), ("i32", g.dims)], **window)
    return [y, g.cast(indices, "i64")] if "with_indices" in str(g.node.target) else y


@row("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default")
def avg_pool(
    g: Lowering,
    x: Value,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value:
    rank = _spatial_rank(g, x)
    kernel = each(kernel, rank)
    attrs: dict[str, Any] = {"kernel": kernel, "stride": each(stride, rank) if stride else kernel, "padding": each(padding, rank)}
    if ceil_mode:
        attrs["ceil_mode"] = True
    if not count_include_pad:
        attrs["count_include_pad"] = False
    if divisor_override is not None:
        attrs["divisor"] = divisor_override
    return g.one("avg_pool", [x], "f32", g.dims, **attrs)


@row("aten.adaptive_avg_pool1d.default", "aten.adaptive_avg_pool2d.default", "aten.adaptive_avg_pool3d.default")
def adaptive_avg_pool(g: Lowering, x: Value, size: Any) -> Value:
    _spatial_rank(g, x)
    return g.one("avg_pool", [x], "f32", g.dims, size=g.dims[2:])


@row("aten.adaptive_max_pool1d.default", "aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def adaptive_max_pool(g: Lowering, x: Value, size: Any) -> list[Value]:
    _spatial_rank(g, x)
    extents = list(zip(x.dims[2:], g.dims[2:]))
    if any(not isinstance(e, int) or e % s for e, s in extents):
        raise NoRowError("to a size that does not divide the image's")
    kernel = [e // s for e, s in extents]
    y, indices = g.add("max_pool", [x], [("f32", g.dims), ("i32", g.dims)], kernel=kernel)
    return [y, g.cast(indices, "i64")]


def _interpolate(g: Lowering, x: Value, mode: str, align_corners: bool, scales: Any) -> Value:
    attrs: dict[str, Any] = {"size": g.dims[2:], "mode": mode}
    if align_corners:
        attrs["align_corners"] = True
    if scales is not None:
        attrs["scales"] = [float(s) for s in scales]
    return g.one("interpolate", [x], "f32", g.dims, **attrs)


@row("aten.upsample_nearest1d.vec", "aten.upsample_nearest2d.vec", "aten.upsample_nearest3d.vec")
def upsample_nearest(g: Lowering, x: Value, size: Any, scales: Any = None) -> Value:
    return _interpolate(g, x, "nearest", False, scales)


@row("aten._upsample_nearest_exact1d.vec", "aten._upsample_nearest_exact2d.vec", "aten._upsample_nearest_exact3d.vec")
def upsample_nearest_exact(g: Lowering, x: Value, size: Any, scales: Any = None) -> Value:
    return _interpolate(g, x, "nearest_exact", False, scales)


@row("aten.upsample_linear1d.vec", "aten.upsample_bilinear2d.vec", "aten.upsample_trilinear3d.vec")
def upsample_linear(g: Lowering, x: Value, size: Any, align_corners: bool, scales: Any = None) -> Value:
    return _interpolate(g, x, "linear", align_corners, scales)


@row("aten.upsample_bicubic2d.vec")
def upsample_cubic(g: Lowering, x: Value, size: Any, align_corners: bool, scales: Any = None) -> Value:
    return _interpolate(g, x, "cubic", align_corners, scales)


@row("aten.pixel_shuffle.default")
def pixel_shuffle(g: Lowering, x: Value, factor: int) -> Value:
    require_samples(x, 4)
    n, c, h, w = x.dims
    apart = g.reshape(x, [n, c // factor**2, factor, factor, h, w])
    return g.reshape(g.transpose(apart, [0, 1, 4, 2, 5, 3]), g.dims)


@row("aten.pixel_unshuffle.default")
def pixel_unshuffle(g: Lowering, x: Value, factor: int) -> Value:
    require_samples(x, 4)
    n, c, h, w = x.dims
    apart = g.reshape(x, [n, c, h // factor, factor, w // factor, factor])
    return g.reshape(g.transpose(apart, [0, 1, 3, 5, 2, 4]), g.dims)
