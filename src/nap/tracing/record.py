"""The record of one forward: what was used, what met what, what became of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nap.tracing.layout import Heads
from nap.tracing.operations import Kind
from nap.tracing.values import NO_CARRY, Carry


@dataclass(frozen=True)
class Frame:
    """One call of one module."""

    site: str
    call: int
    nonlinear_before: int  # nonlinearities and norms recorded when it began
    given: frozenset[Carry] | None = NO_CARRY  # what its first argument carries, and no other one does


@dataclass
class Use:
    """One call of a parametric function: which parameters, and how its output is laid out."""

    sources: frozenset[str]
    operation: str
    axis: int = -1  # of output features
    spatial: int = 0  # space axes of a convolution
    single: bool = False  # one number for each input, with no axis of features
    part: tuple[int, ...] = ()  # of its one weight: where it begins, its sizes and strides; empty: all of it
    members: tuple[int, ...] = ()  # of a stack of layers: axes that list them, counted from the end
    output: Tensor | None = None  # what the site returned, if its features are on the same axis
    linear: bool = False  # the result scales with each of these parameters
    scaleless: bool = False  # the scale of one of these parameters has cancelled before, as W/σ(W)
    fed: bool = False  # a function multiplies something with them that is not made of them
    product: Tensor | None = None  # what the function gave
    copy: Tensor | None = None  # of that: what the model goes on with
    fused: frozenset[str] = frozenset()  # parameters that the function adds to it
    joined: frozenset[tuple[str, int, int]] = (
        frozenset()
    )  # results that entered it linearly, with no norm between
    apart: str = ""  # why its features must not be normalised together: a mask keeps them apart
    tapped: bool = False  # a mask takes taps out of its convolution

    def names(self, site: str) -> list[str]:
        """What notes call it: its module where that is nothing but the layer, else its weights."""
        weights = sorted(self.sources)
        return [site] if site and weights in ([], [f"{site}.weight"]) else weights

    @property
    def space(self) -> int:
        """The space axes that features may be normalised together with."""
        return 0 if self.tapped else self.spatial

    @property
    def made(self) -> Tensor | None:
        """What the function gave: also where it is just what its module returns."""
        return self.output if self.product is None else self.product

    @property
    def place(self) -> Tensor | None:
        """The tensor whose features are those of the weights: what was returned, or else the product."""
        return self.product if self.output is None else self.output


@dataclass
class Meeting:
    """A nonlinearity that un-normalised producers enter."""

    operation: str
    kind: Kind
    carry: frozenset[Carry]
    modules: tuple[str, ...]  # the stack of running modules, outermost first
    active: frozenset[int]  # their calls
    shape: torch.Size
    hidden: bool  # it counts as hidden: by its kind, or as something parametric comes after it
    place: str | None = None  # the running module, where it was given all that meets here
    features: dict[Carry, frozenset[int] | None] = field(default_factory=dict)  # None: all of them
    axes: dict[Carry, int | None] = field(default_factory=dict)  # of features, for what is made right here
    heads: dict[Carry, Heads] = field(default_factory=dict)
    contracted: dict[Carry, int] = field(default_factory=dict)  # length of the vectors that q·k sums over
    temperature: float = 1.0  # factor between the q·k product and the softmax
    followed: bool = False  # something parametric comes after it
    faults: dict[Carry, str] = field(default_factory=dict)
    early: set[Carry] = field(default_factory=set)  # bent before the module that produced them returned


@dataclass
class Flow:
    """The record of one forward."""

    meetings: list[Meeting] = field(default_factory=list)
    uses: dict[tuple[str, int, int], Use] = field(default_factory=dict)
    lineage: dict[tuple[str, int, int], frozenset[str]] = field(
        default_factory=dict
    )  # result → weights that it is linear in
    calls: Counter[str] = field(default_factory=Counter)  # module → how often it was called
    given: dict[str, torch.Size] = field(default_factory=dict)  # module → shape of its first argument
    sinks: dict[tuple[str, int, int], set[str]] = field(
        default_factory=lambda: defaultdict(set)
    )  # result → norm, linear, ...
    degrees: dict[str, float] = field(default_factory=dict)  # of the outputs together
    returned_keys: set[tuple[str, int, int]] = field(default_factory=set)  # the same, by call and operation
    shifts: dict[tuple[str, int, int], set[str]] = field(
        default_factory=lambda: defaultdict(set)
    )  # added to them
    returned: set[str] = field(default_factory=set)  # sites whose whole un-normalised result is an output
    followers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # norm → activations
    curved: set[str] = field(default_factory=set)  # norms that more than ReLU-like activations follow
    affine: dict[str, tuple[str, ...]] = field(default_factory=dict)  # norm → its parameters
    added: set[str] = field(default_factory=set)  # parameters that are added to data
    scaled: set[str] = field(default_factory=set)  # parameters that multiply data elementwise
    compared: set[str] = field(
        default_factory=set
    )  # matrices that are a query, or that distances are taken to
    dotted: set[str] = field(default_factory=set)  # of these, the ones whose entries are then summed over
    listed: set[str] = field(default_factory=set)  # matrices that are listed with data: learned tokens
    bent: dict[str, str] = field(default_factory=dict)  # parameter → nonlinearity that it enters itself
    warped: set[str] = field(default_factory=set)  # parameters that enter an activation themselves
    tables: set[str] = field(default_factory=set)  # parameters that rows are looked up in
    chosen: set[str] = field(default_factory=set)  # tables whose rows the input chooses, such as tokens'
    branches: set[str] = field(default_factory=set)  # modules whose result is added to a residual stream
    inline: set[str] = field(default_factory=set)  # modules in which a norm is written out
    stacked: dict[str, int] = field(default_factory=dict)  # parameter → leading axes that list weights
    mapped: dict[str, tuple[int, ...]] = field(default_factory=dict)  # parameter → members, by vmap around it
    groups: dict[str, int] = field(default_factory=dict)  # parameter → groups of a transposed convolution
    out_axis: dict[str, int] = field(default_factory=dict)  # parameter → axis of output features
    seen: set[str] = field(default_factory=set)  # parameters that were used at all
    noise: dict[str, set[str]] = field(default_factory=dict)  # noise weight → its mean, in a noisy layer
    unknown: dict[str, str] = field(default_factory=dict)  # operation → module where a producer met it
    beside_batch_norm: set[str] = field(default_factory=set)  # sites whose result is used otherwise, too
    lost: dict[str, str] = field(default_factory=dict)  # site → unknown operation that its result entered
    recurrent: list[str] = field(default_factory=list)
    attention: list[str] = field(default_factory=list)  # nn.MultiheadAttention modules
    multiplied: dict[str, str] = field(default_factory=dict)  # module or weight whose result is, with another
    closed: dict[str, str] = field(default_factory=dict)  # weights inside what the caller calls an activation
    remarks: dict[str, str] = field(default_factory=dict)  # module or weight → what is done with its result
    told: set[str] = field(default_factory=set)  # parts that the caller told about and that were met
    unseen: list[str] = field(default_factory=list)  # modules that met a tensor of unknown origin
    tupled: set[str] = field(default_factory=set)  # sites that return more than one tensor
