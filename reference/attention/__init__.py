"""The attention of RWKV-X, one policy a file; `attention` runs the one that is asked for."""

from ...errors import InputError
from ...traces import Capped, Dense, Memory, Moba, Package, Policy
from .._array import Array
from .attend import attend
from .cache import Cache
from .capped import capped
from .dense import dense
from .evict import evict
from .memory import memory, restoration_loss
from .moba import moba
from .package import package

__all__ = [
    "Cache",
    "Written",
    "attend",
    "attention",
    "capped",
    "dense",
    "evict",
    "memory",
    "moba",
    "package",
    "restoration_loss",
]

Written = tuple[Array, Array, Array]  # what an RWKV-7 block wrote: its state after the call, and its keys and values


def attention(
    policy: Policy, q: Array, k: Array, v: Array, cache: Cache, x: Array, written: Written | None
) -> tuple[Array, Cache]:
    """y (T, H, N) of q, k and v (T, H, N), and the cache after them, by the policy.

    x (T, H, N) is the block's normed input, cut into heads, for the eviction; `written` is of the RWKV-7 block that ran
    last, for the memory.
    """
    match policy:
        case Dense():
            return dense(q, k, v, cache)
        case Capped():
            return capped(q, k, v, cache, policy.length)
        case Moba():
            return moba(q, k, v, cache, policy.chunk, policy.top_k)
        case Package():
            if policy.evict_at and len(cache.keys) > max(policy.evict_at, policy.keep):
                cache = evict(q if len(q) == 1 else x, cache, policy.keep, policy.window)
            return package(q, k, v, cache, policy.chunk, policy.top_k, policy.short)
        case Memory() if written is not None:
            return memory(q, k, v, cache, policy.tokens, restoration_loss(*written))
    raise InputError(f"attention {policy} on a model whose RWKV-7 blocks never run", expected="a block before it")
