"""Light as OpenGL's fixed pipeline computes it: ambient, diffuse and specular (Blinn) terms of one light at a time."""

import jax
import jax.numpy as jnp
from flax import struct

from wmjax.render.vectors import dot, normalise, plus


@struct.dataclass
class Light:
    """One light, posed in the frame of the points that it shines on."""

    directional: bool = struct.field(pytree_node=False)
    exponent: int = struct.field(pytree_node=False)
    """Of the decrease away from a spot's axis."""
    cutoff: float = struct.field(pytree_node=False)
    """Cosine of the half angle of a spot's cone."""
    ambient: jax.Array
    """[3], in [0, 1], as `diffuse` and `specular`."""
    diffuse: jax.Array
    specular: jax.Array
    position: jax.Array
    """[3]."""
    direction: jax.Array
    """[3], unit, along which it shines."""
    up: jax.Array
    """[3], unit, across `direction`: the upward axis of its shadow map."""

    def moved(self, rotation: jax.Array, origin: jax.Array) -> "Light":
        """Return the light in the frame with axes `rotation` [3, 3] (columns) and `origin` [3]."""
        turned = {"direction": self.direction @ rotation, "up": self.up @ rotation}
        return self.replace(position=(self.position - origin) @ rotation, **turned)  # type: ignore[attr-defined]

    def mirrored(self, normal: jax.Array, point: jax.Array) -> "Light":
        """Return the light mirrored at the plane with a unit `normal` [3] through `point` [3]."""

        def mirror(vector: jax.Array) -> jax.Array:
            return vector - 2 * jnp.dot(vector, normal) * normal

        turned = {"direction": mirror(self.direction), "up": mirror(self.up)}
        return self.replace(position=mirror(self.position - point) + point, **turned)  # type: ignore[attr-defined]


@struct.dataclass
class Gloss:
    """How surfaces reflect: the same for all of a scene."""

    shininess: int = struct.field(pytree_node=False)
    """Exponent of the highlight."""
    specular: jax.Array
    """Its strength, a scalar in [0, 1]."""


def shine(light: Light, gloss: Gloss, point: jax.Array, normal: jax.Array, rgb: jax.Array) -> jax.Array:
    """Return the light [3, N], in [0, 1], that comes from surfaces to an eye at the origin.

    `point` and `normal` (unit, or one [3] for all) are [3, N], the colour `rgb` [3, N] or [3].
    """
    if light.directional:
        toward, strength = -light.direction, jnp.float32(1)
    else:
        toward = normalise(plus(-point, light.position))
        cosine = -dot(toward, light.direction)
        strength = jnp.where(cosine >= light.cutoff, cosine**light.exponent, 0)
    facing = jnp.maximum(dot(normal, toward), 0)
    half = normalise(plus(normalise(-point), toward))
    highlight = gloss.specular * jnp.where(facing > 0, jnp.maximum(dot(normal, half), 0) ** gloss.shininess, 0)
    facing = strength * facing
    highlight = strength * highlight
    return jnp.stack(
        [
            jnp.clip((light.ambient[k] + light.diffuse[k] * facing) * rgb[k] + light.specular[k] * highlight, 0, 1)
            for k in range(3)
        ]
    )
