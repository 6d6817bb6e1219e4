"""All networks written for this zoo."""

from . import (
    attention,
    convolutional,
    experts,
    generative,
    multilayer,
    refused,
    reinforcement,
    residual,
    sequence,
    transformers_by_hand,
)

ENTRIES = [
    *multilayer.FAMILY,
    *convolutional.FAMILY,
    *residual.FAMILY,
    *attention.FAMILY,
    *transformers_by_hand.FAMILY,
    *sequence.FAMILY,
    *experts.FAMILY,
    *reinforcement.FAMILY,
    *generative.FAMILY,
    *refused.FAMILY,
]
