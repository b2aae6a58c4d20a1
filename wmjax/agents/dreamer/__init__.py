"""The Dreamer family: one inference graph, four representation losses (arXiv 2301.04104 and its successors)."""

from wmjax.agents.dreamer.agent import AGENTS, Dreamer

__all__ = ["AGENTS", "Dreamer"]
