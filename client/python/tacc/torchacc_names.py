"""Options of TorchAcc's `Config` that have no meaning here: accepted, with a note that says why.

Read by `generate.py`, which makes attributes of them beside those of the job file.
"""

# Path -> (type, note).
NAMES: dict[str, tuple[str, str]] = {
    "backend": ("str", "the whole graph is always compiled; there is no other backend"),
    "compute.acc_scaled_dot_attn": (
        "bool",
        "attention is always a fused kernel, with the model's own mask and scale; there is nothing to switch on",
    ),
    "compute.acc_llama": ("bool", "norms, rotary embeddings and losses are always fused, in every family"),
    "compute.disable_kernel_patches": ("bool", "no module of transformers is patched, so there is nothing to disable"),
    "dataloader.buckets": (
        "Sequence[int]",
        "samples are packed to data.seq_len beforehand (tacc.prepare), so no sample is padded; tacc.accelerate fills the batches of a "
        "loop up to them",
    ),
    "dataloader.max_length": ("int", "the length of a sample is data.seq_len; tacc.accelerate has num_buckets lengths up to it if there are no buckets"),
    "dataloader.num_buckets": ("int", "samples are packed to data.seq_len, so no bucket is needed; it is of max_length, 8 if not given"),
    "dataloader.pad_value_dict": ("Mapping[str, int]", "samples are packed, so nothing is padded; tacc.accelerate fills the batches of a loop up with it"),
    "dist.pp.input_names": ("Sequence[str]", "stages are cut from the whole graph, which knows its inputs"),
    "dist.pp.broadcast_loss": ("bool", "every rank and every client has the loss of a step"),
    "dist.fsdp.flatten_parameters": (
        "bool",
        "shards always lie one behind the other, and are gathered without a copy; each parameter keeps its own name",
    ),
    "dist.fsdp.sync_module_states": ("bool", "every rank reads its own part of the weights, so nothing is broadcast"),
    "dist.fsdp.use_spmd": ("bool", "one program for all ranks is how every layout works here"),
    "dist.fsdp.shard_output_callable": ("object", "the outputs of the model stay where they are used"),
}

# Sections that only these options are in.
SECTIONS = {"dataloader": "TorchAcc's options of its data loader. Here data is prepared beforehand (`tacc.prepare`); `tacc.accelerate` fills the batches of a loop up by them."}
