"""Rewriting by equality saturation (the extra `egglog`): the same rules as greedy rewriting, chosen by cost instead of order.

In: a graph and the list of rules. Out: the graph with some rules applied. windows.py cuts the graph into windows, terms.py
makes each one an e-graph and grows it by proved matches, extract.py picks the cheapest choice, engine.py applies the rules that
lead there to the graph itself, where each is proved again (rule.py): a wrong choice can be missed, not made.
"""

from .engine import needs_egglog, rewrite_by_egraph

__all__ = ["needs_egglog", "rewrite_by_egraph"]
