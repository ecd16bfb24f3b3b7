"""The attention of RWKV-X by policy, for one sequence, and what its cache allows."""

from torch import Tensor

from ..errors import InputError
from ..traces import POLICIES, Capped, Dense, Memory, Moba, Package, Policy
from .attend import attend
from .cache import Cache
from .moba import moba
from .package import package


def attention(policy: Policy, q: Tensor, k: Tensor, v: Tensor, u: Tensor, cache: Cache) -> Tensor:
    """Each head's mean of values; the cache takes the call's tokens. All (T, H, N), u what q, k and v were made of."""
    q, k, v, u = (x.transpose(0, 1) for x in (q, k, v, u))  # (H, T, N)
    if isinstance(policy, Package):
        return package(policy, q, k, v, u, cache).transpose(0, 1)
    cache.append(k, v)
    if isinstance(policy, Moba):
        y = moba(q, cache, policy.chunk, policy.top_k)
    elif isinstance(policy, Capped):
        y = attend(q, cache.k, cache.v, policy.length)
        cache.slide(policy.length)
    else:
        y = attend(q, cache.k, cache.v)
    return y.transpose(0, 1)  # (T, H, N)


def check_policy(policy: Policy) -> None:
    """Refuse what is not written here."""
    if not isinstance(policy, Dense | Capped | Moba | Package):
        raise InputError(
            f"the optimized engine does not run the attention policy {policy.name!r}",
            expected=", ".join(name for name in POLICIES if name != Memory.name),
            mend="--engine reference",
        )


def check_cached(policy: Policy, cached: int | None) -> None:
    """Refuse a state that the policy cannot have left."""
    if cached is not None and isinstance(policy, Capped) and cached > policy.length:
        raise InputError(
            f"a state of {cached} tokens for the attention's cache, which holds {policy.length}",
            expected=f"at most {policy.length} rows in k and v",
            mend="give the newest rows only, or take a larger length",
        )
