"""vLLM: what it chooses when a launch does not say. Read in 0.32 (engine/arg_utils.py, config/vllm.py, platforms)."""

from __future__ import annotations

from longproof.geometry.kinds import CompressedAttention, GroupedAttention, LatentAttention
from longproof.geometry.model import ModelGeometry
from longproof.plan.capacity import Device, Launch
from longproof.plan.vllm_compressed import BLOCK_TOKENS as COMPRESSED_BLOCK_TOKENS
from longproof.plan.vllm_release import ReleaseRules

_GIB = 1 << 30
_CUDA_BLOCK = 16
_CPU_BLOCK = 128
_CPU_LATENT_BLOCK = 16
_SPARSE_LATENT_BLOCK = 64
_SYNCHRONOUS_SPECULATION = ("ngram", "suffix", "medusa", "mlp_speculator")
"""Draft methods that switch asynchronous scheduling off (config/vllm.py); ngram_gpu keeps it on."""
_TPU_BATCH = {"v6e": 1024, "v5e": 512, "v5p": 256}
_FLASHMLA_DEVICES = ("h100", "h200", "h800", "h20", "gh200", "b200", "b300", "gb200", "gb300")
"""Devices whose MLA kernels take blocks of 64: FlashMLA on Hopper, FlashInfer and FlashMLA on data-centre Blackwell."""


def default_num_seqs(launch: Launch) -> int:
    """max_num_seqs: the given one, else 1,024 on devices of 70 GiB and more (not A100), 256 on others."""
    if launch.max_num_seqs is not None:
        return launch.max_num_seqs
    if launch.device is Device.CPU:
        return 128 * (2 if launch.offline else 1) * launch.layout.tp * launch.layout.pp
    return 1024 if _is_large(launch) else 256


def default_batched_tokens(launch: Launch, rules: ReleaseRules) -> int:
    """max_num_batched_tokens: the given one, else by device and usage, at most what max_num_seqs requests can fill."""
    if launch.max_num_batched_tokens is not None:
        return launch.max_num_batched_tokens
    wanted = _wanted_batch(launch, rules)
    length = launch.max_model_len_tokens
    return wanted if length is None else min(wanted, default_num_seqs(launch) * length)


def _wanted_batch(launch: Launch, rules: ReleaseRules) -> int:
    # The server takes half of what the library takes, except on the largest devices.
    double = 2 if launch.offline else 1
    if launch.device is Device.CPU:
        return 2048 * double * launch.layout.tp * launch.layout.pp
    name = launch.device_name.lower()
    chip = next((chip for chip in _TPU_BATCH if launch.device is Device.TPU and chip in name), None)
    if chip is not None:
        return _TPU_BATCH[chip] * double
    if (launch.device_memory_bytes or 0) >= 160 * _GIB and rules.large_gpu_doubles_batch:
        return 16384
    if _is_large(launch):
        return 8192 * double
    return 8192 if launch.offline else 2048


def _is_large(launch: Launch) -> bool:
    return (launch.device_memory_bytes or 0) >= 70 * _GIB and "a100" not in launch.device_name.lower()


def concurrent_batches(launch: Launch, rules: ReleaseRules) -> int:
    """Batches scheduled and not yet settled (`max_concurrent_batches`). Before 0.26 the cache reserved for one only."""
    if not rules.reserves_in_flight:
        return 1
    pp = launch.layout.pp
    if not asynchronous(launch):
        return pp
    # Asynchronous scheduling with a pipeline needs the V2 model runner, which then keeps one batch more.
    return pp + 1


def asynchronous(launch: Launch) -> bool:
    """Whether scheduling overlaps execution: on by default, off on CPU and with some draft methods."""
    if launch.device is Device.CPU:
        return False
    if launch.async_scheduling is not None:
        return launch.async_scheduling
    method = launch.speculation.method if launch.speculation else ""
    return method not in _SYNCHRONOUS_SPECULATION


def default_block_tokens(geometry: ModelGeometry, launch: Launch) -> int:
    """Tokens of one attention block before a hybrid's alignment: the given one, else what the attention backend takes.

    MLA backends differ by device: 64 on Hopper and data-centre Blackwell, 16 where Triton serves it.
    """
    if any(isinstance(layer.attention, CompressedAttention) for layer in geometry.layers):
        return COMPRESSED_BLOCK_TOKENS
    if launch.block_size_tokens is not None:
        return launch.block_size_tokens
    latent = [layer.attention for layer in geometry.layers if isinstance(layer.attention, LatentAttention)]
    if launch.device is Device.CPU:
        return _CPU_LATENT_BLOCK if latent else _CPU_BLOCK
    if launch.device is Device.TPU:
        return _tpu_block(launch.max_model_len_tokens)
    if any(attention.indexer is not None for attention in latent):
        return _SPARSE_LATENT_BLOCK
    if latent and any(device in launch.device_name.lower() for device in _FLASHMLA_DEVICES):
        return 64
    if any(isinstance(x.attention, GroupedAttention) and x.attention.indexer for x in geometry.layers):
        return 128
    return _CUDA_BLOCK


def _tpu_block(max_model_len: int | None) -> int:
    # A sixteenth of the window rounded up to a power of two, between 16 and 256.
    if max_model_len is None:
        return 256
    power = 1 << (max_model_len - 1).bit_length()
    return min(256, max(16, power // 16))


def state_blocks_per_request(launch: Launch, rules: ReleaseRules) -> int:
    """Blocks of recurrent state one request holds: 1, or 2 where prefixes are cached (mode align), and one for each
    drafted token (`MambaSpec.max_memory_usage_bytes`)."""
    drafted = launch.speculation.tokens if launch.speculation else 0
    caching = rules.hybrids_cache_prefixes if launch.prefix_caching is None else launch.prefix_caching
    return (2 if caching else 1) + drafted
