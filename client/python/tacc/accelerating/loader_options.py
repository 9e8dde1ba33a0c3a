"""TorchAcc's options of its data loader, `config.dataloader`: to which lengths batches are filled up, and with what."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacc.config import Config
from tacc.config_base import ConfigNote, Section, _caller
from tacc.errors import InputError
from tacc.live.pad import bucket_lengths

_NUM_BUCKETS = 8  # As TorchAcc's, where it is not given.


@dataclass(frozen=True)
class LoaderOptions:
    """What a config says of batches.

    Attributes:
        config: Without it.
        lengths: Tokens that samples may have, ascending; none: all have as many.
        fills: What fills inputs up, by name.
    """

    config: Config | Mapping[str, Any] | None
    lengths: list[int]
    fills: dict[str, float]


def taken(config: Config | Mapping[str, Any] | None, buckets: Sequence[int] | int | None) -> LoaderOptions:
    """What fills up the batches of a loop.

    Args:
        config: As of `tacc.accelerate`.
        buckets: As there: in place of those of the config.

    Raises:
        InputError: They are no lengths or fills, or there are others in config.
    """
    given = config.dataloader if isinstance(config, Config) else (config or {}).get("dataloader")
    fields = {name: getattr(given, name) for name in given._fields} if isinstance(given, Section) else dict(given or {})
    options = {name: value for name, value in fields.items() if value is not None}
    plain = config if config is None or isinstance(config, Config) else {name: value for name, value in config.items() if name != "dataloader"}
    lengths = [] if buckets is None else bucket_lengths(buckets)
    of_config = _lengths(options)
    if lengths and of_config and lengths != of_config:
        raise InputError(f"buckets={lengths} and config.dataloader, whose lengths are {of_config}, are both given; give one of them")
    fills = _fills(options.get("pad_value_dict") or {})
    if fills and not (lengths or of_config):
        warnings.warn(
            "dataloader.pad_value_dict: without dataloader.buckets or max_length, or buckets=, no batch is filled up", ConfigNote, stacklevel=_caller()
        )
    return LoaderOptions(plain, lengths or of_config, fills)


def _lengths(options: Mapping[str, Any]) -> list[int]:
    """Those of `buckets`, or `num_buckets` of them at equal distances up to `max_length`."""
    if "buckets" in options:
        return bucket_lengths(options["buckets"])
    if "max_length" not in options:
        return []
    longest, count = options["max_length"], options.get("num_buckets", _NUM_BUCKETS)
    for name, value, least in (("max_length", longest, 2), ("num_buckets", count, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"config.dataloader.{name} is {value!r}; wanted a whole number from {least} on")
    return bucket_lengths([length for i in range(1, count + 1) if (length := longest * i // count) >= 2])


def _fills(given: Any) -> dict[str, float]:
    wrong = not isinstance(given, Mapping) or any(
        not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, (int, float)) for name, value in given.items()
    )
    if wrong:
        raise InputError(f'config.dataloader.pad_value_dict is {given!r}; wanted numbers by name, as {{"input_ids": 0, "labels": -100}}')
    return dict(given)
