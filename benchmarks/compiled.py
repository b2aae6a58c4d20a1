"""Reads a compiled program's text: its operations, the layers of an attack they belong to, and their products."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

_COMPUTATION = re.compile(r"^(?:ENTRY )?%([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")

KINDS = {"conv": "convolution", "pool": "pooling", "norm": "norm", "silu": "activation"}
REST = "latent, objectives, step"


@dataclass(frozen=True)
class Operation:
    """One operation of a program."""

    opcode: str
    source: str  #: the functions that it was traced in, from the outermost on: "jit(step)/while/body/.../norm/mul"
    operands: tuple[str, ...]
    called: tuple[str, ...]  #: the computations that it calls
    flops: float  #: two for each product of its own convolution or dot

    @property
    def calls(self) -> bool:
        """Whether it only runs other operations, each with a time of its own."""
        return self.opcode in ("while", "conditional", "call")


Program = dict[str, dict[str, Operation]]
"""Operations by computation and by name."""


def read(text: str) -> Program:
    """Return the operations of a program, from the text that `jax.stages.Compiled.as_text` gives.

    An operation that the compiler left without a source has that of the first that uses it.
    """
    program: Program = {}
    shapes: dict[str, list[int]] = {}
    for line in text.splitlines():
        if computation := _COMPUTATION.match(line):
            program[computation[1]] = operations = {}
            shapes = {}
        elif instruction := _INSTRUCTION.match(line):
            name, shape, opcode, rest = instruction.groups()
            shapes[name] = _sizes(shape)
            operands = tuple(operand for operand in re.findall(r"%([\w.\-]+)", rest) if operand in shapes)
            branches = [part.strip(" %") for found in _BRANCHES.findall(rest) for part in found.split(",")]
            source = re.search(r'op_name="([^"]*)"', rest)
            operations[name] = Operation(
                opcode=opcode,
                source=source[1] if source else "",
                operands=operands,
                called=(*_CALLED.findall(rest), *branches),
                flops=_flops(opcode, [shapes[part] for part in (name, *operands)], rest),
            )
    for operations in program.values():
        users = {operand: user for user in reversed(operations.values()) for operand in user.operands}
        for name, operation in operations.items():
            if not operation.source and name in users:
                operations[name] = replace(operation, source=users[name].source)
    return program


def reached(program: Program, computation: str) -> Iterator[tuple[str, Operation]]:
    """Yield the operations that have a time of their own when `computation` runs."""
    for name, operation in program[computation].items():
        if operation.calls:
            for called in operation.called:
                yield from reached(program, called)
        else:
            yield name, operation


def flops(program: Program, operation: Operation) -> float:
    """Return what an operation computes, with all that it calls; a loop's body counts once."""
    inner = (flops(program, part) for called in operation.called for part in program[called].values())
    return operation.flops + sum(inner)


def loop_body(program: Program) -> str:
    """Return the computation that is the body of the loop that computes most."""
    loops = [operation for part in program.values() for operation in part.values() if operation.opcode == "while"]
    heaviest = max(loops, key=lambda loop: flops(program, loop))
    return max(heaviest.called, key=lambda name: len(program[name]))


def layer(source: str) -> str:
    """Return the layer of an attack that an operation belongs to, from the functions that it was traced in."""
    scopes = re.sub(r"(?:transpose|jvp|jit)\(|\)", "", source).split("/")
    stage = next((scope for scope in scopes if re.fullmatch(r"stage\d", scope)), None)
    if stage is not None:
        kind = next(kind for kind in ("pool", "norm", "silu", "conv") if kind in scopes)
        return f"encoder {stage[-1]} {KINDS[kind]}"
    if "RSSM.post_logits" in scopes:
        return "posterior net"
    return next((f"{head} head" for head in ("actor", "value") if head in scopes), REST)


def _sizes(shape: str) -> list[int]:
    found = re.match(r"\w+\[([\d,]*)\]", shape)
    return [int(size) for size in found[1].split(",") if size] if found else []


def _flops(opcode: str, shapes: list[list[int]], rest: str) -> float:
    """Return the FLOPs of an operation from the shapes of its result and of its operands."""
    if opcode not in ("convolution", "dot"):
        return 0.0
    result, left, right = shapes
    if opcode == "dot":
        summed = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", rest)
        assert summed is not None
        return 2.0 * math.prod(result) * math.prod(left[int(axis)] for axis in summed[1].split(",") if axis)
    labels = re.search(r"dim_labels=\w+_(\w+)->", rest)
    assert labels is not None
    return 2.0 * math.prod(result) * math.prod(right) / right[labels[1].index("o")]
