"""Bytes of values of a decoder, and how many its operators move."""

PARAMETER_BYTES = 4
"""Bytes of a stored parameter, and of its gradient: float32."""

LOSS_BYTES = 4
"""Bytes of a logit in the loss, which is computed in float32 at every precision."""

MASK_BYTES = 1
"""Bytes per value of the mask of a dropout."""

ROUTED_VALUES = 8.0
"""Values per token and expert that a router reads and writes besides its product: probabilities,
the choice of the largest, a map of tokens to experts and its sums, which give tokens their order.
"""

UNFUSED_NORM, UNFUSED_ROTATION, UNFUSED_GATE = 8.4, 4.0, 1.75
"""Bytes moved by several kernels over those of one, with 16 bits.

A root-mean-square norm is cast to 32 bits, squared, averaged, multiplied, cast back and multiplied
with its weights, 34 bytes per value instead of 4, and 50 instead of 6 in backward; rotary positions
are cast, multiplied and cast, 16 bytes instead of 4; a gate is an activation and a product, 5
values instead of 3, and 9 instead of 5. Layer norms and plain activations are one kernel anyway.
"""

AFTER_NORMS = ("attention.qkv", "attention.q_up", "attention.kv_up", "feed_forward.up")
"""Layers whose products take nothing but the output of a norm."""
