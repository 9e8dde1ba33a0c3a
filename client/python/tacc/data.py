"""`python -m tacc data prepare`: turns text into a data folder (docs/data.md)."""

import argparse
import sys
import time
from pathlib import Path

from tacc.preparing.encoding import ON_LONG
from tacc.preparing.preparation import prepare_folder
from tacc.preparing.prepare_options import DEFAULT_SEED, DEFAULT_SEQ_LEN, DEFAULT_SHARD_TOKENS, PrepareOptions


def _run_prepare(args: argparse.Namespace) -> None:
    options = PrepareOptions(
        inputs=args.input,
        out=args.out,
        tokenizer=args.tokenizer,
        train_tokenizer=args.train_tokenizer,
        eos_token=args.eos_token,
        text_field=args.text_field,
        include=tuple(args.include),
        exclude=tuple(args.exclude),
        as_text=tuple(args.as_text),
        chat=args.chat,
        on_long=args.on_long,
        eval_fraction=args.eval_fraction,
        seq_len=args.seq_len,
        separate_documents=args.separate_documents,
        seed=args.seed,
        processes=args.processes,
        shard_tokens=args.shard_tokens,
    )
    start = time.monotonic()
    prepared = prepare_folder(options)
    for warning in prepared.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{prepared}, from {prepared.num_input_bytes / 1e6:.1f} MB of input in {time.monotonic() - start:.1f} s")


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    data = commands.add_parser("data", help="prepare training data")
    actions = data.add_subparsers(required=True, metavar="ACTION")
    parser = actions.add_parser(
        "prepare",
        help="turn text into a data folder",
        description="Turns text into a data folder: documents are tokenized, shuffled once and joined with the "
        "EOS token. A text file is one document; so is a record of a .jsonl, .json, .csv, .tsv or .parquet file. "
        "docs/data.md describes the folder.",
    )
    tokenizer = parser.add_mutually_exclusive_group(required=True)
    tokenizer.add_argument("--tokenizer", type=Path, metavar="DIR", help="folder with the model's tokenizer.json")
    tokenizer.add_argument(
        "--train-tokenizer", type=int, metavar="N", help="train a byte-level BPE of N tokens on the input"
    )
    parser.add_argument(
        "--input",
        nargs="+",
        required=True,
        action="extend",
        metavar="PATH",
        help="text files, .jsonl, .json, .csv, .tsv and .parquet files, or folders of them (hidden and binary files and "
        "folders such as __pycache__ are skipped)",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="the data folder; it must not exist or be empty"
    )
    parser.add_argument(
        "--text-field", default="text", metavar="NAME", help="field of a record that is the text (default: text)"
    )
    parser.add_argument(
        "--chat",
        action="store_true",
        help="records are conversations, 'messages', 'conversations', 'prompt' and 'completion', or 'instruction' and "
        "'output'; what the assistant says is learned",
    )
    parser.add_argument(
        "--on-long",
        choices=ON_LONG,
        help="with --chat: what to do with a conversation longer than --seq-len (default: error)",
    )
    parser.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="GLOB",
        help="of folders, take only files whose name or path below the folder matches, as '*.py'; can be repeated",
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="GLOB",
        help="of folders, leave out such files; can be repeated",
    )
    parser.add_argument(
        "--as-text",
        action="append",
        default=[],
        metavar="GLOB",
        help="take such files as plain text whatever their names, as '*.json' of a source tree; can be repeated",
    )
    parser.add_argument(
        "--eval-fraction",
        type=float,
        default=0.0,
        metavar="F",
        help="hold out documents with this fraction of the tokens, in DIR/eval (default: 0, none)",
    )
    parser.add_argument(
        "--seq-len",
        type=int,
        default=DEFAULT_SEQ_LEN,
        metavar="N",
        help=f"length of a sample for jobs that set no data.seq_len (default: {DEFAULT_SEQ_LEN})",
    )
    parser.add_argument(
        "--eos-token", metavar="TOKEN", help="token that ends a document (default: the tokenizer's own)"
    )
    parser.add_argument(
        "--separate-documents",
        action=argparse.BooleanOptionalAction,
        help="keep the documents of a row apart: no attention across them, positions from the start of each (default: "
        "with --chat)",
    )
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help=f"of the shuffle (default: {DEFAULT_SEED})")
    parser.add_argument(
        "--processes", type=int, default=0, metavar="N", help="default: one per core; the result does not depend on it"
    )
    parser.add_argument(
        "--shard-tokens",
        type=int,
        default=DEFAULT_SHARD_TOKENS,
        metavar="N",
        help=f"most tokens in one file (default: {DEFAULT_SHARD_TOKENS})",
    )
    parser.set_defaults(run=_run_prepare)
