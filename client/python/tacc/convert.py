"""`python -m tacc convert`: turns pickled weights into safetensors."""

import argparse
import json
import shutil
import sys
from pathlib import Path

from tacc.errors import InputError
from tacc.output_folder import new_folder
from tacc.progress import Progress

SINGLE = "pytorch_model.bin"
INDEX = "pytorch_model.bin.index.json"
NOT_COPIED = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".index.json", ".safetensors")


def convert(source: Path, out: Path) -> list[Path]:
    """Writes `out`, a copy of the model folder `source` with its weights as safetensors; returns their files.

    The weights are unpickled with weights_only=True: no code in them is run. One file of them is in memory at a time.
    """
    files, index = _weight_files(source)
    drops_tied = _ties_embeddings(source)
    with new_folder(out) as folder:
        written = []
        weight_map, total_size = {}, 0
        with Progress("converting", sum(file.stat().st_size for file in files)) as progress:
            for i, file in enumerate(files):
                name = "model.safetensors" if len(files) == 1 else f"model-{i + 1:05d}-of-{len(files):05d}.safetensors"
                tensors = _convert_file(file, folder / name, drops_tied)
                for tensor, size in tensors.items():
                    if tensor in weight_map:
                        raise InputError(f"{file}: tensor {tensor} is also in another file of {source}")
                    weight_map[tensor] = name
                    total_size += size
                written.append(out / name)
                progress.add(file.stat().st_size)
        if index is not None:
            _check_index(source, index, set(weight_map), drops_tied)
        if len(files) > 1:
            text = json.dumps({"metadata": {"total_size": total_size}, "weight_map": weight_map}, indent=2)
            (folder / "model.safetensors.index.json").write_text(text + "\n", encoding="utf-8")
        for path in sorted(source.iterdir()):
            if path.is_file() and not path.name.startswith(".") and not path.name.endswith(NOT_COPIED):
                shutil.copyfile(path, folder / path.name)
    return written


def _weight_files(source: Path) -> tuple[list[Path], dict | None]:
    if not source.is_dir():
        raise InputError(f"{source}: no such folder")
    if any(source.glob("*.safetensors")):
        raise InputError(f"{source}: already has safetensors; use the folder as it is")
    if (source / INDEX).is_file():
        try:
            index = json.loads((source / INDEX).read_text(encoding="utf-8"))["weight_map"]
            names = sorted(set(index.values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{source / INDEX}: not an index of weights: {error!r}") from error
        missing = [name for name in names if not (source / name).is_file()]
        if missing:
            raise InputError(
                f"{source / INDEX}: names files that are not there: {', '.join(missing)}; download them again"
            )
        return [source / name for name in names], index
    if (source / SINGLE).is_file():
        return [source / SINGLE], None
    raise InputError(f"{source}: has neither {SINGLE} nor {INDEX}; nothing to convert")


def _ties_embeddings(source: Path) -> bool:
    try:
        config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{source}: has no config.json; it is not a Hugging Face model folder") from None
    except ValueError as error:
        raise InputError(f"{source / 'config.json'}: not valid JSON: {error}") from error
    return config.get("tie_word_embeddings") is True


def _convert_file(file: Path, target: Path, drops_tied: bool) -> dict[str, int]:
    """Converts one file and reads the result back. Returns the bytes of each tensor written."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    state = _load(file)
    tensors, metadata, places = {}, {"format": "pt"}, {}
    for name, tensor in state.items():
        place = (
            tensor.untyped_storage().data_ptr(),
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
        )
        first = places.setdefault(place, name) if tensor.numel() > 0 else name
        if first != name and drops_tied:
            # As Hugging Face does: one name of a tied tensor is stored, the other is in the metadata.
            kept, dropped = sorted((first, name), key=lambda each: ("emb" not in each and "wte" not in each, each))
            places[place] = kept
            metadata.pop(kept, None)
            metadata[dropped] = kept
            tensors[kept] = tensors.pop(first).contiguous() if first in tensors else tensor.contiguous()
        else:
            tensors[name] = tensor.contiguous() if first == name else tensor.clone().contiguous()
    del state
    save_file(_without_shared_memory(tensors), target, metadata)
    with safe_open(target, framework="pt") as written:
        if set(written.keys()) != set(tensors):
            raise RuntimeError(f"{target}: reading back gives other tensors than were written")
        for name, tensor in tensors.items():
            back = written.get_tensor(name)
            if (
                back.dtype != tensor.dtype
                or back.shape != tensor.shape
                or not torch.equal(_bytes(back), _bytes(tensor))
            ):
                raise RuntimeError(f"{target}: tensor {name} reads back different from {file}; is the disk in order?")
    return {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}


def _without_shared_memory(tensors: dict) -> dict:
    """The same tensors, with a copy of each one whose memory is also another's."""
    seen, result = set(), {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return result


def _bytes(tensor):
    """So that NaNs compare equal."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _load(file: Path) -> dict:
    import pickle
    import warnings

    import torch

    try:
        with warnings.catch_warnings(action="ignore"):  # They advise to load without weights_only.
            try:
                state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError as error:
                if "mmap can only be used" not in str(error):
                    raise
                state = torch.load(file, map_location="cpu", weights_only=True)  # The format before PyTorch 1.6.
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{file}: holds more than weights, so it is not read (unpickling it could run code): {reason}"
        ) from error
    except OSError:
        raise
    except Exception as error:  # A damaged pickle can raise anything.
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{file}: not a file of PyTorch weights, or damaged: {reason}") from error
    if isinstance(state, dict) and set(state) == {"state_dict"}:
        state = state["state_dict"]
    if not isinstance(state, dict):
        raise InputError(f"{file}: holds a {type(state).__name__}, not a dictionary of tensors")
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise InputError(f"{file}: entry {name!r} is a {type(tensor).__name__}, not a tensor")
        if tensor.layout != torch.strided:
            raise InputError(f"{file}: tensor {name} is sparse; safetensors holds dense ones")
    return dict(state)


def _check_index(source: Path, index: dict, written: set[str], drops_tied: bool) -> None:
    missing = sorted(set(index) - written)
    if missing and not drops_tied:
        raise InputError(f"{source / INDEX}: names tensors that its files do not hold: {', '.join(missing[:5])}")


def _run(args: argparse.Namespace) -> None:
    written = convert(args.source, args.out)
    print(f"{args.out}: wrote {', '.join(path.name for path in written)}", file=sys.stdout)


def add_command(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "convert",
        help="turn pickled weights into safetensors",
        description="Copies a model folder that has only pickled weights (pytorch_model.bin), with safetensors "
        "instead. No code in the pickle is run.",
    )
    parser.add_argument("source", type=Path, metavar="DIR", help="the model's folder")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the new folder; it must not exist or be empty"
    )
    parser.set_defaults(run=_run)
