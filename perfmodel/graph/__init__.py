"""Describes one iteration as a cyclic graph of operations that contend for slots and links."""

from perfmodel.graph.builder import GraphBuilder
from perfmodel.graph.op_graph import Block, OpGraph

__all__ = ["Block", "GraphBuilder", "OpGraph"]
