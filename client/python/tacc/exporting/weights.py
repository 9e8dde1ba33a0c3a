"""model.safetensors, written tensor by tensor."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

_LOOKED_AT = 1 << 20
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
}


def write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes the tensors; floating ones as they are, others in f32. No more than one of them is copied at a time."""
    with path.open("wb") as file:
        for piece in safetensors_pieces(tensors):
            file.write(piece)


def safetensors_size(tensors: Mapping[str, torch.Tensor]) -> int:
    """Bytes of the file."""
    sizes = [t.numel() * (t.dtype if t.dtype in _NAMES else torch.float32).itemsize for t in tensors.values()]
    return len(_header(tensors)) + int(sum(sizes))


def safetensors_pieces(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    """The file from its beginning, tensor by tensor."""
    yield _header(tensors)
    for tensor in tensors.values():
        stored = tensor.detach().cpu()
        stored = (stored if stored.dtype in _NAMES else stored.float()).contiguous().flatten()
        yield memoryview(stored.view(torch.uint8).numpy())


def _header(tensors: Mapping[str, torch.Tensor]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, tensor in tensors.items():
        dtype = tensor.dtype if tensor.dtype in _NAMES else torch.float32
        end = begin + tensor.numel() * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def init_of(tensor: torch.Tensor) -> str | None:
    """An initial value of which the tensor may be a draw: all alike, or normal. None: the values that were looked at are not all finite. It looks at
    so many of a large tensor, unless those are all alike."""
    flat = tensor.detach().flatten()
    looked_at = flat[:: max(1, flat.numel() // _LOOKED_AT)].float()
    first = looked_at[0].item()
    if bool((looked_at == first).all()) and bool((flat == flat[0]).all()):
        return {0.0: "zeros", 1.0: "ones"}.get(first, f"constant({first!r})") if math.isfinite(first) else None
    std = looked_at.double().std().item()
    return f"normal({std:.6g})" if math.isfinite(std) else None
